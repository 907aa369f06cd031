"""The short way of a decoder's step: that it says what the whole way says, and when it is taken."""

from __future__ import annotations

import contextlib
import copy

import pytest
import torch
from torch.nn.utils import parametrize
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

import regard
from regard import doctor
from regard.engines.plan import EngineRefused
from regard.nn.seq2seq import (
    BahdanauAttention,
    DecoderAttention,
    Location,
    LuongAttention,
    MonotonicAttention,
    attention,
    step,
)
from regard.nn.seq2seq.memory import zero_hidden
from regard.observed import KEY_CHANGES

pytestmark = pytest.mark.skipif(
    not hasattr(torch._C._autograd, "_top_saved_tensors_default_hooks"),
    reason="this torch cannot say whether there are hooks, and every step goes the whole way",
)

B, L, Q, K, V, E = 3, 6, 5, 7, 2, 8
LENGTHS = torch.tensor([6, 0, 4])
VISIBLE = torch.arange(B * L).view(B, L) % 5 != 2

PAIRWISE = {
    "bahdanau": lambda: BahdanauAttention(Q, K, E),
    "everything": lambda: BahdanauAttention(
        Q, K, E, heads=2, bias=True, weight_norm=True, location=Location(3, 2), coverage=True
    ),
    "heads": lambda: BahdanauAttention(Q, K, E, heads=2),
    "concat": lambda: LuongAttention(Q, K, "concat"),
    "gatv2": lambda: DecoderAttention(regard.Projected(regard.GATv2(E, heads=2), Q, K)),
    "shared keys": lambda: DecoderAttention(
        regard.Projected(regard.Additive(E, 2), Q, K, key_heads=1, bias=True)
    ),
    "no projection": lambda: DecoderAttention(regard.Additive(Q, 2), coverage=True),
}
INNER = {
    "dot": lambda: LuongAttention(Q, Q, "dot", scaled=True),
    "general": lambda: LuongAttention(Q, K, "general", heads=2, coverage=True),
    "projected": lambda: DecoderAttention(
        regard.Projected(regard.Cosine(heads=2), Q, K, width=E, heads=2)
    ),
    "gaussian": lambda: DecoderAttention(regard.Gaussian(), location=Location(3, 2)),
}
ALL = PAIRWISE | INNER


@pytest.fixture
def ways(monkeypatch):
    """For each step whether it went the short way."""
    found, short_step = [], DecoderAttention.short_step

    def spy(*args):
        result = short_step(*args)
        found.append(result is not None)
        return result

    monkeypatch.setattr(DecoderAttention, "short_step", spy)
    return found


@contextlib.contextmanager
def the_whole_way():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attention, "short_way", lambda *_: None)
        yield


def tensors(module, dtype=torch.float64) -> tuple[torch.Tensor, ...]:
    """Two queries, keys and values; keys as wide as the module wants them."""
    width = module.score.key_dim or (K if module.score.query_dim else Q)
    shapes = ((2, B, Q), (B, L, width), (B, L, V))
    return tuple(torch.randn(s, dtype=dtype, requires_grad=True) for s in shapes)


def everything(module, given, *, lengths=LENGTHS, visible=VISIBLE, incoming=None) -> list:
    """What two steps return, and the gradients of all that they depend on."""
    queries, keys, values = given
    memory, state, found = (
        module.prepare(keys, lengths=lengths, visible=visible, values=values),
        None,
        [],
    )
    for query in queries:
        context, weights, state = module(query, memory, state)
        found += [context, weights]
    found += state
    generator = torch.Generator().manual_seed(0)
    grads = [torch.randn(x.shape, generator=generator, dtype=x.dtype) for x in found]
    if incoming is not None:
        grads[0][1] = incoming
    leaves = [*given, *module.parameters()]
    return found + list(torch.autograd.grad(found, leaves, grads, allow_unused=True))


HIDES = ({}, {"visible": None}, {"lengths": None}, {"lengths": None, "visible": None})


