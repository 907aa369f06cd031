"""The style of all figures: those of claims, `regard choose`, `regard bench` and `regard.plot`.

`canvas.py` draws one figure in one language. `render.py` has the style and turns a figure into bytes. The
contents of a figure belong to the package that draws it. Needs matplotlib, which is imported when something
is drawn.
"""
