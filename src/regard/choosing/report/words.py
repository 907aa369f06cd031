"""The words of the report in English and Chinese: headings, outcomes, vitals."""

from __future__ import annotations

from regard.choosing.training.rows import Outcome
from regard.choosing.training.vitals import FAILED, UNSEEN
from regard.text import Text

# For each outcome, a tone of the shared style sheet (its colour) and the words.
OUTCOMES = {
    Outcome.ALTERNATIVE: ("good", Text("an alternative wins", "替代者胜出")),
    Outcome.NULL: ("good", Text("scaled dot wins", "缩放点积胜出")),
    Outcome.SAME: ("warning", Text("no difference that matters", "无实质差异")),
    Outcome.UNDECIDED: ("undecided", Text("not decided", "未能判定")),
}
NOTHING_LEARNED = ("warning", Text("nothing learned", "什么也没学到"))
TOO_FEW = ("undecided", Text("too little data to tell", "数据太少，无法断定"))
NO_VERDICT = ("failure", Text("no verdict", "没有结论"))

# The vitals that the report shows, by the doctor's names.
VITALS = {
    "logit_max": Text("largest logit", "最大 logit"),
    "entropy": Text("entropy", "熵"),
    "max_weight": Text("largest weight", "最大权重"),
    "jacobian": Text("softmax gradient", "softmax 梯度"),
    "key_spread": Text("longest key / others", "最长的键 / 其余"),
    "c50": Text("hijack factor", "劫持倍数"),
    "tanh_saturated": Text("tanh saturated", "tanh 饱和"),
}

# Chinese titles of the doctor's diseases; the doctor itself gives only English ones.
FINDINGS = {
    "broken-numbers": "出现 NaN 或 Inf",
    "masked-rows": "有查询看不到任何键",
    "inverted-mask": "掩码用反了",
    "missing-mask": "缺少因果掩码",
    "unscaled-logits": "logit 没有乘 1/sqrt(d)",
    "growing-logits": "logit 不断增大，没有放缓",
    "large-logits": "logit 过大",
    "key-norm-hijack": "一个键凭长度胜出",
    "collapsed-entropy": "注意力塌缩到一个键上",
    "dead-softmax": "softmax 过硬，梯度传不过去",
    "saturated-tanh": "加性打分函数的 tanh 已饱和",
    "dead-gradient": "几乎没有梯度到达查询和键",
    "no-gradient": "查询和键与损失断开",
    "identical-heads": "有重复的头",
    "washed-out-positions": "位置信息被冲淡",
    "collapsed-positions": "位置淹没了内容",
    "rank-collapse": "所有 token 变得一样",
    "malignant-sink": "整层只看一个键",
    "no-op-sink": "注意力汇点，不是病",
}

# Notes on what the doctor could not examine.
NOTES = {
    FAILED: Text(FAILED, "doctor 无法检查这个模型；训练结果不受影响"),
    UNSEEN: Text(UNSEEN, "没有看到注意力调用"),
}

BORNE = {
    "yes": ("good", Text("yes", "是")),
    "in part": ("warning", Text("in part", "部分")),
    "no": ("failure", Text("no", "否")),
}