@pytest.mark.parametrize(
    ("name", "hides"), [(name, {}) for name in ALL] + [("bahdanau", more) for more in HIDES[1:]]
)
def test_both_ways_agree_with_all_gradients(name, hides, ways):
    module = ALL[name]().double()
    given = tensors(module)
    short = everything(module, given, **hides)
    assert ways == [True, True]
    with the_whole_way():
        torch.testing.assert_close(everything(module, given, **hides), short)
    module.engine = "reference"
    torch.testing.assert_close(everything(module, given, **hides), short)
    assert ways[2:] == [False] * 4
    seen = VISIBLE if hides.get("visible", VISIBLE) is not None else torch.ones_like(VISIBLE)
    if "lengths" not in hides:
        seen = seen & (torch.arange(L) < LENGTHS[:, None])
    for context, weights in (short[0:2], short[2:4]):
        assert torch.equal(weights != 0, seen[:, None].expand_as(weights))
        assert not context[~seen.any(-1)].any()


@pytest.mark.parametrize(
    ("name", "dtype"),
    [(name, torch.float32) for name in ALL]
    + [(name, torch.bfloat16) for name in ("bahdanau", "everything", "gatv2", "general")]
    + [("heads", torch.float16)],
)
def test_both_ways_agree_in_every_dtype(name, dtype, ways):
    module = ALL[name]().to(dtype)
    given = tensors(module, dtype)
    short = everything(module, given)
    assert ways == [name in PAIRWISE or dtype == torch.float32] * 2
    tolerance = {torch.float32: 1e-5, torch.bfloat16: 0.1, torch.float16: 0.02}[dtype]
    with the_whole_way():
        whole = everything(module, given)
    torch.testing.assert_close(short, whole, rtol=tolerance, atol=tolerance)
    assert [x.dtype for x in short] == [x.dtype for x in whole]


@pytest.mark.parametrize("name", ALL)
def test_what_hides_may_hold_anything(name, ways):
    """NaN in padding, in a query that sees nothing, and in the gradient that comes in for it."""
    module = ALL[name]().double()
    given = tensors(module)
    clean = everything(module, given)
    seen = (torch.arange(L) < LENGTHS[:, None]) & VISIBLE
    queries, keys, values = (x.detach().clone() for x in given)
    queries[:, 1], keys[~seen], values[~seen] = torch.nan, torch.nan, torch.inf
    dirty = [x.requires_grad_() for x in (queries, keys, values)]
    torch.testing.assert_close(everything(module, dirty, incoming=torch.nan), clean)
    with torch.no_grad():
        memory = module.prepare(keys, lengths=LENGTHS, visible=VISIBLE, values=values)
        torch.testing.assert_close(module(queries[0], memory).context, clean[0])
    assert all(ways)


@pytest.mark.parametrize("name", ["bahdanau", "everything", "general"])
def test_gradcheck(name, ways):
    module = ALL[name]().double()
    queries, keys, values = tensors(module)

    def step(query, keys, values):
        memory = module.prepare(keys, lengths=LENGTHS, values=values)
        state = module.initial_state(memory)
        return module(query, memory, state._replace(total=state.total + 0.5))[:2]

    assert torch.autograd.gradcheck(step, (queries[0], keys, values), fast_mode=True)
    assert torch.autograd.gradgradcheck(step, (queries[0], keys, values), fast_mode=True)
    assert all(ways)


@pytest.mark.parametrize("name", ALL)
def test_a_memory_that_is_reordered(name, ways):
    module, index = ALL[name]().double(), torch.tensor([2, 0, 0, 1])
    queries, keys, values = tensors(module)
    memory = module.prepare(keys, lengths=LENGTHS, visible=VISIBLE, values=values)
    context, _, state = module(queries[0], memory)
    moved = module(queries[0][index], memory.reorder(index))
    torch.testing.assert_close(
        (moved.context, *moved.state), (context[index], *state.reorder(index))
    )
    assert ways == [True, True]


def attend_twice(self, query, memory, state):
    context, weights = DecoderAttention.look(self, query, memory, state)
    return 2 * context, weights


class Twice(BahdanauAttention):
    look = attend_twice


