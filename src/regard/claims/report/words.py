"""The texts of the report and of docs/claims.md: headings, verdicts, groups."""

from __future__ import annotations

from regard.claims.claim import ClaimVerdict
from regard.text import Text

# Key of a claim without a result. It is not a verdict, so `ClaimVerdict` has no such member.
NOT_RUN = "not_run"

GROUPS = {
    "A": Text("What attention is", "什么是注意力"),
    "B": Text("Geometry against flexibility", "几何与灵活性"),
    "C": Text("Scale and stability", "尺度与稳定性"),
    "D": Text("Statistics", "统计"),
    "E": Text("Engineering", "工程"),
    "F": Text("Heads", "多头"),
    "G": Text("Robustness", "稳健性"),
    "H": Text("Applications", "应用"),
    "I": Text("In nature", "自然界"),
}

# By `key_of`, in the order in which the report shows them.
VERDICTS = {
    "holds": Text("holds", "成立"),
    "conditions": Text("holds with conditions", "有条件地成立"),
    "fails": Text("does not hold here", "在此不成立"),
    "undecided": Text("not decided at this size", "此规模下未能判定"),
    NOT_RUN: Text("not run", "尚未运行"),
}

# Units that need a translation; all others are symbols.
UNITS = {
    "points": Text("points", "个百分点"),
}

# Keys of versions and hardware that need a translation; names of programs are shown as they are.
MACHINE = {
    "device": Text("device", "设备"),
    "name": Text("processor", "处理器"),
    "cores": Text("cores", "核数"),
    "threads": Text("threads", "线程数"),
    "system": Text("system", "操作系统"),
}

WORDS = {
    "title": Text("Claims about attention", "关于注意力的论断"),
    "lede": Text(
        "Statements by which people choose an attention score. Each is tested by an experiment that can "
        "come out either way, with a criterion written before the run.",
        "人们据以选择注意力打分函数的种种说法。每一条都是一个可能成立、也可能不成立的实验，判定标准在运行之前写定。",
    ),
    "summary": Text("Verdicts", "结论总览"),
    "skip": Text("Skip to the claims", "跳到各条论断"),
    "groups": Text("Groups", "分组"),
    "top": Text("Overview", "总览"),
    "filter": Text("Show only", "只看"),
    "search": Text("Search the claims", "搜索论断"),
    "all": Text("Show all", "显示全部"),
    "of": Text("of", "/"),
    "nothing": Text("No claim matches.", "没有符合条件的论断。"),
    "theme": Text("Switch between light and dark", "切换浅色与深色"),
    "verdict": Text("Verdict", "结论"),
    "numbers": Text("The numbers that decide", "起决定作用的数字"),
    "quantity": Text("Quantity", "量"),
    "value": Text("Value", "数值"),
    "interval": Text("95% interval", "95% 区间"),
    "criterion": Text("Criterion, written before the run", "判定标准（运行前写定）"),
    "control": Text("What it is compared with", "对照"),
    "meaning": Text("What this means for choosing a score", "对选择打分函数意味着什么"),
    "rerun": Text("Run it again", "重新运行"),
    "run": Text("Run it", "运行"),
    "copy": Text("Copy", "复制"),
    "copied": Text("Copied", "已复制"),
    "quick": Text("quick run", "快速运行"),
    "full": Text("full run", "完整运行"),
    "seed": Text("seed", "种子"),
    "outdated": Text("measured with a different version of the code", "由其他版本的代码测得"),
    "seeds": Text("Seeds", "种子"),
    "waiting": Text("Not run yet", "尚未运行的论断"),
    "no_result": Text(
        "There is no result yet. The command below runs it.",
        "还没有结果。用下面的命令即可运行。",
    ),
    "no_figure": Text(
        "The figure cannot be drawn: the stored numbers are not those that this version measures. "
        "Run the claim again.",
        "无法绘制此图：保存的数字与当前版本所测量的不一致。请重新运行这条论断。",
    ),
    "about": Text("How this was made", "报告说明"),
    "how": Text("How verdicts are made", "结论如何得出"),
    "machines": Text("Versions and hardware", "版本与硬件"),
    "for": Text("Claims", "论断"),
    "colon": Text(": ", "："),
    "absent": Text("Planned, without an experiment", "已计划、尚无实验"),
    "every_claim": Text("all that were run", "全部已运行的论断"),
}

HOW = (
    Text(
        "The criterion of a claim is decided before its first run, and the verdict is computed from "
        "the measured numbers by the same rule in code. No verdict is written by hand.",
        "每条论断的判定标准在首次运行之前确定，结论由测得的数字按代码中的同一规则算出，没有一个是手写的。",
    ),
    Text(
        "Where training is involved, every competitor gets the same data, steps and learning rates to "
        "try, over several seeds. Differences are paired by seed; intervals are 95% intervals.",
        "涉及训练时，各参与者使用相同的数据、步数和候选学习率，并在多个种子上重复。差值按种子配对，区间均为 95% 区间。",
    ),
)

# The meaning of each verdict, explained at the end of the report.
MEANINGS = {
    "holds": Text("The numbers meet the criterion.", "数字满足判定标准。"),
    "conditions": Text(
        "True only under a condition, which was measured and is named.",
        "只在某个条件下成立，该条件已经测出并写明。",
    ),
    "fails": Text("The numbers contradict it in this experiment.", "在本实验中，数字与它相反。"),
    "undecided": Text(
        "The interval straddles the bar; the text says what it would take to decide.",
        "区间跨越了判定界线；文中说明判定还需要什么。",
    ),
    NOT_RUN: Text("There is no result in the folder.", "结果文件夹中没有它的结果。"),
}


def key_of(verdict: ClaimVerdict | None) -> str:
    """The key of a verdict in these tables and in style sheets; None stands for no result."""
    return NOT_RUN if verdict is None else verdict.name.lower()
