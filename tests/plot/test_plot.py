"""Pictures of weights: what stands in them, and what is said of input that cannot be drawn."""

from __future__ import annotations

import io
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import regard
from regard import plot
from regard.plot import looks

ENGLISH = ["The", "agreement", "on", "the", "European", "Economic", "Area"]
FRENCH = ["L'", "accord", "sur", "la", "zone", "économique", "européenne", "<end>"]
CHINESE = ["注意力", "机制", "的", "打分", "函数", "，", "$x$", "\n"]


def some(*shape: int) -> torch.Tensor:
    return torch.randn(*shape).mul(2).softmax(-1)


def labels(axis) -> list[str]:
    return [text.get_text() for text in axis.get_ticklabels()]


def ink(figure) -> int:
    """How many pixels of the saved picture are not white."""
    from matplotlib.image import imread

    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=50)
    buffer.seek(0)
    return int((imread(buffer)[..., :3] < 0.97).any(-1).sum())


def panels(figure) -> list:
    return [axes for axes in figure.axes if axes.get_visible() and axes.images]


def test_alignment_names_every_token_and_draws_every_weight():
    weights = some(8, 7)
    figure = plot.alignment(weights, ENGLISH, FRENCH, title="English to French")
    (axes,) = [axes for axes in panels(figure) if axes.get_label() != "<colorbar>"]
    assert labels(axes.xaxis) == ENGLISH and labels(axes.yaxis) == FRENCH
    torch.testing.assert_close(torch.as_tensor(axes.images[0].get_array().data), weights.double())
    assert axes.images[0].get_clim() == (0, pytest.approx(weights.max().item()))
    assert ink(figure) > 2000


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64, torch.bool])
def test_any_dtype_strides_and_gradients(dtype):
    weights = torch.ones(3, 5).tril().to(dtype)
    if dtype.is_floating_point:
        weights.requires_grad_()
    assert ink(plot.alignment(weights.mT, "abc", "12345")) > 500


@pytest.mark.gpu
def test_weights_on_a_gpu():
    assert ink(plot.alignment(some(2, 3, 4).cuda(), "abcd", "123")) > 500


@pytest.mark.parametrize(("heads", "rows", "across"), [(2, 1, 2), (4, 2, 2), (6, 2, 3), (7, 2, 4)])
def test_heads_are_panels_with_shared_colours(heads, rows, across):
    figure = plot.alignment(some(1, heads, 4, 5), "abcde", "1234")
    shown = panels(figure)
    assert len(shown) == heads
    assert len({axes.images[0].get_clim() for axes in shown}) == 1
    assert shown[0].get_gridspec().get_geometry() == (rows, across)
    assert shown[-1].get_xlabel().startswith(f"head {heads} · ")


def test_values_are_written_and_small_ones_left_out():
    weights = torch.tensor([[0.251, 0.749, 0.0], [0.003, 0.997, 0.0]])
    axes = panels(plot.alignment(weights, "abc", "12", values=True))[0]
    assert [text.get_text() for text in axes.texts] == [".25", ".75", "1.00"]


def test_letters_of_any_script_and_signs():
    """CJK has a font, a dollar sign is no formula, white space can be seen. Warnings are errors."""
    from matplotlib import font_manager

    known = {font.name for font in font_manager.fontManager.ttflist}
    if not known & set(looks.FURTHER_FONTS):
        pytest.skip("no font with Chinese letters")
    figure = plot.alignment(some(8, 8), CHINESE, CHINESE)
    axes = panels(figure)[0]
    assert labels(axes.xaxis) == [*CHINESE[:-1], "↵"]
    assert ink(figure) > 2000


@pytest.mark.parametrize(
    "title",
    ["Down: the translation. Across: the sentence. Darker: more attention.", "x" * 90],
)
def test_a_title_that_is_wider_than_the_figure_gets_more_lines(title):
    short, long = (plot.alignment(some(1, 3, 3), title=one) for one in ("short", title))
    shown = long.get_suptitle()
    assert shown.replace("\n", "").replace(" ", "") == title.replace(" ", "")
    assert ink(long) > 500
    box = long._suptitle.get_window_extent()
    assert shown.count("\n") > 0 and box.x1 <= long.bbox.x1
    assert long.get_figheight() > short.get_figheight()
    assert looks.folded("竖为译文横为原文", 9) == ["竖为译文", "横为原文"], (
        "a character has two columns"
    )