def windowed() -> DecoderAttention:
    return BahdanauAttention(Q, K, E, window=(1, 1)).eval()


def patched() -> DecoderAttention:
    module = BahdanauAttention(Q, K, E)
    module.mask_now = lambda memory, state: regard.Mask.lengths(keys=[1] * B)
    return module


WHOLE = {
    "reference": lambda: BahdanauAttention(Q, K, E, engine="reference"),
    "cpu": lambda: BahdanauAttention(Q, K, E, engine="cpu"),
    "dropout": lambda: BahdanauAttention(Q, K, E, dropout=0.5),
    "window": windowed,
    "soft cap": lambda: DecoderAttention(
        regard.stabilize.SoftCapped(regard.Projected(regard.Additive(E), Q, K), 5.0)
    ),
    "soft cap inside": lambda: DecoderAttention(
        regard.Projected(regard.stabilize.SoftCapped(regard.Additive(E), 5.0), Q, K)
    ),
    "sine": lambda: DecoderAttention(regard.Projected(regard.Additive(E, activation="sine"), Q, K)),
    "subclass": lambda: Twice(Q, K, E),
    "patched": patched,
    "monotonic": lambda: MonotonicAttention(regard.Bilinear(Q, K)),
    "groups": lambda: DecoderAttention(regard.Projected(regard.Additive(E, 4), Q, K, key_heads=2)),
}


@pytest.mark.parametrize("name", WHOLE)
def test_what_changes_a_step_goes_the_whole_way(name, ways):
    module = WHOLE[name]().double()
    queries, keys, _ = tensors(module)
    module(queries[0], module.prepare(keys, lengths=LENGTHS))
    assert ways == [False]


def test_engines_by_name(ways):
    """`plain` is what the short way computes; for inner products it has to say that it does not."""
    module = BahdanauAttention(Q, K, E, engine="plain").double()
    queries, keys, _ = tensors(module)
    module(queries[0], module.prepare(keys))
    assert ways == [True]
    module = LuongAttention(Q, K, "general", engine="plain").double()
    with pytest.raises(EngineRefused, match="SDPA"):
        module(queries[0], module.prepare(keys))


def test_dropout_and_windows_do_not_matter_where_they_do_nothing(ways):
    module = BahdanauAttention(Q, K, E, dropout=0.5, window=(1, 1)).double()
    queries, keys, _ = tensors(module)
    for mode, window in ((False, None), (False, (1, 1)), (True, (1, 1))):
        module.train(mode).window = window
        module(queries[0], module.prepare(keys))
    module.dropout = 0.0
    module(queries[0], module.prepare(keys))
    assert ways == [True, False, False, True]


@contextlib.contextmanager
def planted():
    KEY_CHANGES.append(lambda key: key)
    try:
        yield
    finally:
        KEY_CHANGES.clear()


LOOKING_ON = {
    "doctor": lambda module: doctor.watch(module),
    "planted key": lambda _: planted(),
    "autocast": lambda _: torch.autocast("cpu", torch.bfloat16),
}


@pytest.mark.parametrize("name", LOOKING_ON)
def test_somebody_who_looks_on_sees_the_whole_way(name, ways):
    module = BahdanauAttention(Q, K, E)
    queries, keys, _ = tensors(module, torch.float32)
    with LOOKING_ON[name](module):
        seen = module(queries[0], module.prepare(keys, lengths=LENGTHS))
    alone = module(queries[0], module.prepare(keys, lengths=LENGTHS))
    assert ways == [False, True]
    tolerance = 0.03 if name == "autocast" else 1e-5
    torch.testing.assert_close(seen.weights, alone.weights, rtol=tolerance, atol=tolerance)


def test_the_doctor_sees_each_step():
    module = BahdanauAttention(Q, K, E)
    queries, keys, _ = tensors(module, torch.float32)
    memory = module.prepare(keys)
    with doctor.watch(module) as d:
        for query in queries:
            module(query, memory)
    assert len(d.sites) == 1 and d.steps == 2


