"""Help texts of `regard recipe`: those of every command, and what is said of each recipe in them."""

from __future__ import annotations

from typing import NamedTuple

from regard.cli.names import RECIPE_SCORES
from regard.recipes import catalog

LIST = """List the recipes: real tasks, each a small model that takes any attention score.

Every recipe has data that come with a package, so that it trains on a fresh machine; public benchmarks are
read from --data, REGARD_DATA or a download.

\b
Examples:
  regard recipe
  regard recipe letters train
  regard recipe letters predict hello world
  regard recipe translate train --set multi30k-de-en --data DIR
  regard recipe graph compare --jobs 2
  regard recipe graph show --to graph.svg
  regard recipe --json

Exit codes: 0 done; 1 a check failed, or a result could not be saved; 2 a mistake in the arguments or the
data; 130 interrupted.
"""
ONE = """{about}

\b
Examples:
{examples}

Exit codes: 0 done; 1 a check failed, or a result could not be saved; 2 a mistake in the arguments or the
data; 130 interrupted.
"""
TRAIN = """Train a model at the recipe's default size and save it.

Every few seconds, after a whole epoch, the training is kept in FILE.checkpoint beside --out: after a kill the same
command goes on from it, to the same result. It is removed when the model is saved.

\b
Examples:
{examples}

Exit codes: 0 done; 1 the model could not be saved, the training diverged, or --doctor found a failure; 2 a
mistake in the arguments or the data; 130 interrupted (the same command continues).
"""
PREDICT = """{predict}

\b
Examples:
{examples}

Exit codes: 0 done; 1 the output could not be written; 2 a mistake in the arguments, the input or the model file;
130 interrupted.
"""
COMPARE = """Compare every score and the baselines under equal tuning.

Settings are chosen on validation rows, never on test rows. Intervals are for new seeds and new test rows. Each
finished run is kept in DIR/runs, and the same command continues. The results are NAME.json and NAME.html, a page in
English and Chinese.

\b
Examples:
{examples}

Exit codes: 0 done; 1 a contender failed, or a file could not be written; 2 a mistake in the arguments or the data;
130 interrupted, or stopped by --minutes (the same command continues).
"""
SHOW = """{show}

\b
Examples:
{examples}

Exit codes: 0 done; 1 the picture could not be written; 2 a mistake in the arguments, the input or the model file;
130 interrupted.
"""
TEXTS = {"train": TRAIN, "predict": PREDICT, "compare": COMPARE, "show": SHOW}


class Usage(NamedTuple):
    """What the help of one recipe says.

    Attributes:
        inputs: of `predict` and `show`, as the line of usage names them.
        predict, show: what these commands do with them.
        examples: of each command, what follows `regard recipe NAME`.
        contenders: what a full comparison compares, by the names that `--only` takes.
        score: the default of `--score`.
        search: the arguments of a search that `predict` offers.
        downloads: whether its public sets can be downloaded.
    """

    inputs: str
    predict: str
    show: str
    examples: dict[str, tuple[str, ...]]
    contenders: tuple[str, ...]
    score: str
    search: tuple[str, ...] = ()
    downloads: bool = True


