"""Wrong calls: one clear error that names the argument, what was given and what would work."""

from __future__ import annotations

import re

import pytest
import torch

import regard
from regard import (
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


def t(*shape: int, **options) -> torch.Tensor:
    return torch.zeros(*shape, **options)


def self_attention(*shape: int) -> tuple[torch.Tensor, ...]:
    return t(*shape), t(*shape), t(*shape)


Q, K, V = t(2, 4, 5, 8), t(2, 4, 6, 8), t(2, 4, 6, 3)
BOOLS = torch.ones(5, 6, dtype=torch.bool)


class Case:
    """A wrong call, the type of its error, and words that its message must hold in any order."""

    def __init__(self, name, call, error, *words):
        self.name, self.call, self.error, self.words = name, call, error, words


TENSORS = [
    Case("list", lambda: attention([[1.0]], K, V), TypeError, "query", "tensor", "[[1.0]]"),
    Case("none", lambda: attention(Q, None, V), TypeError, "key", "tensor", "None"),
    Case("integers", lambda: attention(Q.long(), K, V), TypeError, "query", "int64", "query.float()"),
    Case("bool", lambda: attention(Q, K, V.bool()), TypeError, "value", "bool", "value.float()"),
    Case("complex", lambda: attention(Q, K.to(torch.complex64), V), TypeError, "key", "complex64"),
    Case("1 dim", lambda: attention(t(8), K, V), ValueError, "query", "(8,)", "unsqueeze"),
    Case("0 dims", lambda: attention(t(()), K, V), ValueError, "query", "()", "2 dims"),
    Case("dims differ", lambda: attention(Q, K[0], V), ValueError, "key", "3 dims", "(4, 6, 8)", "4"),
    Case("dtypes", lambda: attention(Q, K.half(), V), TypeError, "key", "float16", "float32", "autocast"),
    Case("value dtype", lambda: attention(Q, K, V.double()), TypeError, "value", "float64", "float32"),
    Case("devices", lambda: attention(Q, K.to("meta"), V), ValueError, "key", "meta", "cpu"),
    Case("value device", lambda: attention(Q, K, V.to("meta")), ValueError, "value", "meta", "cpu"),
    Case("lengths", lambda: attention(Q, K, V[:, :, :5]), ValueError, "value", "length 5", "length 6"),
    Case("batch", lambda: attention(Q, t(3, 4, 6, 8), t(3, 4, 6, 3)), ValueError, "broadcast", "(2,)", "(3,)"),
    Case("value batch", lambda: attention(Q, K, t(3, 4, 6, 3)), ValueError, "value", "broadcast", "(3,)"),
    Case("key heads", lambda: attention(Q, K[:, :3], V), ValueError, "key", "3 heads", "4 query heads", "divi"),
    Case("value heads", lambda: attention(Q, K, V[:, :3]), ValueError, "value", "3 heads", "divi"),
    Case("more key heads", lambda: attention(Q[:, :2], K, V), ValueError, "key", "4 heads", "2 query heads"),
    Case("no key heads", lambda: attention(Q, K[:, :0], V), ValueError, "key", "0 heads"),
    Case("gaussian heads", lambda: attention(Q, K[:, :3], V, "gaussian"), ValueError, "key", "3 heads"),
    Case(
        "gaussian batch",
        lambda: attention(Q, t(3, 4, 6, 8), t(3, 4, 6, 3), "gaussian"),
        ValueError,
        "broadcast",
        "(2,)",
        "(3,)",
    ),
    Case("gaussian no heads", lambda: attention(Q, K[:, :0], V, "gaussian"), ValueError, "key", "0 heads"),
    Case("score heads", lambda: score(Q, K[:, :3]), ValueError, "key", "3 heads"),
    Case("score batch", lambda: score(Q, t(3, 4, 6, 8)), ValueError, "(2,)", "(3,)"),
    Case("score dtypes", lambda: score(Q, K.half()), TypeError, "key", "float16"),
]

DIMS = [
    Case(
        f"{name} d_q != d_k",
        lambda s=s: attention(t(2, 4, 5, 8), t(2, 4, 6, 6), V, s),
        ValueError,
        "query dim 8",
        "key dim 6",
        "Bilinear",
        "LowRank",
        "Projected",
    )
    for name, s in {
        "default": None,
        "dot": "dot",
        "scaled_dot": "scaled_dot",
        "cosine": "cosine",
        "gaussian": "gaussian",
        "Dot()": Dot(),
    }.items()
] + [
    Case("bilinear query", lambda: attention(Q, K, V, Bilinear(6, 8, 4)), ValueError, "Bilinear", "query dim 6", "dim 8"),
    Case("bilinear key", lambda: attention(Q, K, V, Bilinear(8, 6, 4)), ValueError, "Bilinear", "key dim 6", "dim 8"),
    Case("low rank", lambda: attention(Q, K, V, LowRank(8, 6, 2, 4)), ValueError, "LowRank", "key dim 6", "dim 8"),
    Case("additive", lambda: attention(Q, K, V, Additive(16, 4)), ValueError, "Additive", "query dim 16", "Projected(Additive"),
    Case("gatv2", lambda: attention(Q, K, V, GATv2(16, 4)), ValueError, "GATv2", "query dim 16", "Projected(GATv2"),
    Case("additive keys", lambda: attention(Q, t(2, 4, 6, 6), V, Additive(8, 4)), ValueError, "Additive", "key", "6", "Projected"),
    Case("projected", lambda: attention(Q, K, V, Projected(Dot(), 6, 8, width=4, heads=4)), ValueError, "Projected", "query dim 6"),
    Case("bilinear heads", lambda: attention(Q, K, V, Bilinear(8, 8, 3)), ValueError, "Bilinear", "3", "4 heads"),
    Case("additive heads", lambda: attention(Q, K, V, Additive(8, 3)), ValueError, "Additive", "3", "4 heads"),
    Case("cosine heads", lambda: attention(Q, K, V, Cosine(3)), ValueError, "Cosine", "3 heads", "4"),
    Case("gaussian heads", lambda: attention(Q, K, V, Gaussian(heads=3)), ValueError, "Gaussian", "3 heads", "4"),
    Case("low rank heads", lambda: attention(Q, K, V, LowRank(8, 8, 2, 3)), ValueError, "LowRank", "3", "4 heads"),
    Case("projected heads", lambda: attention(Q, K, V, Projected(Dot(), 8, 8, width=4, heads=3)), ValueError, "Projected", "3", "4 heads"),
    Case("heads without head dim", lambda: attention(Q[0], K[0], V[0], Bilinear(8, 8, 4)), ValueError, "Bilinear", "4 heads", "unsqueeze"),
    Case("score without head dim", lambda: score(Q[0], K[0], Bilinear(8, 8, 4)), ValueError, "Bilinear", "4 heads", "unsqueeze"),
]

SCORES = [
    Case("unknown", lambda: attention(Q, K, V, "nonsense"), ValueError, "score", "nonsense", "dot", "cosine", "gaussian"),
    Case("near miss", lambda: attention(Q, K, V, "cosin"), ValueError, "cosin", "did you mean 'cosine'"),
    Case("near miss of a class", lambda: attention(Q, K, V, "aditive"), ValueError, "did you mean 'additive'"),
    Case("case", lambda: attention(Q, K, V, "Dot"), ValueError, "Dot", "did you mean 'dot'"),
    Case("additive", lambda: attention(Q, K, V, "additive"), ValueError, "additive", "Additive(hidden", "Projected("),
    Case("gatv2", lambda: attention(Q, K, V, "gatv2"), ValueError, "gatv2", "GATv2(hidden"),
    Case("bilinear", lambda: attention(Q, K, V, "bilinear"), ValueError, "Bilinear(query_dim, key_dim"),
    Case("low_rank", lambda: attention(Q, K, V, "low_rank"), ValueError, "LowRank(query_dim, key_dim, rank"),
    Case("class", lambda: attention(Q, K, V, Dot), TypeError, "score", "Dot", "object"),
    Case("additive class", lambda: attention(Q, K, V, Additive), TypeError, "score", "Additive", "object"),
    Case("tensor", lambda: attention(Q, K, V, BOOLS), TypeError, "score", "mask="),
    Case("function", lambda: attention(Q, K, V, lambda q, k: q), TypeError, "score", "Score object"),
    Case("module", lambda: attention(Q, K, V, torch.nn.Linear(2, 2)), TypeError, "score", "Score object", "Linear"),
    Case("mask as score", lambda: attention(Q, K, V, Mask.causal()), TypeError, "score", "mask="),
    Case("parameter dtype", lambda: attention(Q, K, V, Bilinear(8, 8, 4).double()), TypeError, "weight", "float64", "float32", "score.to("),
    Case("parameter device", lambda: attention(Q, K, V, Bilinear(8, 8, 4).to("meta")), ValueError, "weight", "meta", "cpu", "score.to("),
    Case("two soft caps", lambda: attention(Q, K, V, SoftCapped(Dot(), 5.0), softcap=3.0), ValueError, "softcap", "3.0", "5.0"),
]

MASKS = [
    Case("integers", lambda: attention(Q, K, V, mask=BOOLS.long()), TypeError, "mask", "int64", "True = attend", ".bool()"),
    Case("bytes", lambda: attention(Q, K, V, mask=BOOLS.byte()), TypeError, "mask", "uint8", ".bool()"),
    Case("floats", lambda: attention(Q, K, V, mask=BOOLS.float()), TypeError, "mask", "float32", "bias="),
    Case("list", lambda: attention(Q, K, V, mask=[[True]]), TypeError, "mask", "[[True]]", "boolean tensor"),
    Case("string", lambda: attention(Q, K, V, mask="causal"), TypeError, "mask", "'causal'", "Mask"),
    Case("causal uncalled", lambda: attention(Q, K, V, mask=Mask.causal), TypeError, "mask", "Mask"),
    Case("true", lambda: attention(Q, K, V, mask=True), TypeError, "mask", "True", "boolean tensor"),
    Case("1 dim", lambda: attention(Q, K, V, mask=BOOLS[0]), ValueError, "mask", "(6,)", "Mask.lengths"),
    Case("transposed", lambda: attention(Q, K, V, mask=BOOLS.mT), ValueError, "mask", "(6, 5)", "5, 6", "query length, key length"),
    Case("3 dims for 4", lambda: attention(Q, K, V, mask=BOOLS.expand(2, 5, 6)), ValueError, "mask", "3 dims", "(2, 5, 6)", "mask[:, None]"),
    Case("5 dims for 4", lambda: attention(Q, K, V, mask=BOOLS.expand(1, 1, 1, 5, 6)), ValueError, "mask", "5 dims", "4"),
    Case("4 dims for 3", lambda: attention(Q[0], K[0], V[0], mask=BOOLS.expand(1, 1, 5, 6)), ValueError, "mask", "4 dims", "3"),
    Case("heads", lambda: attention(Q, K, V, mask=BOOLS.expand(2, 3, 5, 6)), ValueError, "mask", "3 heads", "4 query heads"),
    Case("batch", lambda: attention(Q, K, V, mask=BOOLS.expand(3, 4, 5, 6)), ValueError, "mask", "(3, 4, 5, 6)", "broadcast"),
    Case("length too long", lambda: attention(Q, K, V, mask=Mask.lengths(keys=torch.tensor([3, 7]))), ValueError, "key lengths", "6", "7"),
    Case("length negative", lambda: attention(Q, K, V, mask=Mask.lengths(keys=torch.tensor([-1, 3]))), ValueError, "key lengths", "-1"),
    Case("query length", lambda: attention(Q, K, V, mask=Mask.lengths(queries=torch.tensor([6, 3]))), ValueError, "query lengths", "5", "6"),
    Case("length batch", lambda: attention(Q, K, V, mask=Mask.lengths(keys=torch.tensor([3, 3, 3]))), ValueError, "key lengths", "(3,)", "(2,)"),
    Case("length heads", lambda: attention(Q, K, V, mask=Mask.lengths(keys=torch.ones(2, 4).long())), ValueError, "key lengths", "(2, 4)", "heads"),
    Case("lengths unbatched", lambda: attention(Q[0, 0], K[0, 0], V[0, 0], mask=Mask.lengths(keys=[3])), ValueError, "key lengths", "(1,)", "()"),
    Case("float lengths", lambda: Mask.lengths(keys=torch.tensor([3.0])), TypeError, "keys", "integer", "float32"),
    Case("bool lengths", lambda: Mask.lengths(keys=BOOLS), TypeError, "keys", "bool", "Mask.dense"),
    Case("no lengths", lambda: Mask.lengths(), ValueError, "keys=", "queries="),
    Case("key lengths alone", lambda: attention(Q, K, V, mask=Mask.causal() & Mask.lengths(keys=[3, 6])), ValueError, "query lengths", "queries=", "top_left"),
    Case("alignment", lambda: Mask.causal("left"), ValueError, "alignment", "left", "top_left", "bottom_right"),
    Case("window alignment", lambda: Mask.window(1, alignment=None), ValueError, "alignment", "None", "top_left"),
    Case("window float", lambda: Mask.window(left=1.5), TypeError, "left", "integer", "1.5"),
    Case("window bool", lambda: Mask.window(right=True), TypeError, "right", "integer", "True"),
    Case("window negative", lambda: Mask.window(left=-1), ValueError, "left", "-1"),
    Case("window of nothing", lambda: Mask.window(), ValueError, "left=", "right="),
    Case("segments list", lambda: Mask.segments([0, 0, 1]), TypeError, "segments", "integer tensor"),
    Case("segments floats", lambda: Mask.segments(torch.zeros(3)), TypeError, "segments", "integer tensor", "float32"),
    Case("segments number", lambda: Mask.segments(torch.tensor(3)), ValueError, "segments", "length"),
    Case("segments length", lambda: attention(Q, K, V, mask=Mask.segments(torch.zeros(5).long())), ValueError, "keys", "5", "6"),
    Case("segments batch", lambda: attention(Q, K, V, mask=Mask.segments(torch.zeros(3, 5).long(), torch.zeros(3, 6).long())), ValueError, "segments", "(3,)", "(2,)"),
    Case("and a tensor", lambda: Mask.causal() & BOOLS, TypeError, "Mask", "Mask.dense"),
    Case("and of words", lambda: Mask.causal() and Mask.lengths(keys=3), TypeError, "&"),
    Case("dense integers", lambda: Mask.dense(BOOLS.int()), TypeError, "int32", "True = attend"),
]

OPTIONS = [
    Case("bias bool", lambda: attention(Q, K, V, bias=BOOLS), TypeError, "bias", "bool", "mask="),
    Case("bias integers", lambda: attention(Q, K, V, bias=BOOLS.long()), TypeError, "bias", "int64", "floating"),
    Case("bias number", lambda: attention(Q, K, V, bias=0.5), TypeError, "bias", "float", "tensor"),
    Case("bias 1 dim", lambda: attention(Q, K, V, bias=t(6)), ValueError, "bias", "(6,)", "unsqueeze"),
    Case("bias shape", lambda: attention(Q, K, V, bias=t(6, 5)), ValueError, "bias", "(6, 5)", "5, 6"),
    Case("bias 3 dims", lambda: attention(Q, K, V, bias=t(2, 5, 6)), ValueError, "bias", "3 dims", "bias[:, None]"),
    Case("bias heads", lambda: attention(Q, K, V, bias=t(2, 3, 5, 6)), ValueError, "bias", "(2, 3, 5, 6)", "4, 5, 6"),
    Case("bias device", lambda: attention(Q, K, V, bias=t(5, 6, device="meta")), ValueError, "bias", "meta", "cpu"),
    Case("bias Mask", lambda: attention(Q, K, V, bias=Mask.causal()), TypeError, "bias", "Mask", "mask="),
    Case("sink number", lambda: attention(Q, K, V, sink=1.0), TypeError, "sink", "tensor", "1.0"),
    Case("sink integers", lambda: attention(Q, K, V, sink=torch.tensor([1, 2])), TypeError, "sink", "floating"),
    Case("sink heads", lambda: attention(Q, K, V, sink=t(3)), ValueError, "sink", "(3,)", "(4,)"),
    Case("sink dims", lambda: attention(Q, K, V, sink=t(4, 1)), ValueError, "sink", "(4, 1)", "(4,)"),
    Case("sink device", lambda: attention(Q, K, V, sink=t(4, device="meta")), ValueError, "sink", "meta"),
    Case("sink at temperature 0", lambda: attention(Q, K, V, sink=t(4), temperature=0), ValueError, "sink", "temperature 0"),
    Case("temperature negative", lambda: attention(Q, K, V, temperature=-1.0), ValueError, "temperature", "-1.0", "0"),
    Case("temperature nan", lambda: attention(Q, K, V, temperature=float("nan")), ValueError, "temperature", "nan"),
    Case("temperature inf", lambda: attention(Q, K, V, temperature=float("inf")), ValueError, "temperature", "inf"),
    Case("temperature string", lambda: attention(Q, K, V, temperature="1"), TypeError, "temperature", "'1'"),
    Case("temperature none", lambda: attention(Q, K, V, temperature=None), TypeError, "temperature", "None"),
    Case("temperature integers", lambda: attention(Q, K, V, temperature=torch.tensor([1])), TypeError, "temperature", "int64"),
    Case("temperature heads", lambda: attention(Q, K, V, temperature=t(3)), ValueError, "temperature", "(3,)", "(4,)"),
    Case("temperature shape", lambda: attention(Q, K, V, temperature=t(2, 4, 6, 1)), ValueError, "temperature", "(2, 4, 6, 1)", "5"),
    Case("temperature for keys", lambda: attention(Q, K, V, temperature=t(2, 4, 5, 6)), ValueError, "temperature", "(2, 4, 5, 6)"),
    Case("temperature device", lambda: attention(Q, K, V, temperature=t(4, device="meta")), ValueError, "temperature", "meta"),
    Case("softcap zero", lambda: attention(Q, K, V, softcap=0), ValueError, "softcap", "0", "positive"),
    Case("softcap negative", lambda: attention(Q, K, V, softcap=-1.0), ValueError, "softcap", "-1.0"),
    Case("softcap inf", lambda: attention(Q, K, V, softcap=float("inf")), ValueError, "softcap", "inf"),
    Case("softcap tensor", lambda: attention(Q, K, V, softcap=t(4)), ValueError, "softcap", "positive number"),
    Case("softcap bool", lambda: attention(Q, K, V, softcap=True), ValueError, "softcap", "True"),
    Case("dropout one", lambda: attention(Q, K, V, dropout=1.0), ValueError, "dropout", "1.0"),
    Case("dropout negative", lambda: attention(Q, K, V, dropout=-0.1), ValueError, "dropout", "-0.1"),
    Case("dropout percent", lambda: attention(Q, K, V, dropout=10), ValueError, "dropout", "10", "probability"),
    Case("dropout none", lambda: attention(Q, K, V, dropout=None), ValueError, "dropout", "None"),
    Case("error", lambda: attention(Q, K, V, error=-1e-3), ValueError, "error", "-0.001"),
    Case("want", lambda: attend(Q, K, V, want={"entropi"}), ValueError, "want", "entropi", "did you mean 'entropy'", "lse"),
    Case("want unknown", lambda: attend(Q, K, V, want=["median"]), ValueError, "want", "median", "jacobian"),
    Case("want string", lambda: attend(Q, K, V, want="logsumexp"), ValueError, "want", "logsumexp", "lse"),
    Case("want lse hard", lambda: attend(Q, K, V, want="lse", temperature=0), ValueError, "lse", "temperature 0"),
    Case("engine", lambda: attention(Q, K, V, engine="flash"), ValueError, "engine", "flash", "sdpa", "cpu", "reference"),
    Case("engine near miss", lambda: attention(Q, K, V, engine="spda"), ValueError, "spda", "did you mean 'sdpa'"),
    Case("engine object", lambda: attention(Q, K, V, engine=1), ValueError, "engine", "1", "sdpa"),
    Case("explain engine", lambda: explain(Q, K, V, engine="flash"), ValueError, "engine", "flash", "sdpa"),
]

BUILDING = [
    Case("hidden zero", lambda: Additive(0), ValueError, "hidden", "0"),
    Case("hidden float", lambda: Additive(2.5), ValueError, "hidden", "2.5", "integer"),
    Case("hidden whole float", lambda: Additive(16.0), ValueError, "hidden", "16.0", "integer"),
    Case("hidden string", lambda: Additive("16"), ValueError, "hidden", "'16'"),
    Case("heads zero", lambda: Additive(4, 0), ValueError, "heads", "0"),
    Case("heads negative", lambda: Bilinear(4, 4, -1), ValueError, "heads", "-1"),
    Case("heads float", lambda: Bilinear(4, 4, 2.0), ValueError, "heads", "2.0", "integer"),
    Case("cosine heads zero", lambda: Cosine(0), ValueError, "heads", "0"),
    Case("cosine heads negative", lambda: Cosine(-1), ValueError, "heads", "-1"),
    Case("gaussian heads zero", lambda: Gaussian(heads=0), ValueError, "heads", "0"),
    Case("cosine scale", lambda: Cosine(scale=-1.0), ValueError, "scale", "-1.0"),
    Case("cosine eps", lambda: Cosine(eps=-1e-3), ValueError, "eps", "-0.001"),
    Case("bandwidth", lambda: Gaussian(bandwidth=0), ValueError, "bandwidth", "0"),
    Case("rank", lambda: LowRank(4, 4, 0), ValueError, "rank", "0"),
    Case("key heads", lambda: LowRank(4, 4, 2, heads=4, key_heads=3), ValueError, "key_heads=3", "heads=4"),
    Case("key heads negative", lambda: LowRank(4, 4, 2, heads=4, key_heads=-1), ValueError, "key_heads", "-1"),
    Case("slope", lambda: GATv2(4, negative_slope=-0.1), ValueError, "negative_slope", "-0.1"),
    Case("projected width", lambda: Projected(Dot(), 4, 4), ValueError, "width=", "Dot"),
    Case("projected class", lambda: Projected(Dot, 4, 4, width=2), TypeError, "Score object", "Dot"),
    Case("projected name", lambda: Projected("dot", 4, 4, width=2), TypeError, "Score object", "'dot'"),
    Case("projected heads", lambda: Projected(Additive(4, 2), 4, 4, heads=3), ValueError, "heads=3", "2 heads"),
    Case("projected key heads", lambda: Projected(Additive(4, 4), 4, 4, key_heads=3), ValueError, "key_heads=3"),
    Case("projected other width", lambda: Projected(Additive(16), 4, 4, width=8), ValueError, "width", "8", "16"),
    Case("activation twice", lambda: regard.Activation("tanh", torch.sin, torch.cos), ValueError, "tanh", "another name"),
]

ALL = {
    f"{group}: {case.name}": case
    for group, cases in {
        "tensors": TENSORS,
        "dims": DIMS,
        "score": SCORES,
        "mask": MASKS,
        "option": OPTIONS,
        "building": BUILDING,
    }.items()
    for case in cases
}


@pytest.mark.parametrize("name", ALL)
def test_wrong_call(name):
    case = ALL[name]
    with pytest.raises(case.error) as caught:
        case.call()
    message = str(caught.value)
    missing = [word for word in case.words if word not in message]
    assert not missing, f"{missing} not in: {message}"
    assert type(caught.value) is case.error, f"{type(caught.value)}: {message}"


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
    assert explain(Q, K, V, scorer, **options).engine == "cpu"


def test_a_refusal_lists_every_reason():
    with pytest.raises(EngineRefused) as caught:
        attend(Q, K, V, Additive(8, 4), softcap=5.0, sink=t(4), want="lse", engine="sdpa")
    assert len(caught.value.reasons) == 4
    assert "lse" in str(caught.value)


def test_sdpa_refuses_a_dense_mask_above_its_limit():
    """It would copy the mask to floats; the message says how large and what the limit is."""
    length = 4097
    q, k, v = self_attention(1, 1, length, 1)
    mask = Mask.causal() & Mask.window(left=4)
    with pytest.raises(EngineRefused, match=r"16,785,409.*16,777,216"):
        attention(q, k, v, mask=mask, engine="sdpa")
    assert explain(q, k, v, mask=mask).engine == "cpu"
    assert explain(q, k, v, mask=Mask.causal()).engine == "sdpa"


def test_the_cpu_engine_refuses_other_devices():
    """The meta device stands for any that is not the CPU."""
    tensors = (Q.to("meta"), K.to("meta"), V.to("meta"))
    with pytest.raises(EngineRefused, match=r"meta.*CPU"):
        attention(*tensors, engine="cpu")


def test_shapes_can_be_worked_out_on_the_meta_device():
    tensors = (Q.to("meta"), K.to("meta"), V.to("meta"))
    assert attention(*tensors, mask=Mask.causal()).shape == (2, 4, 5, 3)
    assert attention(*tensors, Additive(8, 4).to("meta")).shape == (2, 4, 5, 3)
    assert score(*tensors[:2], Additive(8, 4).to("meta")).shape == (2, 4, 5, 6)


def test_an_error_is_short():
    """A message that prints a whole tensor hides what it says."""
    long = torch.zeros(1000)
    for call in (
        lambda: Mask.segments(long),
        lambda: attention(Q, K, V, sink=long.long()),
        lambda: attention(Q, K, V, softcap=long),
        lambda: attention(Q, K, V, long),
        lambda: attention(Q, K, V, error=long),
        lambda: attention(Q, K, V, dropout=long),
    ):
        with pytest.raises((TypeError, ValueError)) as caught:
            call()
        assert len(str(caught.value)) < 250, str(caught.value)