def test_autocast_gives_its_dtypes_whatever_the_memory_is_of(ways):
    module = BahdanauAttention(Q, K, E)
    queries, keys, _ = tensors(module, torch.float32)
    memory = module.prepare(keys)
    with torch.autocast("cpu", torch.bfloat16):
        found = module(queries[0], memory)
    assert ways == [False]
    assert found.context.dtype == torch.bfloat16 and found.weights.dtype == torch.float32


def test_transforms_and_compilers_go_the_whole_way(ways):
    module = BahdanauAttention(Q, K, E, engine="plain")
    queries, keys, _ = (x.detach() for x in tensors(module.requires_grad_(False), torch.float32))
    memory = module.prepare(keys, lengths=LENGTHS)
    expected = torch.stack([module(query, memory).context for query in queries])
    together = torch.func.vmap(lambda query: module(query, memory).context)(queries)
    torch.testing.assert_close(together, expected)
    torch._dynamo.reset()
    compiled = torch.compile(lambda q: module(q, memory).context, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(queries[0]), expected[0])

    def whole(query):
        return module(query, module.prepare(keys, lengths=LENGTHS)).context

    compiled = torch.compile(whole, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(queries[0]), expected[0])
    assert ways[:3] == [True, True, False] and not any(ways[2:])


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning")
def test_a_tracer_goes_the_whole_way(ways):
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = BahdanauAttention(Q, K, E)

        def forward(self, query, keys):
            return self.attention(query, self.attention.prepare(keys, lengths=LENGTHS)).context

    model = Model()
    queries, keys, _ = (x.detach() for x in tensors(model.attention, torch.float32))
    traced = torch.jit.trace(model, (queries[0], keys))
    torch.testing.assert_close(traced(queries[1], keys), model(queries[1], keys))
    assert ways[:2] == [False, False] and ways[-1]


def test_forward_mode(ways):
    module = BahdanauAttention(Q, K, E).double()
    queries, keys, _ = tensors(module)
    memory = module.prepare(keys.detach(), lengths=LENGTHS)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(queries[0].detach(), torch.ones(B, Q).double())
        short = torch.autograd.forward_ad.unpack_dual(module(dual, memory).context).tangent
        with the_whole_way():
            whole = torch.autograd.forward_ad.unpack_dual(module(dual, memory).context).tangent
    torch.testing.assert_close(short, whole)
    assert ways == [True, False]


def test_large_steps_go_to_engines_that_save_memory(ways, monkeypatch):
    module = BahdanauAttention(Q, K, E, heads=2).double()
    queries, keys, _ = tensors(module)
    memory = module.prepare(keys, lengths=LENGTHS)
    for limit in (2 * B * L * E, 2 * B * L * E - 1):
        monkeypatch.setattr(step, "FEW_TANH_OF_ONE_QUERY", limit)
        module(queries[0], memory)
    assert ways == [True, False]


def test_the_limit_of_other_devices_is_their_own(monkeypatch):
    """A device without memory is no CPU either."""
    module = BahdanauAttention(Q, K, E).to("meta")
    memory = module.prepare(torch.empty(B, L, K, device="meta"))
    query = torch.empty(B, Q, device="meta")
    monkeypatch.setattr(step, "FEW_TANH_OF_ONE_QUERY", 0)
    assert step.short_way(query, memory, module.score, None) == "plain"
    assert module(query, memory).context.shape == (B, K)
    monkeypatch.setattr(step, "FEW_PRODUCTS_ON_GPU", B * L * E - 1)
    assert step.short_way(query, memory, module.score, None) is None


def test_memories_that_prepare_did_not_make(ways):
    """What is hidden in them may hold anything, and what lies ready may be of other keys."""
    module = BahdanauAttention(Q, K, E).double()
    queries, keys, _ = tensors(module)
    memory = module.prepare(keys, lengths=LENGTHS)
    other = memory._replace(visible=VISIBLE)
    assert torch.equal(module(queries[0], other).weights[:, 0] > 0, VISIBLE)
    weights = module(queries[0], memory._replace(visible=None)).weights
    assert weights.all()
    module(queries[0], memory._replace(hidden=None))
    assert ways == [False, True, False]


