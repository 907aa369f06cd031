"""Wrong calls: one clear error that names the argument, what was given and what would work."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import regard
from regard import (
    Activation,
    Additive,
    Bilinear,
    Cosine,
    Dot,
    EngineRefused,
    GATv2,
    Gaussian,
    LowRank,
    Mask,
    Projected,
    attend,
    attention,
    explain,
    score,
)
from regard.stabilize import SoftCapped


def t(*shape: int, **options) -> Tensor:
    return torch.zeros(*shape, **options)


Q, K, V = t(2, 4, 5, 8), t(2, 4, 6, 8), t(2, 4, 6, 3)
BOOLS = torch.ones(5, 6, dtype=torch.bool)
INF, LONG = float("inf"), torch.zeros(1000)


def call(q=Q, k=K, v=V, s=None, **options) -> Callable[[], Tensor]:
    """A call of `attention` that has yet to happen."""
    return lambda: attention(q, k, v, s, **options)


def flat(s=None, **options) -> Callable[[], Tensor]:
    """The same without a head dim."""
    return call(Q[0], K[0], V[0], s, **options)


def keys(lengths, **options) -> Mask:
    return Mask.lengths(keys=torch.tensor(lengths), **options)


# Each row: a name, the call, its error, and what the message must hold, parted by "; ".
UNEQUAL = "query dim 8; key dim 6; Bilinear; LowRank; Projected"
TENSORS = [
    ("list", call([[1.0]]), TypeError, "query; tensor; [[1.0]]"),
    ("none", call(k=None), TypeError, "key; tensor; None"),
    ("integers", call(Q.long()), TypeError, "query; int64; query.float()"),
    ("bool", call(v=V.bool()), TypeError, "value; bool; value.float()"),
    ("complex", call(k=K.to(torch.complex64)), TypeError, "key; complex64"),
    ("1 dim", call(t(8)), ValueError, "query; (8,); unsqueeze"),
    ("0 dims", call(t(())), ValueError, "query; (); 2 dims"),
    ("dims differ", call(k=K[0]), ValueError, "key; 3 dims; (4, 6, 8); 4"),
    ("dtypes", call(k=K.half()), TypeError, "key; float16; float32; autocast"),
    ("value dtype", call(v=V.double()), TypeError, "value; float64; float32"),
    ("devices", call(k=K.to("meta")), ValueError, "key; meta; cpu"),
    ("value device", call(v=V.to("meta")), ValueError, "value; meta; cpu"),
    ("lengths", call(v=V[:, :, :5]), ValueError, "value; length 5; length 6"),
    ("batch", call(k=t(3, 4, 6, 8), v=t(3, 4, 6, 3)), ValueError, "broadcast; (2,); (3,)"),
    ("value batch", call(v=t(3, 4, 6, 3)), ValueError, "value; broadcast; (3,)"),
    ("key heads", call(k=K[:, :3]), ValueError, "key; 3 heads; 4 query heads; divi"),
    ("value heads", call(v=V[:, :3]), ValueError, "value; 3 heads; divi"),
    ("more key heads", call(Q[:, :2]), ValueError, "key; 4 heads; 2 query heads"),
    ("no key heads", call(k=K[:, :0]), ValueError, "key; 0 heads"),
    ("gaussian heads", call(k=K[:, :3], s="gaussian"), ValueError, "key; 3 heads"),
    ("gaussian batch", call(t(3, 4, 5, 8), s="gaussian"), ValueError, "broadcast; (2,); (3,)"),
    ("gaussian no heads", call(k=K[:, :0], s="gaussian"), ValueError, "key; 0 heads"),
    ("score heads", lambda: score(Q, K[:, :3]), ValueError, "key; 3 heads"),
    ("score batch", lambda: score(Q, t(3, 4, 6, 8)), ValueError, "(2,); (3,)"),
    ("score dtypes", lambda: score(Q, K.half()), TypeError, "key; float16"),
]
DIMS = [
    *(
        (f"{s} unequal", call(k=t(2, 4, 6, 6), s=s), ValueError, UNEQUAL)
        for s in (None, "dot", "scaled_dot", "cosine", "gaussian", Dot())
    ),
    ("bilinear query", call(s=Bilinear(6, 8, 4)), ValueError, "Bilinear; query dim 6; dim 8"),
    ("bilinear key", call(s=Bilinear(8, 6, 4)), ValueError, "Bilinear; key dim 6; dim 8"),
    ("low rank", call(s=LowRank(8, 6, 2, 4)), ValueError, "LowRank; key dim 6; dim 8"),
    ("additive", call(s=Additive(16, 4)), ValueError, "query dim 16; Projected(Additive"),
    ("gatv2", call(s=GATv2(16, 4)), ValueError, "query dim 16; Projected(GATv2"),
    ("keys", call(k=t(2, 4, 6, 6), s=Additive(8, 4)), ValueError, "key; 6; Projected"),
    ("projected", call(s=Projected(Dot(), 6, 8, width=4)), ValueError, "Projected; query dim 6"),
    ("bilinear heads", call(s=Bilinear(8, 8, 3)), ValueError, "Bilinear; 3; 4 heads"),
    ("additive heads", call(s=Additive(8, 3)), ValueError, "Additive; 3; 4 heads"),
    ("cosine heads", call(s=Cosine(3)), ValueError, "Cosine; 3 heads; 4"),
    ("gaussian heads", call(s=Gaussian(heads=3)), ValueError, "Gaussian; 3 heads; 4"),
    ("low rank heads", call(s=LowRank(8, 8, 2, 3)), ValueError, "LowRank; 3; 4 heads"),
    ("projected heads", call(s=Projected(Additive(4, 3), 8, 8)), ValueError, "3; 4 heads"),
    ("no head dim", flat(Bilinear(8, 8, 4)), ValueError, "Bilinear; 4 heads; unsqueeze"),
    ("score", lambda: score(Q[0], K[0], Bilinear(8, 8, 4)), ValueError, "4 heads; unsqueeze"),
]
SCORES = [
    ("unknown", call(s="nonsense"), ValueError, "score; nonsense; dot; cosine; gaussian"),
    ("near miss", call(s="cosin"), ValueError, "cosin; did you mean 'cosine'"),
    ("near miss of a class", call(s="aditive"), ValueError, "did you mean 'additive'"),
    ("case", call(s="Dot"), ValueError, "Dot; did you mean 'dot'"),
    ("additive", call(s="additive"), ValueError, "additive; Additive(hidden; Projected("),
    ("gatv2", call(s="gatv2"), ValueError, "gatv2; GATv2(hidden"),
    ("bilinear", call(s="bilinear"), ValueError, "Bilinear(query_dim, key_dim"),
    ("low_rank", call(s="low_rank"), ValueError, "LowRank(query_dim, key_dim, rank"),
    ("class", call(s=Dot), TypeError, "score; Dot; object"),
    ("additive class", call(s=Additive), TypeError, "score; Additive; object"),
    ("tensor", call(s=BOOLS), TypeError, "score; mask="),
    ("mask", call(s=Mask.causal()), TypeError, "score; mask="),
    ("function", call(s=lambda q, k: q), TypeError, "score; Score object"),
    ("module", call(s=torch.nn.Linear(2, 2)), TypeError, "score; Score object; Linear"),
    ("dtype", call(s=Bilinear(8, 8, 4).double()), TypeError, "weight; float64; score.to("),
    ("device", call(s=Bilinear(8, 8, 4).to("meta")), ValueError, "weight; meta; cpu; score.to("),
    ("two caps", call(s=SoftCapped(Dot(), 5.0), softcap=3.0), ValueError, "softcap; 3.0; 5.0"),
]
MASKS = [
    ("integers", call(mask=BOOLS.long()), TypeError, "mask; int64; True = attend; .bool()"),
    ("bytes", call(mask=BOOLS.byte()), TypeError, "mask; uint8; .bool()"),
    ("floats", call(mask=BOOLS.float()), TypeError, "mask; float32; bias="),
    ("list", call(mask=[[True]]), TypeError, "mask; [[True]]; boolean tensor"),
    ("string", call(mask="causal"), TypeError, "mask; 'causal'; Mask"),
    ("uncalled", call(mask=Mask.causal), TypeError, "mask; Mask"),
    ("true", call(mask=True), TypeError, "mask; True; boolean tensor"),
    ("1 dim", call(mask=BOOLS[0]), ValueError, "mask; (6,); Mask.lengths"),
    ("transposed", call(mask=BOOLS.mT), ValueError, "(6, 5); 5, 6; query length, key length"),
    ("3 dims", call(mask=BOOLS.expand(2, 5, 6)), ValueError, "3 dims; (2, 5, 6); mask[:, None]"),
    ("5 dims", call(mask=BOOLS.expand(1, 1, 1, 5, 6)), ValueError, "mask; 5 dims; 4"),
    ("4 dims for 3", flat(mask=BOOLS.expand(1, 1, 5, 6)), ValueError, "mask; 4 dims; 3"),
    ("heads", call(mask=BOOLS.expand(2, 3, 5, 6)), ValueError, "mask; 3 heads; 4"),
    ("batch", call(mask=BOOLS.expand(3, 4, 5, 6)), ValueError, "(3, 4, 5, 6); broadcast"),
    ("length too long", call(mask=keys([3, 7])), ValueError, "key lengths; 6; 7"),
    ("length negative", call(mask=keys([-1, 3])), ValueError, "key lengths; -1"),
    ("query length", call(mask=Mask.lengths(queries=[6, 3])), ValueError, "query lengths; 5; 6"),
    ("length batch", call(mask=keys([3, 3, 3])), ValueError, "key lengths; (3,); (2,)"),
    ("length heads", call(mask=keys([[1] * 4] * 2)), ValueError, "key lengths; (2, 4); heads"),
    ("unbatched", call(t(5, 8), t(6, 8), t(6, 3), mask=keys([3])), ValueError, "(1,); ()"),
    ("float lengths", lambda: keys([3.0]), TypeError, "keys; integer; float32"),
    ("bool lengths", lambda: keys([True]), TypeError, "keys; bool; Mask.dense"),
    ("no lengths", lambda: Mask.lengths(), ValueError, "keys=; queries="),
    ("keys alone", call(mask=Mask.causal() & keys([3, 6])), ValueError, "queries=; top_left"),
    ("alignment", lambda: Mask.causal("left"), ValueError, "left; top_left; bottom_right"),
    ("no alignment", lambda: Mask.window(1, alignment=None), ValueError, "None; top_left"),
    ("window float", lambda: Mask.window(left=1.5), TypeError, "left; integer; 1.5"),
    ("window bool", lambda: Mask.window(right=True), TypeError, "right; integer; True"),
    ("window negative", lambda: Mask.window(left=-1), ValueError, "left; -1"),
    ("window of nothing", lambda: Mask.window(), ValueError, "left=; right="),
    ("segments list", lambda: Mask.segments([0, 1]), TypeError, "segments; integer tensor"),
    ("segments floats", lambda: Mask.segments(t(3)), TypeError, "integer tensor; float32"),
    ("segments number", lambda: Mask.segments(torch.tensor(3)), ValueError, "segments; length"),
    ("segments length", call(mask=Mask.segments(t(5).long())), ValueError, "keys; 5; 6"),
    ("segments batch", call(mask=Mask.segments(t(3, 5).long())), ValueError, "(3,); (2,)"),
    ("and a tensor", lambda: Mask.causal() & BOOLS, TypeError, "Mask; Mask.dense"),
    ("and as a word", lambda: Mask.causal() and Mask.lengths(keys=3), TypeError, "&"),
    ("dense integers", lambda: Mask.dense(BOOLS.int()), TypeError, "int32; True = attend"),
]
OPTIONS = [
    ("bias bool", call(bias=BOOLS), TypeError, "bias; bool; mask="),
    ("bias integers", call(bias=BOOLS.long()), TypeError, "bias; int64; floating"),
    ("bias number", call(bias=0.5), TypeError, "bias; 0.5; tensor"),
    ("bias 1 dim", call(bias=t(6)), ValueError, "bias; (6,); unsqueeze"),
    ("bias shape", call(bias=t(6, 5)), ValueError, "bias; (6, 5); 5, 6"),
    ("bias 3 dims", call(bias=t(2, 5, 6)), ValueError, "bias; 3 dims; bias[:, None]"),
    ("bias heads", call(bias=t(2, 3, 5, 6)), ValueError, "bias; (2, 3, 5, 6); 3 heads; 4"),
    ("bias device", call(bias=t(5, 6, device="meta")), ValueError, "bias; meta; cpu"),
    ("bias Mask", call(bias=Mask.causal()), TypeError, "bias; Mask; mask="),
    ("sink number", call(sink=1.0), TypeError, "sink; tensor; 1.0"),
    ("sink integers", call(sink=torch.tensor([1, 2])), TypeError, "sink; floating"),
    ("sink heads", call(sink=t(3)), ValueError, "sink; (3,); (4,)"),
    ("sink dims", call(sink=t(4, 1)), ValueError, "sink; (4, 1); (4,)"),
    ("sink device", call(sink=t(4, device="meta")), ValueError, "sink; meta"),
    ("hard sink", call(sink=t(4), temperature=0), ValueError, "sink; temperature 0"),
    ("temperature negative", call(temperature=-1.0), ValueError, "temperature; -1.0; 0"),
    ("temperature nan", call(temperature=float("nan")), ValueError, "temperature; nan"),
    ("temperature inf", call(temperature=INF), ValueError, "temperature; inf"),
    ("temperature string", call(temperature="1"), TypeError, "temperature; '1'"),
    ("temperature none", call(temperature=None), TypeError, "temperature; None"),
    ("temperature integers", call(temperature=torch.tensor([1])), TypeError, "int64"),
    ("temperature heads", call(temperature=t(3)), ValueError, "temperature; (3,); (4,)"),
    ("temperature shape", call(temperature=t(2, 4, 6, 1)), ValueError, "(2, 4, 6, 1); 5"),
    ("temperature for keys", call(temperature=t(2, 4, 5, 6)), ValueError, "(2, 4, 5, 6)"),
    ("temperature device", call(temperature=t(4, device="meta")), ValueError, "meta"),
    ("softcap zero", call(softcap=0), ValueError, "softcap; 0; positive"),
    ("softcap negative", call(softcap=-1.0), ValueError, "softcap; -1.0"),
    ("softcap inf", call(softcap=INF), ValueError, "softcap; inf"),
    ("softcap tensor", call(softcap=t(4)), ValueError, "softcap; positive number"),
    ("softcap bool", call(softcap=True), ValueError, "softcap; True"),
    ("dropout one", call(dropout=1.0), ValueError, "dropout; 1.0"),
    ("dropout negative", call(dropout=-0.1), ValueError, "dropout; -0.1"),
    ("dropout percent", call(dropout=10), ValueError, "dropout; 10; probability"),
    ("dropout none", call(dropout=None), ValueError, "dropout; None"),
    ("error", call(error=-1e-3), ValueError, "error; -0.001"),
    ("want", lambda: attend(Q, K, V, want={"entropi"}), ValueError, "want; 'entropy'; lse"),
    ("want other", lambda: attend(Q, K, V, want=["median"]), ValueError, "median; jacobian"),
    ("want string", lambda: attend(Q, K, V, want="logsumexp"), ValueError, "logsumexp; lse"),
    ("hard lse", lambda: attend(Q, K, V, want="lse", temperature=0), ValueError, "temperature 0"),
    ("engine", call(engine="flash"), ValueError, "engine; flash; sdpa; cpu; reference"),
    ("engine near miss", call(engine="spda"), ValueError, "spda; did you mean 'sdpa'"),
    ("engine object", call(engine=1), ValueError, "engine; 1; sdpa"),
    ("explain", lambda: explain(Q, K, V, engine="flash"), ValueError, "engine; flash; sdpa"),
]
BUILDING = [
    ("hidden zero", lambda: Additive(0), ValueError, "hidden; 0"),
    ("hidden float", lambda: Additive(2.5), ValueError, "hidden; 2.5; integer"),
    ("hidden whole float", lambda: Additive(16.0), ValueError, "hidden; 16.0; integer"),
    ("hidden string", lambda: Additive("16"), ValueError, "hidden; '16'"),
    ("heads zero", lambda: Additive(4, 0), ValueError, "heads; 0"),
    ("heads negative", lambda: Bilinear(4, 4, -1), ValueError, "heads; -1"),
    ("heads float", lambda: Bilinear(4, 4, 2.0), ValueError, "heads; 2.0; integer"),
    ("cosine heads zero", lambda: Cosine(0), ValueError, "heads; 0"),
    ("cosine heads negative", lambda: Cosine(-1), ValueError, "heads; -1"),
    ("gaussian heads zero", lambda: Gaussian(heads=0), ValueError, "heads; 0"),
    ("cosine scale", lambda: Cosine(scale=-1.0), ValueError, "scale; -1.0"),
    ("cosine eps", lambda: Cosine(eps=-1e-3), ValueError, "eps; -0.001"),
    ("bandwidth", lambda: Gaussian(bandwidth=0), ValueError, "bandwidth; 0"),
    ("rank", lambda: LowRank(4, 4, 0), ValueError, "rank; 0"),
    ("key heads", lambda: LowRank(4, 4, 2, 4, key_heads=3), ValueError, "key_heads=3; heads=4"),
    ("key heads -1", lambda: LowRank(4, 4, 2, 4, key_heads=-1), ValueError, "key_heads; -1"),
    ("slope", lambda: GATv2(4, negative_slope="0.1"), ValueError, "negative_slope; '0.1'"),
    ("no width", lambda: Projected(Dot(), 4, 4), ValueError, "width=; Dot"),
    ("projected class", lambda: Projected(Dot, 4, 4, width=2), TypeError, "Score object; Dot"),
    ("projected name", lambda: Projected("dot", 4, 4, width=2), TypeError, "Score object; 'dot'"),
    ("heads", lambda: Projected(Additive(4, 2), 4, 4, heads=3), ValueError, "heads=3; 2 heads"),
    ("shared", lambda: Projected(Additive(4, 4), 4, 4, key_heads=3), ValueError, "key_heads=3"),
    ("other width", lambda: Projected(Additive(16), 4, 4, width=8), ValueError, "width; 8; 16"),
    ("activation", lambda: Activation("tanh", torch.sin, torch.cos), ValueError, "another name"),
]
GROUPS = {
    "tensors": TENSORS,
    "dims": DIMS,
    "score": SCORES,
    "mask": MASKS,
    "option": OPTIONS,
    "building": BUILDING,
}
ALL = {f"{group}: {row[0]}": row[1:] for group, rows in GROUPS.items() for row in rows}


@pytest.mark.parametrize("name", ALL)
def test_wrong_call(name):
    wrong, error, words = ALL[name]
    with pytest.raises(error) as caught:
        wrong()
    message = str(caught.value)
    missing = [word for word in words.split("; ") if word not in message]
    assert not missing, f"{missing} not in: {message}"
    assert type(caught.value) is error, f"{type(caught.value)}: {message}"


def test_no_case_hides_another():
    assert len(ALL) == sum(len(rows) for rows in GROUPS.values())


REFUSED = {
    "pairwise": (Additive(8, 4), {}, "pairwise"),
    "softcap": (None, {"softcap": 5.0}, "soft cap"),
    "sink": (None, {"sink": t(4)}, "sink"),
    "temperatures": (None, {"temperature": torch.ones(4)}, "temperature"),
    "hard": (None, {"temperature": 0.0}, "temperature 0"),
    "dropout": (None, {"dropout": 0.1}, "dropout"),
    "bias gradient": (None, {"bias": t(5, 6).requires_grad_()}, "gradient of a bias"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_an_engine_by_name_never_falls_back(name):
    """It raises with every reason, and `explain` shows the same without raising."""
    scorer, options, reason = REFUSED[name]
    with pytest.raises(EngineRefused, match=re.escape(reason)) as caught:
        attention(Q, K, V, scorer, engine="sdpa", **options)
    refused = caught.value
    assert refused.engine == "sdpa" and isinstance(refused, ValueError)
    assert any(reason in line for line in refused.reasons)
    for line in refused.reasons:
        assert line in str(refused)
    assert "engine=None" in str(refused) and "explain" in str(refused)
    plan = explain(Q, K, V, scorer, engine="sdpa", **options)
    assert plan.engine is None
    assert plan.refused["sdpa"] == refused.reasons
    # Small as it is; but "plain" has no soft cap and the like.
    assert explain(Q, K, V, scorer, **options).engine == ("plain" if name == "pairwise" else "cpu")


def test_a_refusal_lists_every_reason():
    with pytest.raises(EngineRefused) as caught:
        attend(Q, K, V, Additive(8, 4), softcap=5.0, sink=t(4), want="lse", engine="sdpa")
    assert len(caught.value.reasons) == 4
    assert "lse" in str(caught.value)


def test_sdpa_refuses_a_dense_mask_above_its_limit():
    """It would copy the mask to floats; the message says how large and what the limit is."""
    x = t(1, 1, 4097, 1)
    mask = Mask.causal() & Mask.window(left=4)
    with pytest.raises(EngineRefused, match=r"16,785,409.*16,777,216"):
        attention(x, x, x, mask=mask, engine="sdpa")
    assert explain(x, x, x, mask=mask).engine == "cpu"
    assert explain(x, x, x, mask=Mask.causal()).engine == "sdpa"


def test_the_cpu_engine_refuses_other_devices():
    """The meta device stands for any that is not the CPU."""
    with pytest.raises(EngineRefused, match=r"meta.*CPU"):
        attention(Q.to("meta"), K.to("meta"), V.to("meta"), engine="cpu")


def test_shapes_can_be_worked_out_on_the_meta_device():
    tensors = (Q.to("meta"), K.to("meta"), V.to("meta"))
    assert attention(*tensors, mask=Mask.causal()).shape == (2, 4, 5, 3)
    assert attention(*tensors, Additive(8, 4).to("meta")).shape == (2, 4, 5, 3)
    assert score(*tensors[:2], Additive(8, 4).to("meta")).shape == (2, 4, 5, 6)


LONG_ARGUMENTS = {
    "segments": lambda: Mask.segments(LONG),
    "sink": call(sink=LONG.long()),
    "softcap": call(softcap=LONG),
    "score": call(s=LONG),
    "error": call(error=LONG),
    "dropout": call(dropout=LONG),
}


@pytest.mark.parametrize("name", LONG_ARGUMENTS)
def test_an_error_does_not_print_a_whole_tensor(name):
    with pytest.raises((TypeError, ValueError)) as caught:
        LONG_ARGUMENTS[name]()
    assert len(str(caught.value)) < 250, str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"mask": "causal"}, TypeError, r"Mask\.causal\(\)"),
        ({"temperature": torch.tensor([1.0, -2.0])}, ValueError, "0 or more everywhere, got -2"),
        ({"temperature": 1e-39}, ValueError, "overflow the logits"),
        ({"temperature": torch.ones(1, 2, 3, 5)}, ValueError, "heads, query length, 1"),
        ({"want": "logsumexp"}, ValueError, "did you mean 'lse'"),
        ({"temperature": 0.0}, ValueError, "lse would be infinite"),
    ],
)
def test_the_error_says_what_would_work(arguments, error, message):
    q = torch.randn(1, 2, 3, 4)
    with pytest.raises(error, match=message):
        regard.attend(q, q, q, **arguments)


def test_complex_inputs_are_not_told_to_lose_their_imaginary_part_silently():
    q = torch.randn(3, 4)
    with pytest.raises(TypeError, match=r"query\.real or query\.abs"):
        regard.attention(q.cfloat(), q, q)


def test_numbers_of_numpy_are_numbers():
    numpy = pytest.importorskip("numpy")
    q = torch.randn(1, 2, 3, 4)
    ours = regard.attention(q, q, q, temperature=numpy.float32(0.5), softcap=numpy.float64(3))
    torch.testing.assert_close(ours, regard.attention(q, q, q, temperature=0.5, softcap=3.0))


def test_a_temperature_may_be_mapped_over():
    q = torch.randn(1, 2, 3, 4)
    out = torch.vmap(lambda t: regard.attention(q, q, q, temperature=t))(torch.tensor([0.5, 2.0]))
    torch.testing.assert_close(out[0], regard.attention(q, q, q, temperature=0.5))


def test_explain_on_meta_tensors_says_that_the_error_is_not_known():
    q = torch.empty(1, 2, 3, 4, device="meta")
    assert "not known" in str(regard.explain(q, q, q))


def test_a_weight_normalised_v_of_zero_scores_zero():
    score = regard.Additive(4, 2, weight_norm=True)
    torch.nn.init.zeros_(score.v)
    q = torch.randn(1, 2, 3, 4)
    logits = regard.score(q, q, score)
    logits.sum().backward()
    assert not logits.any() and score.v.grad.isfinite().all()
