"""LeNet for many clients at once: parameters with a leading axis ``[G, ...]``, pictures ``[G, rows, 28, 28]``.

A 5 x 5 convolution is computed as the product of five rows of a picture and a banded matrix that repeats the weights
for every position in a row. The zeros cost three to six times the necessary multiplications, but there is one large
product per client, its input needs no rearranging, and the values that pooling compares lie side by side.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

KERNEL = 5


def _band(matrix: Tensor, odd: int) -> Tensor:
    """Return a view of the weights in ``[G, kernel, width, in, 2, places / 2, out]``, at even or odd places of a row.

    ``[G, kernel, kernel, in, places / 2, out]``: kernel row and column, input channel, place, output channel.
    """
    stack, kernel, _, channels, _, places, out = matrix.shape
    per_stack, per_row, per_column, per_channel, per_parity, per_place, _ = matrix.stride()
    return matrix.as_strided(
        (stack, kernel, kernel, channels, places, out),
        (per_stack, per_row, per_column, per_channel, 2 * per_column + per_place, 1),
        odd * (per_column + per_parity),
    )


class _ConvPoolRelu(torch.autograd.Function):
    """Convolve, pool, ReLU. x ``[G, rows, height, width * in]``, weight ``[G, out, in, 5, 5]``, bias ``[G, out]``."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        stack, count, height, across = x.shape
        out, channels = weight.shape[1:3]
        width = across // channels
        left, half = height - KERNEL + 1, (width - KERNEL + 1) // 2
        size = (stack, count, left, KERNEL * across)
        strips = x.as_strided(size, (count * height * across, height * across, across, 1)).reshape(
            stack, count * left, KERNEL * across
        )
        matrix = x.new_zeros(stack, KERNEL, width, channels, 2, half, out)
        spread = weight.permute(0, 3, 4, 2, 1).unsqueeze(4)
        for odd in (0, 1):
            _band(matrix, odd).copy_(spread.expand(-1, -1, -1, -1, half, -1))
        product = torch.bmm(strips, matrix.view(stack, KERNEL * across, -1))
        pairs = product.view(stack, count, left // 2, 2, 2, half * out)
        columns = torch.maximum(pairs[..., 0, :], pairs[..., 1, :])
        pooled = torch.maximum(columns[..., 0, :], columns[..., 1, :])
        h = pooled.view(stack, -1, out).add_(bias.unsqueeze(1)).relu_().view(pooled.shape)
        first_column, first_row = pairs[..., 0, :] >= pairs[..., 1, :], columns[..., 0, :] >= columns[..., 1, :]
        ctx.save_for_backward(strips, matrix, first_column, first_row, h)
        ctx.shape = x.shape
        return h

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor, Tensor]:
        strips, matrix, first_column, first_row, h = ctx.saved_tensors
        stack, count, height, across = ctx.shape
        out = matrix.shape[-1]
        g = torch.where(h > 0, gradients[0], 0.0)
        columns = _unpooled(g, first_row)
        d = _unpooled(columns, first_column).view(*strips.shape[:2], -1)
        d_matrix = torch.bmm(strips.transpose(1, 2), d).view(matrix.shape)
        d_weight = (_band(d_matrix, 0) + _band(d_matrix, 1)).sum(dim=4).permute(0, 4, 3, 1, 2)
        d_bias = g.view(stack, -1, out).sum(dim=1)
        if not ctx.needs_input_grad[0]:
            return None, d_weight, d_bias
        back = torch.bmm(d, matrix.view(stack, KERNEL * across, -1).transpose(1, 2))
        left = height - KERNEL + 1
        back = back.view(stack, count, left, KERNEL, across)
        dx = back.new_zeros(ctx.shape)
        for row in range(KERNEL):
            dx[:, :, row : row + left] += back[:, :, :, row]
        return dx, d_weight, d_bias


def _unpooled(g: Tensor, first: Tensor) -> Tensor:
    """Route g ``[..., n]`` to the larger of each pair, ``[..., 2, n]``."""
    pairs = g.new_empty(*g.shape[:-1], 2, g.shape[-1])
    torch.mul(g, first, out=pairs[..., 0, :])
    torch.sub(g, pairs[..., 0, :], out=pairs[..., 1, :])
    return pairs


def outputs(tensors: Mapping[str, Tensor], x: Tensor) -> Tensor:
    """Return the outputs of G networks for ten classes, ``[G, rows, 10]``; the last layer also has a ReLU."""
    stack, count = x.shape[:2]
    h: Tensor = x
    for layer in ("conv1", "conv2"):
        h = _ConvPoolRelu.apply(h, tensors[f"{layer}.weight"], tensors[f"{layer}.bias"])  # type: ignore[no-untyped-call]
    h = h.view(stack, count, 4, 4, 16).permute(0, 1, 4, 2, 3).reshape(stack, count, 256)
    for layer in ("fc1", "fc2", "fc3"):
        weight, bias = tensors[f"{layer}.weight"], tensors[f"{layer}.bias"]
        h = torch.baddbmm(bias.unsqueeze(1), h, weight.transpose(1, 2)).relu()
    return h


def scores(tensors: Mapping[str, Tensor], x: Tensor) -> Tensor:
    """Return the softmax of class 1, ``[G, rows]``."""
    return outputs(tensors, x).softmax(dim=-1)[..., 1]
