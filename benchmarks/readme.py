"""Writes measured numbers into the READMEs, docs/benchmarks.md and docs/choose.md, from committed results.

`python benchmarks/readme.py` replaces the text between `<!-- NAME: ... -->` and `<!-- /NAME -->`, and draws the
picture of the front page. With --check it writes nothing, and its exit status is 1 if a file is out of date.
"""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Callable
from functools import partial
from pathlib import Path

import choose_real
import front
import performance
from front_picture import draw
from front_recipes import on_front_page, recipes_table

from choosing import MARKS, result

ROOT = Path(__file__).parents[1]
# The candidates of `regard bench` whose cost over dot docs/benchmarks.md sums up in a sentence.
ON_GPU = ("sine fast", "sine matched", "exact", "textbook compiled")
PICTURES = {"en": "docs/assets/front.svg", "zh": "docs/assets/front.zh.svg"}
# The headline table: its head, what it says where scaled dot stays, and the note below it.
HEADLINE = {
    "en": {
        "head": "| your data | use | accuracy | over scaled dot | cost | claims |",
        "same": "no difference that matters",
        "open": "not decided: {:+.1f} points [{:.1f}, {:.1f}]",
        "for now": ", for now",
        "or": ", or ",
        "hidden": " at {} hidden",
        "lead": "**{:+.1f} points** [{:.1f}, {:.1f}]",
        "note": (
            "`make demo` found this in {seconds} s on 2 CPU cores. Every score sits behind learned projections and "
            "is trained on the same data, for the same steps, at the same learning rates, from {seeds} seeds. The "
            "95% intervals hold for all alternatives together. *Accuracy* goes from scaled dot to the score to "
            "use. *Cost*, measured by `regard choose --shape`, is the time of a forward and backward pass over that "
            "of scaled dot at the same length, heads and width ({length}, {heads}, {width}; hidden {hidden}; "
            "{dtype}), with `regard[cpu]` on {threads} CPU cores ({name}). Claims: ✓ holds, ◐ holds with conditions, ? not decided."
        ),
    },
    "zh": {
        "head": "| 你的数据 | 推荐 | 准确率 | 比缩放点积高 | 开销 | 论断 |",
        "same": "无实质差异",
        "open": "未能判定：{:+.1f} 个百分点 [{:.1f}, {:.1f}]",
        "for now": "（暂用）",
        "or": "，或",
        "hidden": "（{} 个隐藏单元时）",
        "lead": "**{:+.1f} 个百分点** [{:.1f}, {:.1f}]",
        "note": (
            "这是 `make demo` 在 2 个 CPU 核上运行 {seconds} 秒得到的结果。每种打分函数前面都有可学习的投影，使用相同的数据、"
            "步数和学习率，从 {seeds} 个种子出发训练；95% 区间对所有候选同时成立。*准确率*是从缩放点积到推荐的打分函数。"
            "*开销*由 `regard choose --shape` 测得，是前向加反向的耗时与相同长度、头数、宽度（{length}、{heads}、{width}；{hidden} 个隐藏单元；{dtype}）的"
            "缩放点积的耗时之比，安装了 `regard[cpu]`，机器为 {threads} 个 CPU 核（{name}）。论断：✓ 成立，◐ 有条件地成立，? 未能判定。"
        ),
    },
}


def headline_table(language: str) -> str:
    """Which score for which data, and what it costs: the table of the front page."""
    words, rows = HEADLINE[language], []
    cost, hidden = front.costs(), setting()["hidden"]
    for gain in front.gains():
        use = f"**{gain.use[language]}**"
        if gain.open:
            use += words["for now"]
        if gain.instead:
            use += words["or"] + gain.instead[language]
        accuracy = f"{100 * gain.after:.1f}%"
        if gain.before != gain.after:
            accuracy = f"{100 * gain.before:.1f}% → {accuracy}"
        outcome = words["lead" if gain.beaten else "open" if gain.open else "same"]
        lead = outcome.format(*(100 * x for x in gain.lead))
        claims = " ".join(claim(name) for name in gain.claims)
        price = str(cost[gain.score])
        # Costs are measured at one hidden width, which need not be the one to use.
        if " hidden" in gain.use["en"]:
            price += words["hidden"].format(hidden)
        cells = [gain.prop[language], use, accuracy, lead, price, claims]
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join([words["head"], "|---|---|---|---|---|---|", *rows, "", note(language)])


