"""Find the settings of the fused convolution's kernels that are correct, deterministic and fast on a GPU.

    PYTHONPATH=src:tests/models python benchmarks/fused_conv.py

The second layer of the paper's network, 16 and 64 rows, few and many models. Each kernel's tiles and stages are tried
in turn. Printed: the relative error against float64 on operands rounded to the precision (tf32 or bf16), in how many of
LAUNCHES launches a result differed from the first, and the time of a forward and backward pass. Pools whose outputs are
nearly tied are left out, because rounding decides which output they keep.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

import torch
from test_fused_conv import (  # type: ignore[import-not-found]
    GRADIENTS,
    Case,
    fused,
    in_float64,
    relative,
    tensors,
    where_clear,
    with_gradients,
)
from torch import Tensor

import fedmm.models.stacked.fused_conv as kernels

LAUNCHES = 30
TILES = [
    (places, weights, warps, stages)
    for places, weights in ((32, 128), (64, 128), (32, 64), (64, 64), (128, 64))
    for warps, stages in ((4, 1), (8, 1), (2, 1), (4, 2), (4, 3))
]


def tried(what: str, inputs: Sequence[Tensor], gradient: Tensor, precision: str) -> None:
    """Print errors, differing launches and time with the kernels' current settings."""

    def once() -> dict[str, Tensor]:
        found: dict[str, Tensor] = with_gradients(lambda *own: fused(*own, precision), inputs, gradient)
        return found

    try:
        first = once()
    except Exception as problem:  # a tile may need more memory than the GPU has
        sys.stdout.write(f"  {what}: {type(problem).__name__}\n")
        return
    errors = relative(first, in_float64(inputs, gradient, precision))
    changed = dict.fromkeys(("output", *GRADIENTS), 0)
    for _ in range(LAUNCHES):
        again = once()
        for name, value in again.items():
            changed[name] += not torch.equal(value, first[name])
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(LAUNCHES):
        once()
    torch.cuda.synchronize()
    seconds = (time.perf_counter() - began) / LAUNCHES
    told = ", ".join(f"{name} {errors[name]:.0e} ({changed[name]} differ)" for name in errors)
    sys.stdout.write(f"  {what}: {1e3 * seconds:.3f} ms; {told}\n")


def main() -> None:
    forward, weight, given = dict(kernels._FORWARD_STAGES), dict(kernels._WEIGHT_TILES), kernels._INPUT_STAGES
    for precision in ("tf32", "bf16"):
        for models, rows in ((2, 64), (18, 64), (3, 16)):
            sys.stdout.write(f"{precision}, {models} models, {rows} rows\n")
            *inputs, gradient = tensors(Case(models, rows, 32, 48, 14, 14, 5), "cuda")
            gradient = where_clear(inputs, gradient, precision)
            tried("as set", inputs, gradient, precision)
            for tile in TILES:
                kernels._WEIGHT_TILES["many"] = tile
                tried(f"weight gradient {tile}", inputs, gradient, precision)
            kernels._WEIGHT_TILES["many"] = weight["many"]
            for stages in (1, 2, 3, 4):
                kernels._FORWARD_STAGES["many"] = stages
                tried(f"forward, {stages} stages", inputs, gradient, precision)
            kernels._FORWARD_STAGES["many"] = forward["many"]
            for stages in (1, 2, 3, 4):
                kernels._INPUT_STAGES = stages
                tried(f"input gradient, {stages} stages", inputs, gradient, precision)
            kernels._INPUT_STAGES = given


if __name__ == "__main__":
    main()
