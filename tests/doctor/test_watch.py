"""Watching changes nothing, and counts steps, levels and gradients right."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.functional import scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint

import regard
from regard.doctor.vitals import Level
from regard.doctor.watch import OURS, watch

from .watching import (
    DIM,
    HEADS,
    LENGTH,
    NAMES,
    Attention,
    Eager,
    Kept,
    Stack,
    assert_same_bits,
    column,
    pass_through,
    tokens,
)

GRADS = [NAMES.index(f"{side}_grad") for side in ("query", "key", "value")]


class Layer(nn.Module):
    """One of torch's layers with dropout, in training."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.TransformerEncoderLayer(DIM, HEADS, 32, 0.3, batch_first=True)

    def forward(self, x):
        return self.inner(x)


MODELS = {
    "sdpa": lambda: Stack(Attention(True), Attention()),
    "eager": lambda: Stack(Eager(True), Eager()),
    "torch": lambda: Stack(Layer()),
    "regard": lambda: Stack(regard.nn.SelfAttention(DIM, HEADS, dropout=0.2)),
    "additive": lambda: Stack(regard.nn.SelfAttention(DIM, HEADS, score="additive")),
    "multihead": lambda: nn.TransformerDecoderLayer(DIM, HEADS, 32, 0.0, batch_first=True),
}


@pytest.mark.parametrize("level", ["cheap", "sampled", "exact"])
@pytest.mark.parametrize("name", MODELS)
def test_same_bits_with_all_vitals(name, level):
    model, x = MODELS[name](), (tokens(), tokens())
    x = x if name == "multihead" else x[:1]
    before = pass_through(model, *x)
    with watch(model, level, every=2) as d:
        watched = [pass_through(model, *x) for _ in range(3)]
    for found in (*watched, pass_through(model, *x)):
        assert_same_bits(found, before)
    assert d.notes == [] and d.steps == 3
    for site in d.sites:
        assert column(d, site, "value_grad").isfinite().all()
        assert column(d, site, "query_grad").isfinite().all()
        assert column(d, site, "key_grad").isfinite().all()
        sampled = column(d, site, "entropy").isfinite().all(-1).tolist()
        assert sampled == ([False] * 3 if level == "cheap" else [True, False, True])


@pytest.mark.parametrize("make", [Attention, Eager])
def test_gradients_are_those_of_the_tensors(make):
    model, x, kept = make(), tokens(), []

    def attend(query, key, value, own=model.attend):
        for tensor in (query, key, value):
            tensor.retain_grad()
        kept.extend((query, key, value))
        return own(query, key, value)

    model.attend = attend
    with watch(model, vitals=Kept().vitals) as d:
        model(x).square().sum().backward()
    expected = torch.stack([t.grad.square().mean((0, 2, 3)).sqrt() for t in kept], -1)
    torch.testing.assert_close(d.history(d.sites[0]).values[0][:, GRADS], expected)


def test_gradients_belong_to_their_forward_pass():
    model, x = Attention(), tokens()
    with watch(model, vitals=Kept().vitals) as d:
        first, second = model(x).square().sum(), model(x).square().sum() * 100
        second.backward()
        first.backward()
        model(x)
    grads = column(d, "Attention", "query_grad")
    torch.testing.assert_close(grads[1], grads[0] * 100, rtol=1e-3, atol=0)
    assert grads[2].isnan().all()


def test_nan_in_a_gradient_reads_inf():
    model = Attention()
    with watch(model, vitals=Kept().vitals) as d:
        (model(tokens()) * torch.nan).sum().backward()
    assert column(d, "Attention", "query_grad").isposinf().all()


