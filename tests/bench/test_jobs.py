"""Who is measured in which setting."""

from __future__ import annotations

from regard.bench import jobs
from regard.bench.options import parser

from .made import DOTS_BY_NAME, OURS_BY_NAME


def names_of(*arguments: str) -> dict[str, list[str]]:
    """Who is measured on a GPU, by setting."""
    options = parser().parse_args([*arguments])
    sizes = {"lengths": options.lengths, "hidden": options.hidden, "quick": options.quick}
    found = jobs.chosen_jobs(options.suite, "cuda", options.peers, **sizes)
    return {job.setting.name: [c.name for c in job.candidates] for job in found}


def test_on_a_gpu_each_suite_measures_what_it_needs() -> None:
    found = names_of("--suite", "shapes", "--suite", "bars")
    assert list(found)[:3] == [
        "square 4096, hidden 16",
        "square 4096, hidden 64",
        "NMT decoder 512",
    ]
    assert found["square 4096, hidden 16"] == [
        "sine fast", "sine matched", "exact", "textbook eager", "textbook linear", "textbook compiled",
        "dot cuDNN",
    ]  # fmt: skip
    assert found["square 4096, hidden 64"] == ["exact", "exact determ.", "dot cuDNN"]
    assert "textbook compiled" in found["speech"] and "exact determ." not in found["speech"]
    assert [name for name in found["speech"] if name.startswith("dot")] == ["dot cuDNN"]
    # A setting of two suites is measured for both; backends that are asked for are there.
    both = names_of("--suite", "bars", "--suite", "square")["square 4096, hidden 16"]
    assert {"textbook eager", "exact determ.", "dot math"} <= set(both) and "Keras" not in both
    asked = names_of("--suite", "bars", "--peers", "dot flash,Keras")["square 4096, hidden 64"]
    assert asked == [
        "sine fast",
        "sine matched",
        "exact",
        "exact determ.",
        "Keras",
        "dot cuDNN",
        "dot flash",
    ]


def test_square_on_a_gpu_follows_one_rule() -> None:
    """Every peer where that tells most, dot through every backend once for each length."""
    found = names_of("--suite", "square")
    assert len(found) == 28
    everybody = [*OURS_BY_NAME, *(c.name for c in jobs.PEERS)]
    for name, names in found.items():
        length, hidden = (int(word) for word in name.removeprefix("square ").split(", hidden "))
        if hidden == 16 and length in (512, 2048, 8192):
            assert names == everybody
        else:
            dots = DOTS_BY_NAME if hidden == 16 else DOTS_BY_NAME[:1]
            assert names == [*OURS_BY_NAME, "textbook compiled", *dots]
    quick = names_of("--suite", "square", "--quick")
    assert [n for n, names in quick.items() if names == everybody] == [
        "square 512, hidden 16",
        "square 2048, hidden 16",
    ]


def test_quick_alone_is_a_first_look_without_compilers() -> None:
    for device, long, short in (("cuda", 2048, 512), ("cpu", 512, 256)):
        found = jobs.chosen_jobs(None, device, None, quick=True)
        assert [job.setting.name for job in found] == [
            f"square {long}, hidden 16",
            "NMT decoder 512",
            f"square {short}, hidden 16",
        ]
        names = [{c.name for c in job.candidates} for job in found]
        assert all({"sine matched", "exact", "textbook eager"} < some for some in names)
        assert not any({"textbook compiled", "FlexAttention", "Keras"} & some for some in names)
        # The plan's choice differs from the engines beside it in the decoder alone.
        assert ["as chosen" in some for some in names] == [False, True, False]
    asked = jobs.chosen_jobs(None, "cpu", "Keras", quick=True)
    assert all("Keras" in [c.name for c in job.candidates] for job in asked)


def test_peers_are_named_for_every_setting_instead() -> None:
    for names in names_of("--suite", "square", "--peers", "none").values():
        assert names == [*OURS_BY_NAME, "dot cuDNN"]
    for names in names_of("--suite", "square", "--peers", " All").values():
        assert names == [*OURS_BY_NAME, *(c.name for c in jobs.PEERS)]


def test_on_the_cpu_everybody_is_measured_everywhere() -> None:
    found = jobs.chosen_jobs(None, "cpu", None)
    assert all(
        job.candidates == list(jobs.CANDIDATES[1:]) for job in found if job.setting.heads > 1
    )
    few = jobs.chosen_jobs(["square"], "cpu", "none")[0].candidates
    assert [c.name for c in few] == [*OURS_BY_NAME, *DOTS_BY_NAME]
