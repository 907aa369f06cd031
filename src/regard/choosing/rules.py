"""Rules of thumb for choosing a score, each with the claims that support or contradict it."""

from __future__ import annotations

from typing import Literal, NamedTuple

from regard.choosing.evidence import CitedNumber, fact
from regard.text import Text


class Rule(NamedTuple):
    """A rule of thumb: under a condition, use a score.

    Attributes:
        condition: a condition on the data, the task or the machine.
        score: name of the score that the rule recommends.
        remedy: what to add to the score; empty for nothing.
        borne: whether the claims bear the rule out.
        because: what the claims found, in one sentence.
        claims: ids of the claims; docs/claims.md describes them.
        evidence: where each number in `because` comes from; a test compares them.
    """

    condition: Text
    score: str
    remedy: Text
    borne: Literal["yes", "in part", "no"]
    because: Text
    claims: tuple[str, ...]
    evidence: tuple[CitedNumber, ...] = ()


PLAIN = Text("", "")
# Labels of facts and paths to numbers of claims E3 and E5.
OVER_BILINEAR = "{} over bilinear, keys of {} dims"
KEY_DIM = "numbers>scores>bilinear>{}>key_dim"
QUALITY = "numbers>scores>{}>{}>quality"
NO_MATRIX = "additive − dot, unlike, by no matrix, {} examples"
MATRIX = "additive − dot, unlike, related by a matrix, {} examples"
RULES = (
    Rule(
        Text("nothing else is known: equal widths or projections in front, data enough",
             "没有其他信息：宽度相同或前面有投影，数据充足"),
        "scaled_dot", PLAIN, "yes",
        Text("it is the cheapest; an alternative has to beat it by more than noise and by as much as "
             "matters",
             "它开销最小；替代者的领先幅度必须超出噪声，并达到实质差异"),
        ("E1", "C2", "C10"),
    ),
    Rule(
        Text("no matrix relates query and key", "没有矩阵能把查询与键联系起来"),
        "additive", Text("a bias inside tanh", "tanh 内加偏置"), "yes",
        Text("additive by 21 points on 64 examples and by 60 on 32768; without the bias it is odd in "
             "(q, k) and explains nothing of even relations",
             "64 个样本时加性领先 21 个百分点，32768 个时领先 60 个；没有偏置时它是 (q, k) 的奇函数，解释不了偶关系"),
        ("B3", "B4", "B5", "E5"),
        (
            fact("21", "E5", NO_MATRIX.format(64)),
            CitedNumber("64", "E5", "numbers>sizes>0"),
            fact("60", "E5", NO_MATRIX.format(32768)),
            CitedNumber("32768", "E5", "numbers>sizes>4"),
        ),
    ),
    Rule(
        Text("query and key differ in width", "查询与键宽度不同"),
        "cosine", Text("behind projections to one width", "先投影到同一宽度"), "in part",
        Text("dot refuses; with as many parameters as the full matrix, cosine behind projections is ahead of it by "
             "7 points with keys of 32 numbers and by 13 with keys of 8, where the length of a key is noise; "
             "with little noise no score is ahead for the widths alone",
             "点积无法使用；参数量与完整矩阵相同时，若键的长度只是噪声，投影后的余弦在键为 32 个数时领先 7 个百分点，"
             "键为 8 个数时领先 13 个；噪声很小时，没有哪种打分函数仅因宽度不同而领先"),
        ("E3",),
        (
            fact("7", "E3", OVER_BILINEAR.format("cosine", 32)),
            CitedNumber("32", "E3", KEY_DIM.format(3)),
            fact("13", "E3", OVER_BILINEAR.format("cosine", 8)),
            CitedNumber("8", "E3", KEY_DIM.format(1)),
        ),
    ),
    Rule(
        Text("query and key differ in width", "查询与键宽度不同"), "bilinear", PLAIN, "in part",
        Text("with as many parameters it is 25 points ahead of additive with keys of 4 numbers, and 5 behind with "
             "keys of 32; at no width is it ahead of cosine behind projections",
             "参数量相同时，键为 4 个数时它比加性高 25 个百分点，键为 32 个数时低 5 个；在任何宽度上都不领先于投影后的余弦"),
        ("E3",),
        (
            fact("25", "E3", OVER_BILINEAR.format("additive", 4), times=-1),
            CitedNumber("4", "E3", KEY_DIM.format(0)),
            fact("5", "E3", OVER_BILINEAR.format("additive", 32)),
            CitedNumber("32", "E3", KEY_DIM.format(3)),
        ),
    ),
    Rule(
        Text("a small device, or a cache of shrunk keys", "小设备，或缓存降维后的键"),
        "low_rank", PLAIN, "in part",
        Text("it matches the full matrix while its rank reaches that of the relation, and loses 41 points "
             "where it does not; with as many parameters, additive is ahead of it by 5 points with keys of 32 "
             "numbers and by 10 with keys of 4, and cosine behind projections by 7 and 14",
             "秩达到关系的秩时与完整矩阵相当，达不到时损失 41 个百分点；参数量相同时，键为 32 个数时加性领先它 "
             "5 个百分点，键为 4 个数时领先 10 个，投影后的余弦分别领先 7 个和 14 个"),
        ("E2", "E3"),
        (
            fact("41", "E2", "low rank − full, relation of rank 16", times=-1),
            fact("5", "E3", "additive over low rank, keys of 32 dims"),
            CitedNumber("32", "E3", KEY_DIM.format(3)),
            fact("10", "E3", "additive over low rank, keys of 4 dims"),
            CitedNumber("4", "E3", KEY_DIM.format(0)),
            CitedNumber("7", "E3", QUALITY.format("cosine", 3), QUALITY.format("low rank", 3), times=100),
            CitedNumber("14", "E3", QUALITY.format("cosine", 0), QUALITY.format("low rank", 0), times=100),
        ),
    ),
    Rule(
        Text("data is scarce", "数据很少"), "additive", PLAIN, "no",
        Text("on 64 examples related by a matrix dot is 57 points ahead; what helps is fewer parameters",
             "在由矩阵联系的 64 个样本上，点积领先 57 个百分点；真正有用的是减少参数"),
        ("E5", "E6"),
        (
            CitedNumber("64", "E5", "numbers>sizes>0"),
            fact("57", "E5", MATRIX.format(64), times=-1),
        ),
    ),
    Rule(
        Text("unequal modalities", "两边模态不同"),
        "additive", Text("separate projections", "各自的投影"), "in part",
        Text("ahead of dot only where the volumes of one side swing and no LayerNorm stands in front; with "
             "LayerNorm nowhere",
             "只有一侧幅度起伏且前面没有 LayerNorm 时才胜过点积；有 LayerNorm 时从未胜过"),
        ("G3",),
    ),
    Rule(
        Text("hostile norms: a few keys are far longer than the rest", "范数失衡：少数键远长于其余的键"),
        "cosine", Text("or clipped keys, LayerNorm", "或截短的键、LayerNorm"), "yes",
        Text("a key 4 times as long takes 28% of the queries of scaled dot and, at any length, 2% of those of "
             "cosine; a soft cap keeps the order of the logits and does not help",
             "长 4 倍的一个键夺走缩放点积 28% 的查询；无论多长，只得到余弦 2% 的查询；软上限不改变 logit 的次序，没有帮助"),
        ("G1", "G2", "C9"),
        (
            CitedNumber("4", "G1", "numbers>factors>2"),
            CitedNumber("28", "G1", "numbers>captured>scaled dot>*>2", times=100),
            CitedNumber("2", "G1", "numbers>captured>cosine>*>8", times=100),
        ),
    ),
    Rule(
        Text("hostile norms", "范数失衡"), "additive", PLAIN, "in part",
        Text("one huge key takes 15% of its queries, untrained, where dot loses 50%; trained, LayerNorm before "
             "dot is 39 points ahead of it at the widest spread of norms",
             "一个范数极大的键夺走它 15% 的查询（未训练时），而点积失去 50%；训练后，在范数离散度最大处，"
             "点积之前加 LayerNorm 比它高 39 个百分点"),
        ("G1", "G2"),
        (
            fact("15", "G1", "captured, additive", times=100),
            fact("50", "G1", "captured, dot", times=100),
            fact("39", "G2", "LayerNorm + dot over additive there", times=100),
        ),
    ),
    Rule(
        Text("the scale of the inputs is unknown or changes", "输入的尺度未知或会变"),
        "scaled_dot", Text("LayerNorm in front", "前面加 LayerNorm"), "in part",
        Text("it adds 9 points at an input scale of 1, and costs 43 where the lengths of keys tell something",
             "输入尺度为 1 时多得 9 个百分点；键的长度有意义时损失 43 个"),
        ("C6",),
        (
            fact("9", "C6", "accuracy gained at scale 1, scaled dot", times=100),
            CitedNumber("1", "C6", "numbers>scales>6"),
            fact("43", "C6", "accuracy gained where length tells, at worst", times=-100),
        ),
    ),
    Rule(
        Text("the length of a vector means something, as in retrieval", "向量的长度有意义，如检索"),
        "dot", PLAIN, "yes",
        Text("the score grows in proportion to the norms; but its variance grows with the width, and "
             "unscaled softmax saturates",
             "得分与长度成正比；但方差随宽度增大，不缩放的 softmax 会饱和"),
        ("B1", "C1", "C3"),
    ),
    Rule(
        Text("near means alike: positions, coordinates, measured values", "近即相似：位置、坐标、测量值"),
        "gaussian", PLAIN, "yes",
        Text("on the unit sphere scaled dot is this very smoothing; a learned bandwidth for each query "
             "lowers the error by 31%",
             "在单位球面上缩放点积就是这种平滑；为每个查询学一个带宽，误差降低 31%"),
        ("D1", "D2"),
        (fact("31", "D2", "error per query / learned fixed", times=-100, plus=100),),
    ),
    Rule(
        Text("a query asks for several things at once", "一个查询同时问几件事"),
        "scaled_dot", Text("several heads", "多个头"), "yes",
        Text("4 heads, of the size of one in all, gain 56 points over it with scaled dot, and 47 with additive",
             "总大小与单头相同的 4 个头，用缩放点积时多得 56 个百分点，用加性时多得 47 个"),
        ("F1", "F2"),
        (
            CitedNumber("4", "F2", "numbers>heads>2"),
            CitedNumber("56", "F2", "numbers>scores>scaled dot>accuracy>2",
                     "numbers>scores>scaled dot>accuracy>0", times=100),
            CitedNumber("47", "F2", "numbers>scores>additive>accuracy>2",
                     "numbers>scores>additive>accuracy>0", times=100),
        ),
    ),
    Rule(
        Text("small sets and graphs, an activation that does not saturate", "小集合与图，不饱和的激活函数"),
        "gatv2", PLAIN, "in part",
        Text("tanh does stop hearing queries that grow; a learned temperature or LayerNorm repairs that "
             "too",
             "查询变大时 tanh 确实不再响应；可学习的温度或 LayerNorm 也能解决"),
        ("C5",),
    ),
)  # fmt: skip

