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

# Queries, keys, columns of a step, warps, stages.
TILES = {
    ",".join(map(str, tile)): WideTile(*tile)
    for tile in (
        (128, 128, 64, 8, 3),
        (128, 128, 64, 8, 4),
        (128, 128, 64, 4, 3),
        (128, 128, 128, 8, 2),
        (128, 256, 64, 8, 3),
        (256, 128, 64, 8, 3),
        (64, 256, 64, 8, 3),
        (64, 128, 64, 4, 4),
        (64, 256, 64, 4, 3),
    )
}
# Widths of features, and heads at a time: as `fast` with 64 hidden units has them, and longer series.
WIDTHS = {256: 64, 512: 32, 1280: 16}
COLUMNS, CHUNK = 64, 1024


def kernel_calls(
    tile: WideTile, width: int, device: torch.device, heads: int, length: int
) -> dict[str, tuple[Callable[[], object], float]]:
    """A run of each kernel with this tile, and how much of the heads of the whole call it covers."""
    passes.tile_of = lambda signature: tile
    passes.attend_launch.cache_clear()
    passes.slopes_launch.cache_clear()
    count = WIDTHS[width]
    shape = (count, length)
    phi, psi = (torch.randn(*shape, width, device=device).mul(0.2).half() for _ in range(2))
    value, grad = (torch.randn(*shape, COLUMNS, device=device).half() for _ in range(2))
    out, lse = torch.empty_like(value), torch.zeros(shape, device=device)
    hiding = Hiding()
    Wide().forward(phi, psi, value, hiding, 0, out, lse)
    rows = min(CHUNK, length)
    p, slope = passes.matrices(phi.new_empty(2 * count * rows * length), count, rows, length)
    launch = passes.slopes_launch(passes.signature_of(phi, psi, value, hiding), rows, length)
    given = passes.addresses(phi, psi, value, grad, out, lse, p, slope)

    def slopes() -> None:
        launch(passes.current_stream(device), given, 0, 0)

    return {
        "forward": (lambda: Wide().forward(phi, psi, value, hiding, 0, out, lse), heads / count),
        "slopes": (slopes, heads / count * length / rows),
    }


def measured(device: torch.device, sizes: tuple[int, int, int]) -> tuple[dict[str, Any], str]:
    """Milliseconds and TFLOP/s of each kernel for all heads, by tile and width."""
    watch, found, lines = Stopwatch(device, small=False), {}, []
    heads, length = sizes[0] * sizes[1], sizes[2]
    for name, tile in TILES.items():
        for width in WIDTHS:
            key = f"tile {name}, width {width}"
            try:
                for kernel, (run, times) in kernel_calls(
                    tile, width, device, heads, length
                ).items():
                    run()
                    run()
                    ms = 1e3 * times * watch.sample(run, watch.first(run))
                    flops = 2 * heads * length**2 * (width + COLUMNS)
                    found[f"{key}, {kernel}"] = {"ms": ms, "TFLOP/s": flops / ms / 1e9}
                    lines.append(f"{key}, {kernel}: {ms:.3f} ms, {flops / ms / 1e9:.0f} TFLOP/s")
            except Exception as error:
                lines.append(f"{key}: {first_line(error)}")
                found[key] = {"failed": lines[-1]}
            torch.cuda.empty_cache()
    return {"results": found}, "\n".join(lines)


def once(name: str, device: torch.device, sizes: tuple[int, int, int]) -> None:
    """Both kernels of a tile at all widths, for the compiler."""
    for width in WIDTHS:
        try:
            for run, _ in kernel_calls(TILES[name], width, device, 1, sizes[2]).values():
                run()
        except Exception as error:
            print(first_line(error))
    torch.cuda.synchronize(device)