def test_hooks_on_a_leaf_do_not_pile_up():
    class Latent(Attention):
        def __init__(self):
            super().__init__()
            self.query = nn.Parameter(torch.randn(1, HEADS, 3, 8))

        def forward(self, x):
            _, key, value = self.heads(x)
            return scaled_dot_product_attention(self.query, key, value)

    model = Latent()
    with watch(model, vitals=Kept().vitals) as d:
        for _ in range(5):
            model(tokens()).sum().backward()
        assert len(model.query._backward_hooks) == 1
    assert not model.query._backward_hooks
    assert column(d, "Latent", "query_grad").isfinite().all()


@pytest.mark.parametrize("make", [Attention, Eager])
@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("by_function", [False, True])
def test_checkpointing(make, reentrant, by_function):
    class Checkpointed(Stack):
        def forward(self, x):
            for layer in self.layers:
                x = x + checkpoint(layer, x, use_reentrant=reentrant)
            return x

    model, x = Checkpointed(make(), make()), tokens().requires_grad_()

    def run():
        model.zero_grad()
        out = model(x)
        if by_function:  # which no mode is told of, so that it sees what runs again
            torch.autograd.backward(out.square().sum())
        else:
            out.square().sum().backward()
        return out.detach(), [p.grad.clone() for p in model.parameters()]

    before = run()
    with watch(model, vitals=Kept().vitals) as d:
        for _ in range(2):
            assert_same_bits(run(), before)
    assert d.sites == ["layers.0", "layers.1"] and d.steps == 2 and d.capture.stack == []
    assert column(d, "layers.1", "query_grad").isnan().all() == reentrant


@pytest.mark.parametrize("name", ["sdpa", "eager", "regard"])
def test_autocast(name):
    model, x, kept = MODELS[name](), tokens(), Kept()
    with torch.autocast("cpu", torch.bfloat16):
        before = pass_through(model, x)
        with watch(model, vitals=kept.vitals):
            assert_same_bits(pass_through(model, x), before)
    tensor = kept.seen[0].query if kept.seen[0].logits is None else kept.seen[0].logits
    assert tensor.dtype == torch.bfloat16


def test_one_process_of_distributed_training():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        model = Stack(Attention(), Eager())
        parallel, x = nn.parallel.DistributedDataParallel(model), tokens()
        before = pass_through(parallel, x)
        with watch(parallel, vitals=Kept().vitals) as d:
            assert_same_bits(pass_through(parallel, x), before)
    finally:
        dist.destroy_process_group()
    assert d.sites == ["layers.0", "layers.1"]
    assert column(d, "layers.0", "key_grad").isfinite().all()


def test_levels_and_the_ring():
    kept, model = Kept(), Attention()
    with watch(model, "sampled", every=3, window=4, rows=2, vitals=kept.vitals) as d:
        for _ in range(7):
            model(tokens())
        memory = d.chart.sites["Attention"].ring.values.data_ptr()
        model(tokens())
    sampled = [level is Level.SAMPLED for level in kept.levels]
    assert sampled == [True, False, False, True, False, False, True, False]
    found = d.history("Attention")
    assert found.steps == [5, 6, 7, 8] and found.values.shape == (4, HEADS, len(NAMES))
    assert column(d, "Attention", "rows")[:, 0].isfinite().tolist() == [False, False, True, False]
    assert column(d, "Attention", "rows")[2, 0] == 2
    assert d.chart.sites["Attention"].ring.values.data_ptr() == memory


def test_without_vitals_the_sites_are_found():
    model = Attention()
    with watch(model, vitals=None) as d:
        model(tokens()).sum().backward()
    assert d.sites == ["Attention"] and d.history("Attention").steps == [] and d.vitals == ()


