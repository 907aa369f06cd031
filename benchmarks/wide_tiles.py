"""The two wide kernels alone, by tile: `python benchmarks/wide.py --tiles` measures them.

src/regard/engines/wide/sizes.py takes its tiles from what this finds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from regard.engines.hiding import Hiding
from regard.engines.wide import passes
from regard.engines.wide.passes import Wide
from regard.engines.wide.sizes import WideTile
from regard.measuring.failures import first_line
from regard.measuring.stopwatch import Stopwatch

# Queries, keys, columns of a step, warps, stages, and a limit of registers, by kernel.
FORWARD = ((128, 128, 64, 8, 4), (128, 256, 64, 8, 3), (128, 256, 64, 8, 4), (256, 128, 64, 8, 3))
SLOPES = (
    (128, 128, 64, 8, 3),
    (128, 128, 64, 8, 4),
    (128, 128, 64, 8, 3, 128),
    (64, 128, 64, 4, 4),
    (64, 128, 64, 4, 3),
    (64, 128, 64, 4, 3, 168),
    (64, 128, 64, 4, 2, 168),
    (128, 64, 64, 4, 3, 168),
    (64, 64, 64, 4, 4),
    (64, 64, 64, 4, 3, 128),
    (64, 256, 64, 8, 3),
)
TILES = {
    f"{kernel} {','.join(map(str, tile))}": (kernel, WideTile(*tile))
    for kernel, tiles in (("forward", FORWARD), ("slopes", SLOPES))
    for tile in tiles
}
# Widths of features, and heads at a time: as `fast` with 64 hidden units has them, and longer series.
WIDTHS = {256: 64, 512: 32, 1280: 16}
COLUMNS, CHUNK = 64, 1024


def kernel_call(
    name: str, width: int, device: torch.device, heads: int, length: int
) -> tuple[Callable[[], object], float]:
    """A run of a kernel with a tile, and how often the whole call has as much work."""
    kernel, tile = TILES[name]
    passes.tile_of = lambda signature, slopes=False: tile
    passes.attend_launch.cache_clear()
    passes.slopes_launch.cache_clear()
    count = WIDTHS[width]
    shape = (count, length)
    phi, psi = (torch.randn(*shape, width, device=device).mul(0.2).half() for _ in range(2))
    value, grad = (torch.randn(*shape, COLUMNS, device=device).half() for _ in range(2))
    out, lse = torch.empty_like(value), torch.zeros(shape, device=device)
    hiding = Hiding()
    if kernel == "forward":
        return lambda: Wide().forward(phi, psi, value, hiding, 0, out, lse), heads / count
    rows = min(CHUNK, length)
    p, slope = passes.matrices(phi.new_empty(2 * count * rows * length), count, rows, length)
    launch = passes.slopes_launch(passes.signature_of(phi, psi, value, hiding), rows, length)
    tensors = (phi, psi, value, grad, torch.zeros_like(lse), lse, p, slope)

    def slopes() -> None:
        launch(passes.current_stream(device), passes.addresses(*tensors), 0, 0)

    return slopes, heads / count * length / rows


def measured(device: torch.device, sizes: tuple[int, int, int]) -> tuple[dict[str, Any], str]:
    """Milliseconds and TFLOP/s of each kernel for all heads, by tile and width."""
    watch, found, lines = Stopwatch(device, small=False), {}, []
    heads, length = sizes[0] * sizes[1], sizes[2]
    for name in TILES:
        for width in WIDTHS:
            key = f"{name}, width {width}"
            try:
                run, times = kernel_call(name, width, device, heads, length)
                run()
                run()
                ms = 1e3 * times * watch.sample(run, watch.first(run))
                flops = 2 * heads * length**2 * (width + COLUMNS)
                found[key] = {"ms": ms, "TFLOP/s": flops / ms / 1e9}
                lines.append(f"{key}: {ms:.3f} ms, {flops / ms / 1e9:.0f} TFLOP/s")
            except Exception as error:
                lines.append(f"{key}: {first_line(error)}")
                found[key] = {"failed": lines[-1]}
            torch.cuda.empty_cache()
    return {"results": found}, "\n".join(lines)


def once(name: str, device: torch.device, sizes: tuple[int, int, int]) -> None:
    """The kernel of a tile at all widths, for the compiler."""
    for width in WIDTHS:
        try:
            kernel_call(name, width, device, 1, sizes[2])[0]()
        except Exception as error:
            print(first_line(error))
    torch.cuda.synchronize(device)