def test_what_lies_ready_is_of_the_very_mask(ways):
    """Where a memory was changed and zeroed as it should be; the caller's mask is read once."""
    module = BahdanauAttention(Q, K, E)
    queries, keys, _ = tensors(module, torch.float32)
    memory = module.prepare(keys, lengths=LENGTHS)
    narrow = memory.visible & VISIBLE
    other = memory._replace(side=zero_hidden(memory.side, narrow), visible=narrow, zeroed=narrow)
    assert torch.equal(module(queries[0], other).weights[:, 0] > 0, narrow)
    mask = torch.ones(B, L, dtype=torch.bool)
    memory = module.prepare(keys, visible=mask)
    assert module(queries[0], memory).weights.all()
    mask[:, 1] = False
    assert module(queries[0], memory).weights.all()
    with the_whole_way():
        assert module(queries[0], memory).weights.all()
    assert ways == [False, True, True, False]


def test_visible_logits_that_are_infinite_hide_nothing(ways):
    """A model that diverges says so, also beside padding."""
    module = DecoderAttention("dot")
    keys, values = torch.full((2, 4, 1), 1e20), torch.ones(2, 4, 1)
    memory = module.prepare(keys, lengths=[4, 3], values=values)
    assert module(torch.full((2, 1), -1e20), memory).context.isnan().all()
    assert ways == [True]


def test_weights_may_be_changed_by_the_caller(ways):
    module = BahdanauAttention(Q, K, E)
    queries, keys, _ = tensors(module, torch.float32)
    context, weights, _ = module(queries[0], module.prepare(keys))
    weights.detach().zero_()
    context.sum().backward()
    assert keys.grad.any() and ways == [True]


def test_a_default_dtype_changes_nothing(ways):
    module = BahdanauAttention(Q, K, E)
    queries, keys, _ = tensors(module, torch.float32)
    torch.set_default_dtype(torch.float64)
    try:
        found = module(queries[0], module.prepare(keys, lengths=LENGTHS))
    finally:
        torch.set_default_dtype(torch.float32)
    assert {x.dtype for x in (*found[:2], *found.state)} == {torch.float32} and ways == [True]


@pytest.mark.parametrize("watched", [True, False], ids=["watched at first", "watched at last"])
def test_a_checkpoint_that_is_watched_on_one_of_its_ways(watched):
    module = BahdanauAttention(Q, K, E)
    queries, keys, _ = tensors(module, torch.float32)

    def run(query):
        return module(query, module.prepare(keys, lengths=LENGTHS)).context

    with doctor.watch(module) if watched else contextlib.nullcontext():
        out = checkpoint(run, queries[0], use_reentrant=False)
    with contextlib.nullcontext() if watched else doctor.watch(module):
        out.sum().backward()
    assert keys.grad.any()


def test_memories_of_inference(ways):
    module = BahdanauAttention(Q, K, E, heads=2)
    queries, keys, _ = tensors(module, torch.float32)
    with torch.inference_mode():
        memory = module.prepare(keys, lengths=LENGTHS)
        module(queries[0], memory)
    module(queries[0], memory).context.sum().backward()
    assert ways == [True, False]


def test_terms_are_asked_once_whatever_the_activation(ways):
    score = regard.Projected(regard.Additive(E, activation="sine"), Q, K)
    module, asked = DecoderAttention(score, coverage=True), []
    module.terms[0].register_forward_hook(lambda *_: asked.append(1))
    queries, keys, _ = tensors(module, torch.float32)
    module(queries[0], module.prepare(keys))
    assert len(asked) == 1 and ways == [False]


def test_several_queries_and_no_keys_go_the_whole_way(ways):
    module = BahdanauAttention(Q, K, E).double()
    queries, keys, _ = tensors(module)
    module(queries.transpose(0, 1), module.prepare(keys))
    assert ways == []
    assert not module(queries[0], module.prepare(keys[:, :0])).context.any()
    assert ways == [False]


