"""Cranfield 1400 (Cleverdon 1967): 1,400 abstracts of aerodynamics, 225 queries and judgements of relevance.

A judgement names a query by its place in the file, 1 to 225, not by the number beside it; 0 stands for not relevant.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict

from regard.recipes.sources import PublicSet, RemoteFile, obtained, read_file

ADDRESS = (
    "https://raw.githubusercontent.com/oussbenk/cranfield-trec-dataset/"
    "1208e6edfb6cb2527b2c44398d3d8fefd3249144/"
)
TEXTS, ASKED, JUDGED = "cran.all.1400.xml.gz", "cran.qry.xml.gz", "cranqrel.trec.txt"
CRANFIELD = PublicSet(
    "cranfield",
    (
        RemoteFile(
            TEXTS,
            ADDRESS + "cran.all.1400.xml",
            "369eb64e59d855b62463832f1338f471cede578571ee7fb33e3592a2a138ff47",
        ),
        RemoteFile(
            ASKED,
            ADDRESS + "cran.qry.xml",
            "b609a59e980857ba59d098f33433822a5c200bcf6836a320babf2b1a5e7545eb",
        ),
        RemoteFile(
            JUDGED,
            ADDRESS + "cranqrel.trec.txt",
            "98a13b4913d61a02690725aee7ac4f6a1979c13fc9088ad9b4a81be58b1a6f11",
        ),
    ),
    "none stated: no text of it is shown here",
)


def cranfield_rows(
    data: str | os.PathLike[str] | None, download: bool
) -> tuple[list[int], list[str], list[str], list[list[int]]]:
    """Numbers of the documents, their texts, the queries, and the numbers of the relevant documents of each query."""
    folder = obtained(CRANFIELD, data, download)
    content = {one: read_file(CRANFIELD, folder, one).decode() for one in (TEXTS, ASKED, JUDGED)}
    numbers, texts = [], []
    for block in between(content[TEXTS], "doc"):
        numbers.append(int(between(block, "docno")[0]))
        texts.append(between(block, "text")[0].strip())
    queries = [between(block, "title")[0].strip() for block in between(content[ASKED], "top")]
    relevant: dict[int, set[int]] = defaultdict(set)
    for line in content[JUDGED].splitlines():
        place, _, document, grade = map(int, line.split())
        if grade > 0:
            relevant[place].add(document)
    return numbers, texts, queries, [sorted(relevant[n + 1]) for n in range(len(queries))]


def between(text: str, tag: str) -> list[str]:
    """What stands between each opening and closing tag; the files are no valid XML."""
    return re.findall(f"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