SEARCH = ("beam", "n_best", "length_penalty")
USAGES = {
    "translate": Usage(
        "[SENTENCE]...",
        "Translate every SENTENCE. A SENTENCE is an argument in quotes, or a line of --file or of a pipe. A line of "
        "output is its translation; with --best several, separated by tabs.",
        "Draw which pieces of SENTENCE each piece of its translation attends to; without SENTENCE, of an example.",
        {
            "train": (
                "train",
                "train --set multi30k-de-en --data DIR --device cuda",
                "train --score cosine --out cosine.safetensors",
            ),
            "predict": (
                'predict "June 5, 2024" "5. Juni 2024"',
                "predict --file in.txt --to out.txt --beam 5",
                'predict "June 5, 2024" --best 3',
            ),
            "compare": (
                "compare --jobs 2",
                "compare --set multi30k-de-en --data DIR --full",
                "compare --seeds 3 --only additive --lang zh",
                "compare --json",
            ),
            "show": ("show", 'show "June 5, 2024" --to dates.svg'),
        },
        (
            "bahdanau", "luong", "no attention", "scaled dot", "cosine", "additive", "bilinear", "dot",
        ),
        "additive for dates, scaled_dot for others",
        SEARCH,
    ),
    "letters": Usage(
        "[WORD]...",
        "Say every WORD. A WORD is an argument, or a line of --file or of a pipe. A line of output is the word, a tab "
        "and its sounds; with --best several, separated by tabs.",
        "Draw which letters of WORD each of its sounds attends to; without WORD, of an example.",
        {
            "train": (
                "train",
                "train --score additive --out additive.safetensors",
                "train --set fre --download --doctor",
            ),
            "predict": (
                "predict attention regard",
                "predict --file words.txt --to sounds.txt --beam 5",
                "predict read --best 3",
            ),
            "compare": (
                "compare --jobs 2",
                "compare --set dut --data DIR --full",
                "compare --seeds 3 --only location,monotonic --lang zh",
                "compare --json",
            ),
            "show": ("show", "show attention --to attention.svg"),
        },
        (
            "additive", "scaled_dot", "dot", "cosine", "bilinear", "luong", "location", "monotonic",
            "no attention",
        ),
        "additive",
        SEARCH,
    ),
    "graph": Usage(
        "[GRAPH [NODE]...]",
        "Predict the classes of nodes. GRAPH is a set ({sets}) or a file .npz, "
        "and NODE a number or a name in it; without NODE, all nodes. In --file or a pipe each stands on a line, "
        "GRAPH first. A line of output is the node, a tab and its class.",
        "Draw which neighbours NODE of GRAPH attends to: GRAPH as in predict. Without NODE, the best connected one; "
        "without GRAPH, a set that the model fits.",
        {
            "train": (
                "train",
                "train --score gat --out gat.safetensors",
                "train --set cora --data DIR",
            ),
            "predict": (
                "predict karate",
                "predict karate 3 9 33",
                "predict mine.npz 0 1 --model mine.safetensors",
            ),
            "compare": (
                "compare --jobs 2",
                "compare --set cora --data DIR --full --jobs 8",
                "compare --set dictionary --seeds 3 --only gat --lang zh",
                "compare --json",
            ),
            "show": ("show", "show karate 33 --to karate.svg"),
        },
        (
            "scaled_dot", "gatv2", "gat", "additive", "cosine", "scaled_dot residual", "PyG GATConv",
            "PyG GATv2Conv", "PyG TransformerConv", "PyG GCNConv", "equal weights", "no edges",
            "logistic regression",
        ),
        "gatv2",
        downloads=False,
    ),
    "molecules": Usage(
        "[SMILES]...",
        "Predict a property of every molecule, given by its SMILES: an argument, or the first word of a line of "
        "--file or of a pipe. A line of output is the SMILES, a tab and the prediction.",
        "Draw which bonds and atoms the prediction for SMILES attends to; without SMILES, for aspirin.",
        {
            "train": (
                "train",
                "train --score additive --out additive.safetensors",
                "train --set esol --download",
            ),
            "predict": (
                'predict CCO "c1ccccc1O"',
                "predict --file in.smi --to out.txt",
                "predict --model mine.safetensors < in.smi",
            ),
            "compare": (
                "compare --jobs 2",
                "compare --set esol --data DIR --full --jobs 8",
                "compare --seeds 3 --only additive --lang zh",
                "compare --json",
            ),
            "show": ("show", 'show "CC(=O)Nc1ccc(O)cc1" --to molecule.svg'),
        },
        (
            "gatv2", "gat", "scaled_dot", "additive", "cosine", "mean over neighbours",
            "gatv2 + descriptors", "mean + descriptors", "forest descriptors", "forest fingerprints",
        ),
        "gatv2",
    ),
    "align": Usage(
        "[SERIES]...",
        "Classify every SERIES by the nearest training series. A SERIES is an argument in quotes, or a line of --file or "
        "of a pipe: numbers between spaces or commas, channels between semicolons. Put -- before one that "
        "begins with a minus. A line of output is "
        "its class.",
        "Draw how two SERIES fit: matched steps, costs with the cheapest path, energy over shifts. One SERIES is drawn "
        "with the training series nearest to it; without any, two training series are.",
        {
            "train": (
                "train",
                "train --set japanesevowels --score cosine",
                "train --set coffee --download --out coffee.safetensors",
            ),
            "predict": (
                "predict --file series.txt",
                'predict "0.1 0.4 0.9 0.3 0.1"',
                "predict --file series.txt --to classes.txt",
            ),
            "compare": (
                "compare",
                "compare --set ucr --data DIR --full",
                "compare --set trace --seeds 3 --only gatv2 --lang zh",
                "compare --json",
            ),
            "show": ("show", "show --to pair.png", 'show "0 1 2 1 0 0" "0 0 1 2 1 0"'),
        },
        (
            "scaled_dot", "cosine", "additive", "gatv2", "not learned", "euclid", "dtw", "dtw window",
            "msm", "twe",
        ),
        "scaled_dot",
    ),
    "anomaly": Usage(
        "[POINT]...",
        "Find the anomalies in one series. Each POINT is a number, or one for each channel with commas between, "
        "after an ISO 8601 time or not; an argument, or a line of --file or of a pipe, whose first line may be a "
        "header. A line of output is the number of a POINT from 0, a tab, and 1 for an alarm or 0.",
        "Draw a series of POINT as in predict, its scores, and the strangest window with what it attends to; without "
        "POINT, of the embedded set.",
        {
            "train": (
                "train",
                "train --score additive --out additive.safetensors",
                "train --set nab --data DIR",
            ),
            "predict": (
                "predict --file series.csv --to alarms.txt",
                "predict --file series.csv --model mine.safetensors",
                "predict < series.csv",
            ),
            "compare": (
                "compare --set daphnet",
                "compare --set nab --data DIR --full",
                "compare --seeds 3 --only gaussian,Sub-PCA --lang zh",
                "compare --json",
            ),
            "show": ("show", "show --to anomaly.png"),
        },
        (
            "gaussian", "scaled_dot", "cosine", "additive", "density", "forecast", "global query",
            "untrained", "equal weights", "Sub-PCA", "matrix profile", "median",
        ),
        "gaussian",
    ),
    "retrieve": Usage(
        "[QUERY]...",
        "Find documents for every QUERY: an argument in quotes, or a line of --file or of a pipe; a vector is its numbers "
        "with commas between. A line of output is QUERY, a tab and the id of its document; with --best several.",
        "Draw where QUERY found its document: which of its words attend to which of the document's, or the weights of "
        "the best documents. Without QUERY, for an example.",
        {
            "train": (
                "train",
                "train --set digits --score low_rank",
                "train --set tables --data DIR --out mine.safetensors",
            ),
            "predict": (
                'predict "return the absolute path"',
                "predict --file queries.txt --to found.txt --best 5",
                'predict "open a file" --best 3',
            ),
            "compare": (
                "compare --jobs 2",
                "compare --set cranfield --data DIR --full",
                "compare --set digits --only additive --lang zh",
                "compare --json",
            ),
            "show": ("show", 'show "return the absolute path" --to match.svg'),
        },
        (
            "cosine", "scaled_dot", "low_rank", "additive", "cosine late", "cosine hop", "mean", "BM25",
            "LSI",
        ),
        "cosine",
        ("n_best",),
    ),
}  # fmt: skip


def help_of(row: catalog.Listed, verb: str | None = None) -> str:
    """The help of a recipe's command, or of the recipe itself, with its own examples."""
    usage = USAGES[row.name]
    known = usage.examples
    told = [lines[0] for lines in known.values()] if verb is None else known[verb]
    examples = "\n".join(f"  regard recipe {row.name} {line}" for line in told)
    text = ONE if verb is None else TEXTS[verb]
    sets = ", ".join(catalog.sets(row))
    return text.format(
        about=row.about.en,
        examples=examples,
        predict=usage.predict.format(sets=sets),
        show=usage.show,
    )


def option_help(row: catalog.Listed, option: str, told: str) -> str:
    """The help of an option with the names and defaults of a recipe in it."""
    usage = USAGES[row.name]
    special = {
        "set_": f"{', '.join(catalog.sets(row))}.  [default: {row.own[0]}]",
        "score": f"Attention score: {', '.join(RECIPE_SCORES)}.  [default: {usage.score}]",
        "only": f"Only these contenders: {', '.join(usage.contenders)}.",
    }
    for ending in (".safetensors", ".svg"):  # of defaults
        told = told.replace(f"NAME{ending}", f"{row.name}{ending}")
    return special.get(option, told)