def test_wrong_calls_get_their_own_errors():
    module = BahdanauAttention(Q, K, E)
    queries, keys, _ = tensors(module, torch.float32)
    memory = module.prepare(keys)
    with pytest.raises(TypeError, match="cast one, or use"):
        module(queries[0].double(), memory)
    module.score.score.double()
    with pytest.raises(TypeError, match=r"score parameter 'score.v' is torch.float64"):
        module(queries[0], memory)
    general = LuongAttention(Q, K, "general")
    with pytest.raises(TypeError, match="was lowered to"):
        general(queries[0], memory)
    with pytest.raises(ValueError, match="beta"):
        side = general.prepare(keys).side._replace(beta=torch.zeros(L))
        general(queries[0], general.prepare(keys)._replace(side=side))


class Doubled(torch.nn.Module):
    def forward(self, x):
        return 2 * x


class Halved(regard.Additive):
    def query(self, q):
        return super().query(q / 2)


def patched_projection() -> DecoderAttention:
    module = BahdanauAttention(Q, K, E)
    project = module.score.project_query
    module.score.project_query = lambda q: 3 * project(q)
    return module


def patched_query() -> DecoderAttention:
    module = DecoderAttention(regard.Projected(regard.Gaussian(), Q, K, width=E))
    lower = module.score.query_at
    module.score.query_at = lambda q, origin: lower(q / 3, origin)
    return module


def parametrized() -> DecoderAttention:
    module = BahdanauAttention(Q, K, E)
    parametrize.register_parametrization(module.score, "query_weight", Doubled())
    parametrize.register_parametrization(module.score.score, "v", Doubled())
    return module


@pytest.mark.parametrize(
    "build",
    [
        patched_projection,
        patched_query,
        parametrized,
        lambda: DecoderAttention(regard.Projected(Halved(E), Q, K)),
    ],
    ids=["patched", "patched query", "parametrized", "subclass"],
)
def test_scores_that_somebody_changed_are_lowered_as_they_say(build, ways):
    """Their own methods are called, on either way."""
    module = build().double()
    given = tensors(module)
    short = everything(module, given)
    assert ways == [True, True]
    with the_whole_way():
        torch.testing.assert_close(everything(module, given), short)


def test_nothing_is_kept_in_the_module(ways):
    module = BahdanauAttention(Q, K, E)
    attributes, parameters = set(module.__dict__), set(module.state_dict())
    queries, keys, _ = tensors(module, torch.float32)
    found = module(queries[0], module.prepare(keys, lengths=LENGTHS))
    assert set(module.__dict__) == attributes and set(module.state_dict()) == parameters
    copied = copy.deepcopy(module)
    again = copied(queries[0], copied.prepare(keys, lengths=LENGTHS))
    torch.testing.assert_close(again, found, rtol=0, atol=0)
    assert ways == [True, True]


class Launches(TorchDispatchMode):
    """The names of all operations that compute something."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        if not operator.is_view and operator.overloadpacket.__name__ != "_unsafe_view":
            self.names.append(operator.overloadpacket.__name__)
        return operator(*args, **(kwargs or {}))


def test_a_step_is_as_many_operations_as_by_hand():
    """And three more: the weights that are hidden, those of the state, their total."""
    module = BahdanauAttention(Q, K, E)
    queries, keys, _ = tensors(module, torch.float32)
    memory = module.prepare(keys, lengths=LENGTHS)
    state = module.initial_state(memory)
    by_hand = ["mm", "add", "tanh", "mv", "where", "_softmax", "bmm"]
    with torch.no_grad(), Launches() as seen:
        module(queries[0], memory, state)
    assert sorted(seen.names) == sorted([*by_hand, "masked_fill", "clone", "add"])
    with Launches() as seen:
        context = module(queries[0], memory, state).context
    assert len(seen.names) == len(by_hand) + 4  # a query that sees nothing
    with Launches() as seen:
        torch.autograd.grad(context, [queries, *module.parameters()], torch.ones_like(context))
    assert len(seen.names) <= 17
