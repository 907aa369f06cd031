"""Rules of thumb for choosing a score, each with the claims that support or contradict it."""

from __future__ import annotations

from typing import Literal, NamedTuple

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
    """

    condition: Text
    score: str
    remedy: Text
    borne: Literal["yes", "in part", "no"]
    because: Text
    claims: tuple[str, ...]


PLAIN = Text("", "")
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
    ),
    Rule(
        Text("query and key differ in width", "查询与键宽度不同"),
        "bilinear", Text("or projections, or additive", "或投影，或加性"), "yes",
        Text("dot refuses; the others reach 80% of what is possible down to keys an eighth as wide, and "
             "none is ahead for that alone",
             "点积无法使用；键的宽度低至八分之一时，其余打分函数仍达到可能值的 80%，没有哪种仅凭这一点领先"),
        ("E3",),
    ),
    Rule(
        Text("a small device, or a cache of shrunk keys", "小设备，或缓存降维后的键"),
        "low_rank", PLAIN, "in part",
        Text("it matches the full matrix while its rank reaches that of the relation, and loses 41 points "
             "where it does not",
             "秩达到关系的秩时与完整矩阵相当，达不到时损失 41 个百分点"),
        ("E2",),
    ),
    Rule(
        Text("data is scarce", "数据很少"), "additive", PLAIN, "no",
        Text("on 64 examples related by a matrix dot is 57 points ahead; what helps is fewer parameters",
             "在由矩阵联系的 64 个样本上，点积领先 57 个百分点；真正有用的是减少参数"),
        ("E5", "E6"),
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
        Text("a key 4 times as long takes a quarter of the queries of scaled dot; a soft cap keeps the "
             "order of the logits and does not help",
             "长 4 倍的一个键夺走缩放点积四分之一的查询；软上限不改变 logit 的次序，没有帮助"),
        ("G1", "G2", "C9"),
    ),
    Rule(
        Text("hostile norms", "范数失衡"), "additive", PLAIN, "in part",
        Text("it is ahead of dot at a moderate spread that it was trained on; LayerNorm before dot helps "
             "far more",
             "在训练时见过的中等离散度上胜过点积；在点积之前加 LayerNorm 有用得多"),
        ("G2",),
    ),
    Rule(
        Text("the scale of the inputs is unknown or changes", "输入的尺度未知或会变"),
        "scaled_dot", Text("LayerNorm in front", "前面加 LayerNorm"), "in part",
        Text("flat from an input scale of 0.03 on; it harms where lengths tell",
             "输入尺度从 0.03 起结果平稳；长度有意义时它有害"),
        ("C6",),
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
    ),
    Rule(
        Text("a query asks for several things at once", "一个查询同时问几件事"),
        "scaled_dot", Text("several heads", "多个头"), "yes",
        Text("one head can answer one of two questions; 4 heads of the same size in all gain 47 points",
             "一个头只能答两个问题之一；总大小相同的 4 个头多得 47 个百分点"),
        ("F1", "F2"),
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
    "direction counts.",
    "gaussian": "When near means alike: smoothing over positions, coordinates, measured values.",
    "bilinear": "Unlike widths with data enough for a full d_q x d_k matrix in each head.",
    "low_rank": "Unlike widths on a small device: a cache holds only `rank` numbers for each key.",
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