@pytest.mark.parametrize("kind", ["alignment", "heads", "decoding", "entropy"])
def test_half_of_a_surrogate_pair_in_a_title_is_replaced(kind):
    """As a name that was cut in two has it; matplotlib raises UnicodeEncodeError when it draws."""
    figure = getattr(plot, kind)(
        some(1, 3, 3), ["a", "\ud83d", "c"], title="cut \ud83d\x00 in\ntwo"
    )
    assert figure.get_suptitle() == "cut �� in\ntwo"
    assert ink(figure) > 500


def test_half_of_a_surrogate_pair_in_the_name_of_a_score_is_replaced():
    figure = plot.compare({"dot \udc80": [0.1, 0.9], "cosine": [0.6, 0.4]}, ["a", "\ud800"])
    assert figure.axes[0].get_title(loc="left").startswith("dot �\n") and ink(figure) > 500


def test_long_tokens_lose_their_middle():
    assert looks.shown("supercalifragilisticexpialidocious") == "supercalifrag…ocious"
    assert looks.shown("中" * 30) == "中中中中中中…中中中"
    assert looks.columns(looks.shown("中文 mixed with latin letters")) <= looks.LONGEST
    assert [looks.shown(x) for x in ("", " ", "\t", "a b", "\x00")] == ["∅", "␣", "⇥", "a b", "�"]


def test_too_many_tokens_are_thinned():
    figure = plot.alignment(some(160, 220), [f"w{x}" for x in range(220)])
    axes = panels(figure)[0]
    assert labels(axes.xaxis)[:3] == ["w0", "w10", "w20"]
    assert figure.get_size_inches().max() < 16


def test_heads_of_a_model_one_row_for_each_layer():
    figure = plot.heads(some(3, 4, 6, 6), "abcdef")
    shown = panels(figure)
    assert len(shown) == 12
    assert [axes.get_ylabel() for axes in shown if axes.get_ylabel()] == [
        "layer 1", "layer 2", "layer 3",
    ]  # fmt: skip
    assert labels(shown[0].yaxis) == list("abcdef") and labels(shown[-1].xaxis) == list("abcdef")
    assert len(panels(plot.heads(some(7, 6, 6)))) == 7


def test_entropy_is_that_of_the_library():
    q, k, v = (torch.randn(1, 4, 9, 8) for _ in range(3))
    seen = regard.attend(q, k, v, want={"weights", "entropy"})
    image = panels(plot.entropy(seen.weights))[0].images[0]
    drawn = torch.as_tensor(image.get_array().data)
    torch.testing.assert_close(drawn, seen.entropy[0].double(), atol=1e-5, rtol=1e-5)
    assert image.get_clim() == (0, pytest.approx(torch.tensor(9.0).log().item()))


def test_entropy_of_a_query_that_sees_nothing_is_blank():
    weights = some(2, 3, 4)
    weights[1, 2] = 0
    image = panels(plot.entropy(weights, "abc"))[0].images[0]
    assert image.get_array().mask.tolist() == [[False] * 3, [False, False, True]]


def test_decoding_shows_where_the_weight_is_and_what_was_read():
    weights = torch.tensor([[1.0, 0, 0], [0, 0.5, 0.5], [0, 0, 0], [0, 0, 1.0]])
    main, side = plot.decoding(weights, "abc", "1234").axes[:2]
    path = main.lines[0].get_ydata()
    assert path[:2].tolist() == [0, 1.5] and path[3] == 2 and path[2] != path[2]
    assert [bar.get_width() for bar in side.patches] == [1, 0.5, 1.5]


def test_compare_marks_the_winner_of_each_score():
    figure = plot.compare({"dot": [0.1, 0.9], "cosine": torch.tensor([0.6, 0.4])}, ["a", "b"])
    winners = []
    for axes in figure.axes:
        faces = [bar.get_facecolor() for bar in axes.patches]
        winners.append(max(range(2), key=lambda place: -sum(faces[place])))
    assert winners == [1, 0]
    assert [axes.get_title(loc="left").split("\n")[0] for axes in figure.axes] == ["dot", "cosine"]