WORDS = {
    "title": Text("Which attention score?", "用哪种注意力打分函数？"),
    "skip": Text("Skip to the details", "跳到详情"),
    "theme": Text("Light or dark", "浅色或深色"),
    "language": Text("ZH", "English"),  # the template draws 中文 beside it, which needs no font
    "data": Text("If your data is like this", "如果你的数据是这样"),
    "use": Text("use", "使用"),
    "over": Text("over scaled dot [95% interval]", "比缩放点积高 [95% 区间]"),
    "cost": Text("time of a training step", "训练一步的耗时"),
    "answer": Text("answer", "结论"),
    "fair": Text(
        "Every candidate had the same data, steps and learning rates to try. Scaled dot is the null: an "
        "alternative wins only if its lead exceeds noise and is large enough to matter.",
        "每个候选使用同样的数据、步数和候选学习率。缩放点积是基准：替代者的领先幅度只有超出噪声、并达到实质差异，才算胜出。",
    ),
    "swipe": Text("Swipe to see the rest of the chart.", "左右滑动可查看图的其余部分。"),
    "tasks": Text("Each kind of data", "每一类数据"),
    "fold": Text("Open all", "全部展开"),
    "candidates": Text("All candidates", "全部候选"),
    "candidate": Text("candidate", "候选"),
    "quality": Text("quality", "质量"),
    "ahead": Text("over scaled dot", "比缩放点积高"),
    "memory": Text("peak memory", "内存峰值"),
    "parameters": Text("parameters", "参数"),
    "rate": Text("best rate", "最佳学习率"),
    "became": Text("result", "结果"),
    "vitals": Text(
        "Stability, by the doctor: the worst head at the end of training",
        "稳定性（由 doctor 检查）：训练结束时最差的头",
    ),
    "findings": Text("findings", "诊断"),
    "reason": Text(
        "A finding is a reason to look closer, not a verdict: it describes the state of a head, however "
        "well the model has learned.",
        "诊断只是提醒留意，不是结论：它描述某个头的状态，与模型学得好不好无关。",
    ),
    "healthy": Text("none", "无"),
    "next": Text("; ", "；"),
    "unseen": Text(
        "The doctor examined no candidate: vitals were switched off, or no finalist was trained.",
        "doctor 没有检查任何候选：检查被关闭，或没有完成训练的决赛候选。",
    ),
    "explain": Text("Claims that explain it", "解释这一结果的论断"),
    "paste": Text("Code to paste", "可粘贴的代码"),
    "copy": Text("Copy", "复制"),
    "copied": Text("Copied", "已复制"),
    "rules": Text("Rules of thumb, and whether they hold", "经验法则，以及它们是否成立"),
    "where": Text("where", "何时"),
    "borne": Text("holds", "是否成立"),
    "found": Text("what was found", "发现"),
    "claims": Text("claims", "论断"),
    "all_claims": Text("Claims named on this page", "本页提到的论断"),
    "meaning": Text("For choosing", "对选择的意义"),
    "criterion": Text("Criterion", "判定标准"),
    "verdict": Text("Verdict of the published run", "随库发布的运行得出的结论"),
    "run": Text("Run it", "运行"),
    "first": Text(
        "Additive attention on this machine: the textbook's and ours",
        "本机上的加性注意力：教科书写法与本库实现",
    ),
    "both": Text("forward and backward", "前向与反向"),
    "error": Text("error against fp64", "相对 fp64 的误差"),
    "how": Text("How it was compared", "如何比较"),
    "procedure": Text(
        "First every candidate was trained at every learning rate from one seed, by successive halving. "
        "Then the best and scaled dot, each at its own best rate, were trained from other seeds. "
        "Differences are paired by seed and by test row, on data that was not used to choose the rates. The "
        "95% intervals are for new seeds and new rows (rows are resampled, whole groups where there are "
        "groups), and hold for all alternatives together. Each is compared with the scaled dot of the same "
        "heads and width. Nothing is recommended if no score is shown to be better than guessing and "
        "than the best of them trained on shuffled targets.",
        "先从一个种子出发，用逐次减半法在每个学习率上训练每个候选；再让最好的几个和缩放点积各以自己的最佳学习率"
        "从别的种子训练。差值按种子和测试行配对，所用数据没有参与学习率的选择；95% 区间针对新的种子和新的数据行"
        "（对行重抽样，有分组时整组重抽），并对所有替代者同时成立。每个候选与头数和宽度相同的缩放点积比较。"
        "如果没有打分函数被证实既优于瞎猜、又优于在打乱的目标上训练的最佳者，就不作推荐。",
    ),
}  # fmt: skip

FIRST = {
    "textbook_additive": Text("additive, textbook", "加性，教科书写法"),
    "additive": Text("additive, ours", "加性，本库"),
    "scaled_dot": Text("scaled dot", "缩放点积"),
}
STEP = Text("time of a training step", "训练一步的耗时")
STEPS = Text("training steps", "训练步数")
OVER_NULL = Text("over scaled dot, points", "比缩放点积高，百分点")
TIMES_NULL = Text("time of a step, times scaled dot's", "训练一步的耗时，缩放点积的倍数")
