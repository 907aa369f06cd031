"""How figures look, for claims, `regard choose`, `regard bench` and `regard.plot` alike.

`canvas.py` draws one figure in one language; `render.py` has the style and turns a figure into bytes.
What a figure shows belongs to the part that draws it. Needs matplotlib, imported when something is drawn.
"""