@pytest.mark.parametrize(
    ("draw", "says"),
    [
        (
            lambda: plot.alignment(some(2, 3, 4, 5)),
            r"draw one item of a batch, such as weights\[0\]",
        ),
        (lambda: plot.alignment(torch.ones(3)), "got shape"),
        (lambda: plot.alignment(some(3, 4), "abc", "1234"), "are the weights transposed"),
        (lambda: plot.alignment(some(3, 4), "abcdef", "123"), "source has 6 tokens"),
        (lambda: plot.alignment(torch.randn(9, 9)), "before the softmax"),
        (lambda: plot.alignment(torch.full((2, 2), float("nan"))), r"got nan at \(0, 0\)"),
        (lambda: plot.alignment(torch.ones(0, 3)), "nothing to draw"),
        (lambda: plot.alignment("weights"), "got a str"),
        (lambda: plot.alignment(torch.ones(2, 2, dtype=torch.complex64)), "real numbers"),
        (lambda: plot.heads(some(2, 3, 4), "abcd"), "got 3 x 4"),
        (lambda: plot.decoding(some(2, 3, 4)), r"weights.mean\(0\)"),
        (lambda: plot.compare({}), "got an empty mapping"),
        (lambda: plot.compare({"a": [1.0], "b": [0.5, 0.5]}), "a 1, b 2"),
    ],
)
def test_what_cannot_be_drawn_is_one_sentence(draw, says):
    with pytest.raises((TypeError, ValueError), match=says):
        draw()


def test_nothing_global_is_touched():
    import matplotlib as mpl

    before = dict(mpl.rcParams)
    plot.alignment(some(3, 4))
    assert dict(mpl.rcParams) == before
    probe = "import sys, torch; from regard import plot; plot.alignment(torch.eye(3)); "
    probe += "assert 'matplotlib.pyplot' not in sys.modules"
    subprocess.run([sys.executable, "-c", probe], check=True)


CALLS = {
    "alignment": lambda w: plot.alignment(w, "abc", "1234"),
    "heads": lambda w: plot.heads(w[None]),
    "decoding": lambda w: plot.decoding(w, "abc", "1234", title="$"),
    "entropy": lambda w: plot.entropy(w, "1234"),
    "compare": lambda w: plot.compare({"$a$": w[0], "b": w[1]}, "abc"),
}


@pytest.mark.parametrize("name", plot.__all__)
def test_weights_that_are_all_zero(name):
    assert ink(CALLS[name](torch.zeros(4, 3))) > 100


@pytest.mark.parametrize("name", plot.__all__)
def test_without_matplotlib_one_sentence(name, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.delitem(sys.modules, "regard.figures.render", raising=False)
    with pytest.raises(ImportError, match="pip install matplotlib"):
        CALLS[name](some(4, 3))


def test_numbers_too_small_to_read_are_left_out():
    axes = panels(plot.alignment(some(1, 300), values=True))[0]
    assert not axes.texts
    assert len(panels(plot.alignment(some(1, 300)))) == 1


def test_the_page_shows_what_its_code_draws():
    docs = Path(__file__).parents[2] / "docs"
    page = (docs / "plot.md").read_text()
    drawn = re.findall(r'savefig\("(\w+\.png)"', page)
    assert drawn == re.findall(r"\]\(plot/(\w+\.png)\)", page)
    assert sorted(drawn) == sorted(path.name for path in (docs / "plot").iterdir())
    assert {name.removesuffix(".png") for name in drawn} == set(plot.__all__)


def test_note_stands_below_the_title_in_plain_type_and_small_weights_look_small() -> None:
    weights = torch.full((2, 10), 0.1)
    figure = plot.alignment(weights, title="a word", note="Down: sounds.", scale_to=0.5)
    figure.draw_without_rendering()
    title, note = figure._suptitle, next(x for x in figure.texts if x.get_text() == "Down: sounds.")
    assert title.get_text().strip() == "a word"
    assert (note.get_fontsize(), note.get_fontweight()) == (9, "normal")
    assert note.get_window_extent().y0 > figure.axes[0].get_window_extent().y1
    image = next(axes.images[0] for axes in figure.axes if axes.images)
    assert image.get_clim() == (0, 0.5)
    bar = figure.axes[-1]
    assert [x.get_text() for x in bar.get_yticklabels()] == ["0.00", "0.25", "0.50"]