def note(language: str) -> str:
    """How the headline was measured."""
    trained = front.load("choose")
    return HEADLINE[language]["note"].format(
        seconds=round(trained["seconds"]),
        seeds=len(trained["tasks"][0]["verdict"]["seeds"]),
        **setting(),
    )


def setting() -> dict:
    """Sizes and machine of the costs, by the names that the texts use."""
    found = front.load("choose-shape")
    sizes, machine = found["shape"], found["machine"]
    return {
        "length": sizes["len_q"],
        **{name: sizes[name] for name in ("heads", "width", "hidden")},
        "dtype": sizes["dtype"].replace("float", "fp"),
        **{name: machine[name] for name in ("threads", "name")},
    }


def mine() -> str:
    """What `regard choose` answered for the file that the README makes."""
    (task,) = front.load("choose-mine")["tasks"]
    # The last line of the code; the lines above it are imports.
    code = task["verdict"]["code"].splitlines()[-1]
    said = [*task["verdict"]["recommendation"][:2], f"score = {code.removeprefix('score = ')}"]
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
    sizes = (
        "bf16, batch 4, 16 heads, length 4096, value dim 64, a and b standard normal, |v|₁ = 5, all "
        f"work counted from projected a and b to the output; torch {about['torch']}, triton "
        f"{about['triton']}. Bars are held against device time. Dot at d=64 is another score: the "
        "ratio says what additive attention costs beside it, not that the two learn the same."
    )
    rows += ["", " ".join([*(f"[{i}] {note}." for i, note in enumerate(notes, 1)), sizes])]
    rows += [
        "",
        f"Forward and backward at hidden 16, device time over cuDNN's dot: {over_dot(found)}.",
    ]
    return "\n".join(rows)


def over_dot(found: dict) -> str:
    """What additive attention costs over cuDNN's dot on the GPU, each way of computing it by its name."""
    key = "b4-h16-q4096-k4096-n16-v64-bfloat16"
    rows = next(one["rows"] for one in found["settings"] if one["key"] == key)
    ratios = {
        row["name"]: row["passes"]["forward+backward"]["over"]["dot"]["ratio"]
        for row in rows
        if row["name"] in ON_GPU
    }
    return ", ".join(f"`{name}` {three_digits(ratios[name])}x" for name in ON_GPU if name in ratios)


def three_digits(number: float) -> str:
    """A ratio as the table of bars writes it: 1.64, 52.9."""
    return f"{number:.{max(3 - len(str(int(number))), 0)}f}"


PAGES: dict[str, dict[str, Callable[[], str]]] = {
    "README.md": {
        "choose": lambda: headline_table("en"),
        "mine": mine,
        "recipes": partial(recipes_table, "docs/recipes", "en", on_front_page),
    },
    "README.zh-CN.md": {
        "choose": lambda: headline_table("zh"),
        "mine": mine,
        "recipes": partial(recipes_table, "docs/recipes", "zh", on_front_page),
    },
    "docs/benchmarks.md": {"cpu": cpu_table, "gpu": gpu_table},
    "docs/performance.md": {"wide": performance.wide_table, "steps": performance.steps_table},
    "docs/recipes.md": {"recipes": partial(recipes_table, "recipes")},
    "docs/choose.md": {"real": lambda: choose_real.table(front.load("choose_real"))},
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
    """The text that every file should hold, by its path."""
    found = {
        ROOT / page: filled((ROOT / page).read_text(encoding="utf-8"), tables, page)
        for page, tables in PAGES.items()
    }
    for language, path in PICTURES.items():
        found[ROOT / path] = draw(front.gains(), front.shown_costs(), setting(), language)
    return found


def main() -> int:
    """Write the files, or check them."""
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