# When to use each score, in one line. The committed results of `regard choose --shape` hold these lines.
IN_SHORT = {
    "scaled_dot": "The default. Equal widths or projections in front, data enough to learn them; "
    "the fastest kernels are made for it.",
    "dot": "When the length of a vector means something, as in retrieval. Logits grow with the "
    "width: prefer scaled dot otherwise.",
    "cosine": "When norms differ wildly and a few long keys would take all the weight: only the "
    "direction counts. Unlike widths: behind projections.",
    "gaussian": "When near means alike: smoothing over positions, coordinates, measured values.",
    "bilinear": "A matrix relates the sides, with data enough for all of it: d_q x d_k in each head.",
    "low_rank": "A cache that holds only `rank` numbers for each key, where `rank` reaches that of the "
    "relation.",
    "additive": "A match that no inner product expresses, given data enough; scores stay bounded. "
    "Costs `hidden` tanh for each pair.",
    "gatv2": "As additive, with an activation that does not saturate: graphs, small sets.",
    "textbook_additive": "At small sizes alone: it is additive with the [Q, L, hidden] tensor "
    "written to memory.",
}


def in_short(score: str) -> str:
    """The line of a score in `IN_SHORT`, followed by the claims of all its rules."""
    ids = bearing(score)
    return f"{IN_SHORT[score]} (Claims {', '.join(ids)}.)" if ids else IN_SHORT[score]


def bearing(score: str) -> tuple[str, ...]:
    """Ids of the claims behind all rules for a score."""
    return tuple(dict.fromkeys(x for rule in RULES if rule.score == score for x in rule.claims))
