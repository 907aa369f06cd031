"""Writes what is measured into README.md, README.zh-CN.md and docs/benchmarks.md, from committed results.

`python benchmarks/readme.py` replaces what stands between `<!-- NAME: ... -->` and `<!-- /NAME -->`, and
draws the picture of the front page. With --check nothing is written, and the exit status says whether
all is up to date.
"""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import front
from front_picture import draw

from choosing import MARKS, result

ROOT = Path(__file__).parents[1]
PICTURES = {"en": "docs/assets/front.svg", "zh": "docs/assets/front.zh.svg"}
# The headline table: its head, what it says where scaled dot stays, and what stands below it.
HEADLINE = {
    "en": {
        "head": "| your data | use | accuracy | over scaled dot | time | claims |",
        "same": "no difference that matters",
        "or": ", or ",
        "hidden": " at {} hidden",
        "lead": "**{:+.1f} points** [{:.1f}, {:.1f}]",
        "note": (
            "What `make demo` found in {seconds} s on 2 CPU cores: every score, behind projections, trained "
            "with the same data, steps and learning rates, {seeds} seeds, 95% intervals that hold for all alternatives "
            "together. *Accuracy* goes from scaled dot to the score to use. *Time* is that of a forward "
            "and backward pass over scaled dot's there, length {length}, {heads} heads, hidden {hidden}. On "
            "one NVIDIA H200, bf16, batch 4, 16 heads, length 4096, hidden 16, additive takes {close} the time "
            "of cuDNN's dot by the series ({fast} by a coarser one) and {exact} exactly, where the "
            "textbook's, compiled, takes {taught}{scaled}. Claims: ✓ holds, ◐ with conditions, ? not decided."
        ),
        "scaled": " (scaled from {} of 64 heads)",
    },
    "zh": {
        "head": "| 你的数据 | 推荐 | 准确率 | 比缩放点积高 | 时间 | 论断 |",
        "same": "没有要紧的差别",
        "or": "，或",
        "hidden": "（{} 个隐藏单元时）",
        "lead": "**{:+.1f} 个百分点** [{:.1f}, {:.1f}]",
        "note": (
            "这是 `make demo` 在 2 个 CPU 核上运行 {seconds} 秒的结果：每种打分前面都有投影，用相同的数据、步数和学习率训练，"
            "{seeds} 个种子；95% 区间对所有候选同时成立。*准确率*是从缩放点积到推荐的打分。*时间*是前向加反向的耗时"
            "相对缩放点积的倍数，长度 {length}，{heads} 个头，{hidden} 个隐藏单元。在一块 NVIDIA H200 上（bf16，批大小 4，"
            "16 个头，长度 4096，16 个隐藏单元），加性注意力用级数是 cuDNN 点积的 {close}（较粗的级数 {fast}），精确计算是 "
            "{exact}，而教科书写法即使编译也要 {taught}{scaled}。论断：✓ 成立，◐ 有条件地成立，? 未能判定。"
        ),
        "scaled": "（由 64 个头中的 {} 个推算）",
    },
}


def headline_table(language: str) -> str:
    """Which score for which data, and what it costs: the table of the front page."""
    words, rows = HEADLINE[language], []
    cost = {one.score: str(one) for one in front.cpu_costs() if not one.textbook}
    hidden = front.load("choose-shape")["shape"]["hidden"]
    for gain in front.gains():
        use = f"**{gain.use[language]}**"
        if gain.instead:
            use += words["or"] + gain.instead[language]
        accuracy = f"{100 * gain.after:.1f}%"
        if gain.beaten:
            accuracy = f"{100 * gain.before:.1f}% → {accuracy}"
        lead = words["lead"].format(*(100 * x for x in gain.lead)) if gain.beaten else words["same"]
        claims = " ".join(claim(name) for name in gain.claims)
        time = cost[gain.score]
        # Costs are measured at one hidden width, which need not be the one to use.
        if " hidden" in gain.use["en"]:
            time += words["hidden"].format(hidden)
        cells = [gain.prop[language], use, accuracy, lead, time, claims]
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join([words["head"], "|---|---|---|---|---|---|", *rows, "", note(language)])


def note(language: str) -> str:
    """How the headline was measured."""
    trained, shape = front.load("choose"), front.load("choose-shape")["shape"]
    gpu = dict(zip(front.ON_GPU, front.gpu_costs(), strict=True))
    names = {"fast": "sine fast", "close": "sine matched", "exact": "exact"}
    names |= {"taught": "textbook compiled"}
    words, heads = HEADLINE[language], gpu["textbook compiled"].heads
    return words["note"].format(
        seconds=round(trained["seconds"]),
        seeds=len(trained["tasks"][0]["verdict"]["seeds"]),
        length=shape["len_q"],
        heads=shape["heads"],
        hidden=shape["hidden"],
        scaled="" if heads is None else words["scaled"].format(heads),
        **{word: str(gpu[name]) for word, name in names.items()},
    )


