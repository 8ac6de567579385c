"""Where the fused convolution's weight gradient in tf32 leaves what float64 gives on operands cut to tf32; needs a GPU.

    PYTHONPATH=src:tests/models python benchmarks/fused_weights.py

Pools whose outputs are nearly tied are left out: which of them is kept is a matter of rounding. For several tiles and
numbers of pipeline stages: the relative error, how many weights are off by more than 1 % of their standard deviation,
in which outputs, and whether a second launch gives the same bits.
"""

from __future__ import annotations

import sys

import torch
from test_fused_conv import Case, fused, in_float64, tensors, where_clear, with_gradients  # type: ignore[import-not-found]

import fedmm.models.fused_conv as kernels


def main() -> None:
    for rows in (16, 64):
        *inputs, gradient = tensors(Case(3, rows, 32, 48, 14, 14, 5), "cuda")
        gradient = where_clear(inputs, gradient, "tf32")
        expected = in_float64(inputs, gradient, "tf32")["weight"]
        for tile in ((32, 128, 4), (64, 128, 4), (32, 64, 4)):
            for stages in (1, 2, 3):
                kernels._WEIGHT_TILES["many"] = (*tile, stages)
                first, second = (
                    with_gradients(lambda *own: fused(*own, "tf32"), inputs, gradient)["weight"].double()
                    for _ in range(2)
                )
                off = ((first - expected).abs() > 0.01 * expected.std()).nonzero()
                error = float((first - expected).norm() / expected.norm())
                sys.stdout.write(
                    f"rows {rows}, tile {tile}, stages {stages}: error {error:.2e}, off {len(off)} {off[:6].tolist()}, "
                    f"repeats {torch.equal(first, second)}\n"
                )


if __name__ == "__main__":
    main()
