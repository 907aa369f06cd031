"""What a page looks like on a phone: whether it can be read there without scrolling sideways."""

from __future__ import annotations

from typing import Any

WIDTH, HEIGHT = 390, 844
SMALLEST = (
    11  # px: what Chromium's own audit calls legible is 12, and drawings may be a little smaller
)
# Texts whose letters are smaller than that on the screen, with their size. An index or exponent may be
# smaller than the text that it stands in.
SMALL = """smallest => {
    const found = {};
    const size = (part) => {
        const matrix = part.getScreenCTM?.();
        return parseFloat(getComputedStyle(part).fontSize) * (matrix ? Math.hypot(matrix.a, matrix.b) : 1);
    };
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (walker.nextNode()) {
        const part = walker.currentNode.parentElement;
        const words = walker.currentNode.textContent.trim();
        if (!words || !part.checkVisibility() || part.closest(".unseen, script, style, noscript, sub, sup")) continue;
        const text = part.closest("text");
        const sizes = text ? [text, ...text.querySelectorAll("tspan")].filter(x => x.firstChild?.data?.trim()).map(size) : [size(part)];
        const largest = Math.max(...sizes);
        if (largest < smallest - 0.05) found[words.slice(0, 40)] = Math.round(largest * 10) / 10;
    }
    return found;
}"""
# Tables, pictures and code that reach over the edge of the screen outside a frame that scrolls.
OVER = """() => [...document.querySelectorAll("table, svg, canvas, pre, code, img")].filter(part => {
    if (!part.checkVisibility() || part.closest(".unseen, [aria-hidden=true]")) return false;
    for (let frame = part; frame; frame = frame.parentElement)
        if (/auto|scroll|hidden/.test(getComputedStyle(frame).overflowX)) return false;
    return part.getBoundingClientRect().right > innerWidth + 1;
}).map(part => part.outerHTML.slice(0, 80))"""


def check(page: Any) -> None:
    """Fail unless the page, as wide as a phone, fits, and every letter on it can be read."""
    assert page.viewport_size["width"] == WIDTH
    assert page.evaluate("document.scrollingElement.scrollWidth <= innerWidth")
    assert page.evaluate(OVER) == []
    assert page.evaluate(SMALL, SMALLEST) == {}
