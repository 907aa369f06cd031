"""The playground under the hands of a reader, in a real browser."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from regard.cli.play import CHAPTERS
from regard.play.serve import Server

from .. import phone

PHONE = 390
Visiting = Callable[..., Any]
BAD_LINKS = [
    "#plane", "#v=2", "#d=2", "#v=1&d=5", "#v=1&q=1", "#v=1&q=9,9", "#v=1&k=1,1", "#v=1&t=0",
    "#v=1&t=NaN", "#v=1&t=1e3", "#v=1&unknown=1", "#v=1&d=2&d=4", "#v=1&chapter=9", "#v=1&seed=1.5",
    "#v=1&key=H", "#v=1&text=%E0%A4%A", "#v=1&__proto__=1", "#v=1&lang=fr", "#v=1&heads=0",
    "#v=1&k=" + ";".join(["1,1"] * 9), "#v=1&text=" + "a" * 200,
]  # fmt: skip


def middle(page: Any, name: str) -> tuple[float, float]:
    """Where a point of the plane is on the screen."""
    box = page.locator(f'.point[data-name="{name}"] .dot').bounding_box()
    return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2


def weights(there: Any, name: str) -> list[float]:
    return there.call("vectors")["results"][name]["weights"]


def test_the_mouse_drags_the_query_and_a_key(visit: Visiting) -> None:
    there = visit("#v=1&q=1,0")
    page, unit = there.page, there.page.locator("#points").bounding_box()["width"] / 6
    assert page.locator(".drag-me").text_content() == "drag me"
    for name, field in (("q", "s.q"), ("2", "s.k[2]")):
        before, other = there.call("state"), weights(there, "scaled_dot")
        x, y = middle(page, name)
        page.mouse.move(x, y)
        page.mouse.down()
        page.mouse.move(x - unit / 2, y - unit / 4)
        page.mouse.move(x - unit, y - unit / 2)
        page.mouse.up()
        page.mouse.move(x, y)  # it is let go
        start = before["q"] if name == "q" else before["k"][2]
        there.until(
            f"Math.hypot({field}[0] - {start[0] - 1}, {field}[1] - {start[1] + 0.5}) < 0.03"
        )
        assert weights(there, "scaled_dot") != other
    assert page.locator(".drag-me").text_content() == ""
    assert there.call("state")["key"] == 2
    assert "key C" in page.locator("#numbers-hint").inner_text()
    # A click beside the points brings the query there.
    box = page.locator("#points").bounding_box()
    page.mouse.click(box["x"] + box["width"] / 2 + unit, box["y"] + box["height"] / 2 + 2.4 * unit)
    there.until("Math.abs(s.q[0] - 1) < 0.03 && Math.abs(s.q[1] + 2.4) < 0.03")


def test_the_arrow_keys_move_points(visit: Visiting) -> None:
    there = visit("#v=1&q=1,0")
    page = there.page
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.dataset.name") == "q"
    page.keyboard.press("ArrowUp")
    page.keyboard.press("Shift+ArrowLeft")
    assert there.call("state")["q"] == [0.5, 0.1]
    page.keyboard.press("Shift+Tab")
    name = int(page.evaluate("document.activeElement.dataset.name"))
    before = there.call("state")["k"][name]
    page.keyboard.press("ArrowDown")
    assert there.call("state")["k"][name] == pytest.approx([before[0], before[1] - 0.1])
    for _ in range(20):
        page.keyboard.press("Shift+ArrowRight")
    assert there.call("state")["k"][name][0] == 3  # the edge
    there.until("document.getElementById('live').textContent.includes('Entropy')")
    label = page.locator(f'.point[data-name="{name}"]').get_attribute("aria-label")
    assert label.startswith(f"Key {'ABCDEFGH'[name]}, at 3")


def test_everything_is_reached_by_tab(visit: Visiting) -> None:
    page = visit().page
    seen = []
    for _ in range(60):
        page.keyboard.press("Tab")
        seen.append(
            page.evaluate(
                "(e => e.id || e.dataset.name || e.dataset.chapter || e.className)"
                "(document.activeElement)"
            )
        )
    sliders = {
        f"set-{name}" for name in ("d", "n", "t", "qn", "kn", "loud", "pos", "h", "ln", "seed")
    }
    assert {"copy", "language", "theme", "3", "q", "name", "view-sentence", *sliders} <= set(seen)
    unnamed = page.evaluate(
        """[...document.querySelectorAll('button, input, select, [tabindex="0"]')].filter(
        e => e.checkVisibility() && !(e.textContent.trim() || e.labels?.length || e.getAttribute('aria-label'))).length"""
    )
    assert unnamed == 0


def test_sliders_and_switches(visit: Visiting) -> None:
    there = visit()
    page = there.page
    for name, keys, condition in (
        ("t", "Home", "s.t === 0.05"),
        ("qn", "End", "s.qn === 30"),
        ("kn", "Home", "s.kn === 0.1"),
        ("loud", "End", "s.loud === 100"),
        ("pos", "ArrowRight", "s.pos === 0.05"),
        ("h", "End", "s.h === 5"),
        ("d", "End", "s.d === 256"),
        ("n", "End", "s.k.length === 8"),
    ):
        page.locator(f"#set-{name}").press(keys)
        there.until(condition)
    page.locator("#set-who").select_option("H")
    page.locator("#set-n").press("Home")
    there.until("s.k.length === 2 && s.who === 1 && s.key === 0")
    page.locator("#set-ln").click()
    page.locator("#set-seed").click()
    there.until("s.ln && s.seed === 240")
    page.locator("#set-d").press("Home")
    page.get_by_text("keeps one bit").wait_for()
    page.locator("#reset").click()
    there.until("s.d === 2 && s.k.length === 5 && !s.ln")


def test_a_card_is_chosen(visit: Visiting) -> None:
    there = visit()
    there.page.get_by_role("button", name="Additive").click()
    there.until("s.score === 'additive'")
    assert there.page.locator("#hand-title").inner_text() == "By hand: Additive"
    assert there.page.locator(".card.chosen").count() == 1


def test_a_link_restores_a_state(visit: Visiting) -> None:
    link = (
        "#v=1&lang=zh&score=gaussian&d=16&q=-1.25,0.5&k=1,0;0,1;-2,-2&key=B&who=C&t=0.5&qn=2&kn=3"
        "&loud=10&pos=0.7&h=0.4&ln=1&seed=5&heads=2&text=a%20%26%20b%3D%23%E7%8C%AB"
    )
    first = visit(link)
    state = first.call("state")
    assert state["text"] == "a & b=#猫"
    assert (state["q"], state["k"][2], state["who"], state["ln"]) == (
        [-1.25, 0.5],
        [-2, -2],
        2,
        True,
    )
    second = visit(first.call("link"))
    assert second.call("state") == state
    assert second.call("vectors") == first.call("vectors")
    assert second.page.evaluate("document.documentElement.lang") == "zh-Hans"
    # The address follows what is done, and what is done follows the address.
    second.page.locator("#set-t").press("End")
    second.until("location.hash.includes('t=20')")
    second.page.evaluate("location.hash = '#v=1&chapter=4'")
    second.until("s.chapter === 4 && s.t === 0.15 && s.lang === 'zh'")


def test_a_chapter_is_its_short_link(visit: Visiting) -> None:
    there = visit()
    assert there.call("chapters") == CHAPTERS
    for number in range(1, CHAPTERS + 1):
        link = f"#v=1&chapter={number}&lang=en"
        assert there.call("restore", link)
        assert there.call("link") == link
        assert there.page.locator("#try").is_visible()
        pressed = there.page.locator(".chapter[aria-pressed=true]")
        assert pressed.inner_text().startswith(str(number))


def test_a_bad_link_is_ignored_with_a_note(visit: Visiting) -> None:
    there = visit("#v=1&nonsense=<b>")
    note = there.page.locator("#note")
    assert "could not be read" in note.inner_text()
    assert there.call("link") == "#v=1&lang=en"
    there.page.locator("#set-t").press("Home")
    note.wait_for(state="hidden")
    state = there.call("state")
    for link in BAD_LINKS:
        assert there.call("restore", link) is False, link
        assert note.is_visible()
        assert there.call("state") == state


def test_copy(visit: Visiting) -> None:
    there = visit("#v=1&chapter=3", permissions=["clipboard-read", "clipboard-write"])
    there.page.locator("#copy").click()
    there.page.get_by_text("Copied", exact=True).wait_for()
    copied = there.page.evaluate("navigator.clipboard.readText()")
    assert copied.endswith("playground.html#v=1&chapter=3&lang=en")


def test_two_languages(visit: Visiting) -> None:
    there = visit()
    english = there.page.inner_text("body")
    there.page.locator("#language").click()
    there.until("s.lang === 'zh'")
    chinese = there.page.inner_text("body")
    assert there.page.title() == "注意力游乐场"
    kept = {"GATv2", "GAT", "LayerNorm", "English", "regard"}
    same = set(english.splitlines()) & set(chinese.splitlines())
    assert not [x for x in same - kept if len(x) > 3 and " " in x and x.isascii() and x.islower()]
    assert there.call("state")["text"] == "猫看见狗，狗也看见猫"
    there.until("location.hash.includes('lang=zh')")
    there.page.locator("#language").click()
    there.until("s.lang === 'en'")
    assert visit(locale="zh-CN").call("state")["lang"] == "zh"


def test_the_switch_to_chinese_needs_no_chinese_font(visit: Visiting) -> None:
    """Without such a font its label was two boxes."""
    there = visit()
    switch = there.page.locator("#language")
    assert switch.inner_text().strip() == "ZH"
    drawn = switch.locator(".hanzi").bounding_box()
    assert drawn["width"] > 20 and drawn["height"] > 10
    switch.click()
    there.until("s.lang === 'zh'")
    assert not switch.locator(".hanzi").is_visible()
    assert switch.inner_text().strip() == "English"


def test_a_sentence_is_typed(visit: Visiting) -> None:
    there = visit()
    page = there.page
    page.locator("#view-sentence").click()
    page.locator("#sentence").fill("we see what we see 我们看见 <b>")
    words = ["we", "see", "what", "we", "see", "我", "们", "看", "见", "<", "b", ">"]
    there.until("s.view === 'sentence'")
    assert there.call("sentence")["words"] == words
    assert page.locator("#matrices canvas:visible").count() == 4
    canvas = page.locator("#matrices canvas").first
    box = canvas.bounding_box()
    canvas.hover(position={"x": box["width"] - 5, "y": box["height"] - 5})
    found = there.call("sentence")["heads"][0]
    assert f"{100 * found['weights'][11][11]:.1f}%" in page.locator("#readout").inner_text()
    canvas.press("ArrowUp")
    canvas.press("ArrowLeft")
    assert "“b” attends to “b”" in page.locator("#readout").inner_text()
    page.get_by_role("button", name="Cosine").last.click()
    page.locator("#set-heads").press("Home")
    there.until("s.score === 'cosine' && s.heads === 1")
    there.until("document.querySelectorAll('#matrices figure:not([hidden])').length === 1")
    page.locator("#sentence").fill("")
    page.get_by_text("Type a sentence.").wait_for()
    page.locator("#sentence").fill("x " * 40)
    page.get_by_text("The first 16 words").wait_for()


@pytest.mark.parametrize(("chapter", "lang"), [(3, "en"), (7, "zh")])
def test_a_phone(visit: Visiting, chapter: int, lang: str) -> None:
    there = visit(f"#v=1&chapter={chapter}&lang={lang}", width=PHONE, has_touch=True)
    page = there.page
    phone.check(page)
    small = page.evaluate(
        """[...document.querySelectorAll('p, th, td, label, button')].filter(
        e => e.offsetParent && parseFloat(getComputedStyle(e).fontSize) < 12).length"""
    )
    assert small == 0


def test_a_finger_drags_a_point_and_scrolls_beside_it(visit: Visiting) -> None:
    there = visit("#v=1&q=1,0", width=PHONE, has_touch=True, is_mobile=True)
    page = there.page
    page.locator("#points").scroll_into_view_if_needed()
    session = page.context.new_cdp_session(page)
    x, y = middle(page, "q")
    unit = page.locator("#points").bounding_box()["width"] / 6

    def touch(kind: str, *places: tuple[float, float]) -> None:
        points = [{"x": a, "y": b} for a, b in places]
        session.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})

    touch("touchStart", (x, y))
    for step in range(1, 5):
        touch("touchMove", (x - step * unit / 4, y + step * unit / 2))
    touch("touchEnd")
    there.until("Math.abs(s.q[0]) < 0.06 && Math.abs(s.q[1] + 2) < 0.06")
    touch("touchStart", (40, y))
    touch("touchMove", (40, y - 60))
    touch("touchMove", (40, y - 200))
    touch("touchEnd")
    there.until("scrollY > 50")
    assert there.call("state")["q"] == pytest.approx([0, -2], abs=0.06)


def test_dark_and_reduced_motion(visit: Visiting) -> None:
    paper = "getComputedStyle(document.body).backgroundColor"
    light = visit(color_scheme="light", reduced_motion="reduce").page
    dark = visit(color_scheme="dark", reduced_motion="no-preference").page
    bright, dim = light.evaluate(paper), dark.evaluate(paper)
    assert bright != dim
    for page, after in ((light, dim), (dark, bright)):
        page.locator("#theme").click()
        assert page.evaluate(paper) == after
        page.reload()
        assert page.evaluate(paper) == after
    moving = "getComputedStyle(document.querySelector('.drag-me')).animationName"
    assert (light.evaluate(moving), dark.evaluate(moving)) == ("none", "nod")


def test_maps_show_who_wins(visit: Visiting) -> None:
    """The colour of a card's map at a place is that of the key that wins for a query there."""
    there = visit(color_scheme="light")
    places = [(2.6, 0.1), (0.2, 2.7), (-2.7, 0.2), (-0.5, -2.7)]
    winners = {}
    for place in places:
        there.call("restore", f"#v=1&chapter=4&t=0.05&q={place[0]},{place[1]}")
        for name, result in there.call("vectors")["results"].items():
            if result["largest"] > 0.99:
                winners[name, place] = result["winner"]
    assert {name for name, _ in winners} >= {"dot", "cosine", "gaussian", "additive", "gat"}
    there.call("restore", "#v=1&chapter=4&t=0.05")  # the query out of the way
    there.until("s.q[0] === 1.4")
    shade = """([name, x, y]) => {
        const canvas = document.querySelector(`[data-score="${name}"] canvas`);
        const place = [(0.5 + x / 6) * canvas.width, (0.5 - y / 6) * canvas.height];
        const copy = new OffscreenCanvas(1, 1).getContext("2d");
        copy.drawImage(canvas, ...place.map(Math.floor), 1, 1, 0, 0, 1, 1);
        return [...copy.getImageData(0, 0, 1, 1).data.slice(0, 3)];
    }"""
    colours = [(0, 114, 178), (230, 159, 0), (0, 158, 115), (213, 94, 0), (204, 121, 167)]
    for (name, place), winner in winners.items():
        got = there.page.evaluate(shade, [name, *place])
        want = [255 + 0.64 * (part - 255) for part in colours[winner]]
        assert got == pytest.approx(want, abs=6), (name, place)


def test_it_is_the_same_page_when_served(browser: Any) -> None:
    complaints: list[str] = []
    with Server(0) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        page = browser.new_page()
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto(f"{server.url}#v=1&chapter=1")
        first = page.locator("#hand tbody td").first.inner_text()
        page.close()
        server.shutdown()
        thread.join()
    assert first == "2.0000"
    assert complaints == []


def test_without_script_it_says_so(visit: Visiting) -> None:
    note = visit(java_script_enabled=False).page.locator("noscript .note")
    assert note.is_visible()
    assert "needs JavaScript" in note.inner_text()