def test_examine_leaves_everything_as_it_was():
    model = Stack(nn.BatchNorm1d(LENGTH), nn.Dropout(0.5), Attention())
    model.layers[1].eval()
    x = tokens()
    with watch(model, "cheap") as d:
        model(x)
        state, random = copy.deepcopy(model.state_dict()), torch.get_rng_state()
        found = d.examine(x)
        again = d.examine((x,))
    assert torch.equal(random, torch.get_rng_state())
    assert all(torch.equal(v, state[k]) for k, v in model.state_dict().items())
    assert model.training and model.layers[0].training and not model.layers[1].training
    assert d.steps == 1 and d.history("layers.2").steps == [1]
    entropy = found["layers.2"][:, OURS.names.index("entropy")]
    assert entropy.isfinite().all() and found.keys() == again.keys()
    assert not d.attached and d.examine({"x": x}).keys() == found.keys() and not d.attached


class Counting(nn.Module):
    """Counts its calls in one buffer in place, in another anew."""

    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))
        self.register_buffer("anew", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        self.anew = self.anew + 1
        return x * self.calls


def test_examine_puts_buffers_back():
    model, x = Stack(Counting(), Attention()), tokens().requires_grad_()
    with watch(model) as d:
        model(x)
        d.examine(x)
    assert model.layers[0].calls == model.layers[0].anew == 1
    fixed = Stack(nn.BatchNorm1d(LENGTH).eval(), Attention())
    with watch(fixed) as d:
        out = fixed(x)
        d.examine(x)
    out.sum().backward()  # the buffers that it holds were not written to


def test_vitals_that_fail_do_not_stop_the_model():
    def fail(seen, level, rows, turn):
        raise ValueError("no")

    model, x = Attention(), tokens()
    before = pass_through(model, x)
    with watch(model, vitals=Kept().vitals._replace(measure=fail)) as d:
        assert_same_bits(pass_through(model, x), before)
    assert d.notes == ["Attention: not measured: ValueError: no"]


def test_meta_and_other_tensors_without_numbers():
    model = Attention().to("meta")
    with watch(model, vitals=Kept().vitals) as d:
        model(tokens().to("meta"))
    assert d.sites == ["Attention"] and d.history("Attention").steps == []
    assert d.notes == ["Attention: not measured: meta tensors hold no numbers"]
    model = Eager()
    with watch(model, vitals=Kept().vitals) as d:
        torch.func.vmap(model, randomness="error")(tokens()[None])
    assert d.notes == ["Eager: not measured: inside a torch.func transform"]


def test_inference_mode_and_back():
    model = Attention()
    with watch(model, vitals=Kept().vitals) as d:
        with torch.inference_mode():
            model(tokens())
        model(tokens())
    assert d.history("Attention").steps == [1, 2] and d.notes == []


def test_random_numbers_are_those_without():
    model, x = nn.Sequential(nn.Dropout(0.5), Attention()), tokens()
    torch.manual_seed(3)
    before = [model(x), torch.rand(3)]
    torch.manual_seed(3)
    with watch(model):
        after = [model(x), torch.rand(3)]
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


def test_other_heads_at_a_site_are_noted():
    class Splits(nn.Module):
        def forward(self, x, heads):
            x = x.unflatten(-1, (heads, -1)).transpose(1, 2)
            return F.scaled_dot_product_attention(x, x, x)

    model = Splits()
    with watch(model, vitals=Kept().vitals) as d:
        model(tokens(), 2)
        model(tokens(), 4)
    assert d.history("Splits").steps == [1] and "4 heads, earlier calls had 2" in d.notes[0]


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"level": "often"}, "level must be one of cheap, sampled, exact, got 'often'"),
        ({"every": 0}, "every must be a whole number of 1 or more, got 0"),
        ({"window": 2.0}, "window must be a whole number of 1 or more, got 2.0"),
        ({"rows": True}, "rows must be a whole number of 1 or more, got True"),
    ],
)
def test_bad_options(options, error):
    with pytest.raises(ValueError, match=error):
        watch(Attention(), **options)


def test_what_is_not_there():
    with pytest.raises(TypeError, match=r"model must be an nn.Module, got \[\] \(list\)"):
        watch([])
    with pytest.raises(KeyError, match="site 'x' was not seen; sites seen are "):
        watch(Attention()).history("x")
