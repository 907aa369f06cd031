"""Statements of the plan that no experiment tests yet, and the recipe that each of them waits for."""

from __future__ import annotations

from typing import NamedTuple

from regard.text import Text


class Absent(NamedTuple):
    """A statement without an experiment: its topic, and the name of the recipe that its experiment needs."""

    topic: Text
    recipe: str

    @property
    def reason(self) -> Text:
        """Why there is no experiment, as the end of a sentence."""
        return Text(
            f"waits for a recipe {self.recipe}, which does not exist yet",
            f"需要尚未建立的配方 {self.recipe}",
        )


# By the ids that they will have. A test keeps this list and the registry apart.
ABSENT = {
    "G4": Absent(
        Text("domain shift, by scale and by sensor drift", "领域偏移：尺度变化与传感器漂移"),
        "drift",
    ),
    "G5": Absent(
        Text("transfer to another domain with few labels", "向标签很少的另一领域迁移"), "transfer"
    ),
    "G6": Absent(Text("weights as evidence, not explanation", "权重是证据，不是解释"), "text"),
    "H5": Absent(
        Text(
            "alignment of audio with symbols and of image regions with words",
            "音频与符号、图像区域与词的对齐",
        ),
        "speech",
    ),
    "H6": Absent(
        Text("long-range pairs in sequences such as proteins", "蛋白质等序列中的长程配对"),
        "protein",
    ),
}


def absent_sentence() -> Text:
    """One sentence that lists the statements without an experiment, each with its reason."""
    return Text(
        "No experiment yet, since each waits for a recipe that does not exist: "
        + "; ".join(f"{name}, {one.topic.en} ({one.recipe})" for name, one in ABSENT.items())
        + ".",
        "尚无实验，因为各自所需的配方尚未建立："
        + "；".join(f"{name}，{one.topic.zh}（{one.recipe}）" for name, one in ABSENT.items())
        + "。",
    )