def mine() -> str:
    """What `regard choose` said of the file that the README makes."""
    (task,) = front.load("choose-mine")["tasks"]
    said = [task["verdict"]["recommendation"][0], f"score = {task['verdict']['code']}"]
    return "\n".join(["```text", *(textwrap.fill(line, 100) for line in said), "```"])


def claim(name: str) -> str:
    """A link to a claim, with the mark of its verdict."""
    return f"[{name}\u00a0{MARKS[result(name)['verdict']]}](docs/claims.md#{name.lower()})"


def cpu_table() -> str:
    """The bars of cpu_bars.json as a Markdown table."""
    found = front.load("cpu_bars")
    rows = [
        "| on 2 CPU cores | measured | bar |",
        "|---|---|---|",
    ]
    for bar in found["bars"]:
        sign = "≤" if bar["at_most"] else "≥"
        missed = "" if bar["met"] else " **missed**"
        rows.append(
            f"| {bar['name']} | {bar['value']:.3g}{bar['unit']}{missed} "
            f"| {sign} {bar['bar']:g}{bar['unit']} |"
        )
    rows += ["", f"{found['setting']}; torch {found['torch']}. `make bench` measures it again."]
    return "\n".join(rows)


def gpu_table() -> str:
    """The bars of h200.json as a Markdown table."""
    found = front.load("h200")
    about = found["machine"]
    rows = [
        f"| on one {about['name']} | a ratio over | device time | eager call | bar |",
        "|---|---|---|---|---|",
    ]
    notes = list(dict.fromkeys(bar["note"] for bar in found["bars"] if bar["note"]))
    for bar in found["bars"]:
        over = bar["of"] + (f" [{notes.index(bar['note']) + 1}]" if bar["note"] else "")
        missed = " **missed**" if bar["met"] is False else ""
        limit = bar["bar_text"].replace("<=", "≤").replace(">=", "≥")
        measured = f"{bar['measured_text']}{missed} | {bar['eager_text']}"
        rows.append(f"| {bar['name']} | {over} | {measured} | {limit} |")
    setting = (
        "bf16, batch 4, 16 heads, length 4096, value dim 64, a and b standard normal, |v|₁ = 5, all "
        f"work counted from projected a and b to the output; torch {about['torch']}, triton "
        f"{about['triton']}. Bars are held against device time. Dot at d=64 is another score: the "
        "ratio says what additive attention costs beside it, not that the two learn the same."
    )
    rows += ["", " ".join([*(f"[{i}] {note}." for i, note in enumerate(notes, 1)), setting])]
    return "\n".join(rows)


PAGES: dict[str, dict[str, Callable[[], str]]] = {
    "README.md": {"choose": lambda: headline_table("en"), "mine": mine},
    "README.zh-CN.md": {"choose": lambda: headline_table("zh"), "mine": mine},
    "docs/benchmarks.md": {"cpu": cpu_table, "gpu": gpu_table},
}


def filled(text: str, tables: dict[str, Callable[[], str]], page: str) -> str:
    """The page with every table between its markers replaced."""
    for name, table in tables.items():
        body = "".join(f"{line}\n" for line in table().splitlines())
        text, count = re.subn(
            rf"(<!-- {name}: .*?-->\n).*?(<!-- /{name} -->)",
            lambda m, body=body: m[1] + body + m[2],
            text,
            flags=re.DOTALL,
        )
        if count != 1:
            raise SystemExit(f"error: {page} has {count} places for the table {name!r}, not one")
    return text


def written() -> dict[Path, str]:
    """What every file is to hold."""
    found = {
        ROOT / page: filled((ROOT / page).read_text(encoding="utf-8"), tables, page)
        for page, tables in PAGES.items()
    }
    costs = front.cpu_costs(), front.gpu_costs()
    for language, path in PICTURES.items():
        found[ROOT / path] = draw(front.gains(), *costs, language)
    return found


def main() -> int:
    """Write or check."""
    stale = [
        (path, text)
        for path, text in written().items()
        if not path.exists() or path.read_text(encoding="utf-8") != text
    ]
    if "--check" in sys.argv:
        for path, _ in stale:
            print(f"{path.relative_to(ROOT)} is not up to date")
        return 1 if stale else 0
    for path, text in stale:
        path.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
