"""Multi30k (Elliott et al. 2016): captions of photographs in English, German and French.

29,000 training, 1,014 validation and 1,000 test sentences (2016, Flickr). For research and education without profit,
so no sentence of it is shown in published pages.
"""

from __future__ import annotations

import os

from regard.recipes.datasets import Dataset, Part
from regard.recipes.sources import (
    PublicSet,
    RemoteFile,
    obtained,
    read_file,
)
from regard.text import Text

COMMIT = "a3d2e0d26b56f3846f66a952536ffed4e401d05a"
ADDRESS = f"https://raw.githubusercontent.com/multi30k/dataset/{COMMIT}/data/task1/raw"
PARTS = ("train", "val", "test_2016_flickr")
SHA256 = {
    "train.de": "2c2b73fd2b548fbcde3a875e0a78d6ee94d498bfdee6bd3eae3945779e9ddf72",
    "train.en": "460a15fbd157e34a7a9957ee388c1ca247fe47af3ef25fb50442af6c274e0fc6",
    "train.fr": "5925a3c18f1587b6b54b87743106e6e8ab93618edb6f65d19eac0621f853a10d",
    "val.de": "660e09eb7e1da2f856ea13ee5ad3cf6d36b3d5b0b733c857e94c5747a3dfc660",
    "val.en": "1f2a23d992769b5b3d209b0a10dd0b77c08cceb1f20dfb97ed0aafa49d107227",
    "val.fr": "5304e444d842e962b2dda4d816b70b22a1765b15401642b7ca37a67477e708dc",
    "test_2016_flickr.de": "4be6b5b3236b79c25475c6bb829800a7ce559e9ba7a1f6c2394fe4d40be46d16",
    "test_2016_flickr.en": "399a4382932c1aadd3ceb9bef1008d388a64c76d4ae4e9d4728c6f4301cac182",
    "test_2016_flickr.fr": "cb3160d69b002bb638e66cc7612fcd56cb0af82eadc9c142dedc438afb885ef6",
}
MULTI30K = PublicSet(
    folder="multi30k",
    files=tuple(
        RemoteFile(f"{name}.gz", f"{ADDRESS}/{name}.gz", sha256) for name, sha256 in SHA256.items()
    ),
    licence="derived from Flickr30K, for non-commercial research and education",
)
LANGUAGES = {
    "de": Text("German", "德语"),
    "en": Text("English", "英语"),
    "fr": Text("French", "法语"),
}
MULTI30K_SETS = {
    "multi30k-de-en": ("de", "en"),
    "multi30k-en-de": ("en", "de"),
    "multi30k-en-fr": ("en", "fr"),
}


def multi30k(
    name: str,
    data: str | os.PathLike[str] | None = None,
    download_it: bool = False,
    limit: int | None = None,
) -> Dataset:
    """The set of that name, such as "multi30k-de-en".

    Args:
        name: of the set.
        data: the folder that holds it; None for `REGARD_DATA`.
        download_it: get what is missing from its public address.
        limit: keep this many training pairs.

    Raises:
        DataError: it is missing or damaged.
    """
    source, target = MULTI30K_SETS[name]
    wanted = [f"{part}.{language}.gz" for part in PARTS for language in (source, target)]
    folder = obtained(MULTI30K, data, download_it, wanted)

    def part(which: str, most: int | None = None) -> Part:
        sides = [
            read_file(MULTI30K, folder, f"{which}.{language}.gz").decode().split("\n")[:most]
            for language in (source, target)
        ]
        # A file ends in a line break: nothing follows it.
        return Part(*(side[:-1] if side[-1] == "" else side for side in sides))

    one, other = LANGUAGES[source], LANGUAGES[target]
    return Dataset(
        name=name,
        title=Text(
            f"Multi30k, captions from {one.en} to {other.en}",
            f"Multi30k 图片说明，{one.zh}译{other.zh}",
        ),
        origin="public",
        train=part("train", limit),
        validation=part("val"),
        test=part("test_2016_flickr"),
        licence=MULTI30K.licence,
        show_rows=False,
    )
