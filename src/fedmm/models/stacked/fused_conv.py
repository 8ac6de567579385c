"""Triton kernels for convolution, bias, ReLU and 2x2 max-pooling of many models at once.

Library convolutions are tuned for one large model; here each of G small models has its own weights. One kernel computes
a pooled output directly (the largest of four convolution outputs per pixel), so nothing between input and pooled output
is written to memory. The backward pass needs only the pooled gradient and the index of the kept output.

Layouts: x ``[G, rows, C, H, W]``, weight ``[G, kernel * kernel * C, O]`` with the channel varying fastest, bias
``[G, O]``, output ``[G, rows, O, H / 2, W / 2]``. Stride 1 and padding kernel // 2; H and W are even.
"""

from __future__ import annotations

from typing import Any, cast

import torch
import triton
import triton.language as tl
from torch import Tensor

_DROPPED = 4
"""The kept index of a pixel that ReLU set to zero."""


@triton.jit
def _dot(a, b, acc, precision: tl.constexpr):
    if precision == "bf16":
        acc = tl.dot(a.to(tl.bfloat16), b.to(tl.bfloat16), acc)
    else:
        acc = tl.dot(a, b, acc, input_precision=precision)
    return acc


@triton.jit
def _larger(best, kept, value, which: tl.constexpr):
    """Return the larger of two values and its index; NaN wins, as in torch's pooling, so that it is not hidden."""
    wins = (value > best) | (value != value)  # noqa: PLR0124 - only NaN differs from itself
    return tl.where(wins, value, best), tl.where(wins, which, kept)


@triton.jit
def _forward(
    x_ptr, w_ptr, b_ptr, out_ptr, kept_ptr, first_ptr, pixels,
    H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, OUTS: tl.constexpr, S: tl.constexpr, rows: tl.constexpr,
    PIXELS: tl.constexpr, OUT: tl.constexpr, INNER: tl.constexpr, precision: tl.constexpr,
):  # fmt: skip
    model = tl.program_id(1).to(tl.int64)
    pixel = tl.program_id(0) * PIXELS + tl.arange(0, PIXELS)
    inside = pixel < pixels
    px = pixel % (W // 2)
    py = pixel // (W // 2) % (H // 2)
    row = pixel // ((W // 2) * (H // 2))
    o = tl.arange(0, OUT)
    x_ptr += model * rows * H * W * C
    w_ptr += model * S * S * C * OUTS
    acc0 = tl.zeros((PIXELS, OUT), dtype=tl.float32)
    acc1 = tl.zeros((PIXELS, OUT), dtype=tl.float32)
    acc2 = tl.zeros((PIXELS, OUT), dtype=tl.float32)
    acc3 = tl.zeros((PIXELS, OUT), dtype=tl.float32)
    for start in range(0, S * S * C, INNER):
        k = start + tl.arange(0, INNER)
        c = k % C
        tap = k // C
        dy = tap // S - S // 2
        dx = tap % S - S // 2
        w = tl.load(
            w_ptr + k[:, None] * OUTS + o[None, :], mask=(k < S * S * C)[:, None] & (o < OUTS)[None, :], other=0.0
        )
        y = 2 * py[:, None] + dy[None, :]
        z = 2 * px[:, None] + dx[None, :]
        known = inside[:, None] & (k < S * S * C)[None, :]
        at = x_ptr + ((row[:, None] * H + y) * W + z) * C + c[None, :]
        top = known & (y >= 0) & (y < H)
        low = known & (y + 1 >= 0) & (y + 1 < H)
        left = (z >= 0) & (z < W)
        right = (z + 1 >= 0) & (z + 1 < W)
        acc0 = _dot(tl.load(at, mask=top & left, other=0.0), w, acc0, precision)
        acc1 = _dot(tl.load(at + C, mask=top & right, other=0.0), w, acc1, precision)
        acc2 = _dot(tl.load(at + W * C, mask=low & left, other=0.0), w, acc2, precision)
        acc3 = _dot(tl.load(at + W * C + C, mask=low & right, other=0.0), w, acc3, precision)
    best = acc0
    kept = tl.zeros((PIXELS, OUT), dtype=tl.int32)
    best, kept = _larger(best, kept, acc1, 1)
    best, kept = _larger(best, kept, acc2, 2)
    best, kept = _larger(best, kept, acc3, 3)
    best += tl.load(b_ptr + model * OUTS + o, mask=o < OUTS, other=0.0)[None, :]
    kept = tl.where(best <= 0, 4, kept)
    best = tl.where(best < 0, 0.0, best)
    to = model * pixels * OUTS + pixel[:, None] * OUTS + o[None, :]
    stored = inside[:, None] & (o < OUTS)[None, :]
    tl.store(out_ptr + to, best, mask=stored)
    tl.store(kept_ptr + to, kept.to(tl.int8), mask=stored)
    area = (H // 2) * (W // 2)
    channel_first = model * pixels * OUTS + (row[:, None] * OUTS + o[None, :]) * area + (pixel % area)[:, None]
    tl.store(first_ptr + channel_first, kept.to(tl.int8), mask=stored)


@triton.jit
def _spread(
    g_ptr, kept_ptr, to_ptr, places,
    H: tl.constexpr, W: tl.constexpr, OUTS: tl.constexpr, PLACES: tl.constexpr, OUT: tl.constexpr,
):  # fmt: skip
    """Write the pooled gradient to the convolution outputs that pooling kept, 0 elsewhere; all channel-last."""
    model = tl.program_id(1).to(tl.int64)
    place = tl.program_id(0) * PLACES + tl.arange(0, PLACES)
    x = place % W
    y = place // W % H
    o = tl.arange(0, OUT)
    pixel = (place // (H * W) * (H // 2) + y // 2) * (W // 2) + x // 2
    which = y % 2 * 2 + x % 2
    mask = (place < places)[:, None] & (o < OUTS)[None, :]
    at = model * (places // 4) * OUTS + pixel[:, None] * OUTS + o[None, :]
    g = tl.load(g_ptr + at, mask=mask, other=0.0)
    kept = tl.load(kept_ptr + at, mask=mask, other=4)
    to = model * places * OUTS + place[:, None] * OUTS + o[None, :]
    tl.store(to_ptr + to, tl.where(kept == which[:, None], g, 0.0), mask=mask)


@triton.jit
def _spread_channel_first(
    g_ptr, kept_ptr, to_ptr, elements, H: tl.constexpr, W: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """Do the same as ``_spread`` channel-first, for each element of ``[models * rows * outputs, H, W]``."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    x = at % W
    y = at // W % H
    pixel = (at // (H * W) * (H // 2) + y // 2) * (W // 2) + x // 2
    mask = at < elements
    g = tl.load(g_ptr + pixel, mask=mask, other=0.0)
    kept = tl.load(kept_ptr + pixel, mask=mask, other=4)
    tl.store(to_ptr + at, tl.where(kept == y % 2 * 2 + x % 2, g, 0.0), mask=mask)


@triton.jit
def _weight_gradient(
    x_ptr, g_ptr, dw_ptr, db_ptr, places, models, per_part: tl.constexpr,
    H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, OUTS: tl.constexpr, S: tl.constexpr, rows: tl.constexpr,
    PLACES: tl.constexpr, OUT: tl.constexpr, INNER: tl.constexpr, precision: tl.constexpr,
):  # fmt: skip
    """Compute a tile of one model's weight gradient over one part of the places; the parts are summed afterwards.

    The product sums over places, so x and the spread gradient are read channel-first, where places vary fastest.
    """
    model = tl.program_id(2).to(tl.int64)
    part = tl.program_id(1)
    k = tl.program_id(0) * INNER + tl.arange(0, INNER)
    c = k % C
    tap = k // C
    dy = tap // S - S // 2
    dx = tap % S - S // 2
    o = tl.arange(0, OUT)
    x_ptr += model * places * C
    g_ptr += model * places * OUTS
    shift = (c * H + dy) * W + dx
    acc = tl.zeros((OUT, INNER), dtype=tl.float32)
    bias = tl.zeros((OUT,), dtype=tl.float32)
    for start in range(0, per_part, PLACES):
        place = part * per_part + start + tl.arange(0, PLACES)
        inside = place < places
        x = place % W
        y = place // W % H
        row = place // (H * W)
        within = place % (H * W)
        from_g = (row * (OUTS * H * W) + within)[None, :] + (o * (H * W))[:, None]
        g = tl.load(g_ptr + from_g, mask=(o < OUTS)[:, None] & inside[None, :], other=0.0)
        bias += tl.sum(g, axis=1)
        yy = y[:, None] + dy[None, :]
        xx = x[:, None] + dx[None, :]
        seen = inside[:, None] & (k < S * S * C)[None, :] & (yy >= 0) & (yy < H) & (xx >= 0) & (xx < W)
        from_x = (row * (C * H * W) + within)[:, None] + shift[None, :]
        acc = _dot(g, tl.load(x_ptr + from_x, mask=seen, other=0.0), acc, precision)
    to = dw_ptr + (part * models + model) * S * S * C * OUTS + k[None, :] * OUTS + o[:, None]
    tl.store(to, acc, mask=(k < S * S * C)[None, :] & (o < OUTS)[:, None])
    if tl.program_id(0) == 0:
        tl.store(db_ptr + (part * models + model) * OUTS + o, bias, mask=o < OUTS)


@triton.jit
def _input_gradient(
    g_ptr, w_ptr, dx_ptr, places,
    H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, OUTS: tl.constexpr, S: tl.constexpr,
    PLACES: tl.constexpr, IN: tl.constexpr, INNER: tl.constexpr, precision: tl.constexpr,
):  # fmt: skip
    """Compute the gradient of a block of input places, channel-last, summed over the outputs they affect."""
    model = tl.program_id(1).to(tl.int64)
    place = tl.program_id(0) * PLACES + tl.arange(0, PLACES)
    inside = place < places
    x = place % W
    y = place // W % H
    c = tl.arange(0, IN)
    g_ptr += model * places * OUTS
    w_ptr += model * S * S * C * OUTS
    acc = tl.zeros((PLACES, IN), dtype=tl.float32)
    for tap in range(S * S):
        dy = tap // S - S // 2
        dx = tap % S - S // 2
        seen = inside & (y - dy >= 0) & (y - dy < H) & (x - dx >= 0) & (x - dx < W)
        at = place - dy * W - dx
        for start in tl.static_range(0, OUTS, INNER):
            o = start + tl.arange(0, INNER)
            g = tl.load(g_ptr + at[:, None] * OUTS + o[None, :], mask=seen[:, None] & (o < OUTS)[None, :], other=0.0)
            w = tl.load(
                w_ptr + (tap * C + c[None, :]) * OUTS + o[:, None],
                mask=(c < C)[None, :] & (o < OUTS)[:, None],
                other=0.0,
            )
            acc = _dot(g, w, acc, precision)
    to = dx_ptr + model * places * C + place[:, None] * C + c[None, :]
    tl.store(to, acc, mask=inside[:, None] & (c < C)[None, :])


class _ConvReluPool(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, size: int, precision: str) -> Tensor:
        models, rows, channels, height, width = x.shape
        outputs = bias.shape[-1]
        weight, bias = weight.contiguous(), bias.contiguous()
        channel_last = x.permute(0, 1, 3, 4, 2).contiguous()
        pixels = rows * (height // 2) * (width // 2)
        out = x.new_empty(models, rows, height // 2, width // 2, outputs)
        kept = torch.empty(out.shape, dtype=torch.int8, device=x.device)
        kept_first = torch.empty_like(kept)
        _forward[(triton.cdiv(pixels, 64), models)](
            channel_last, weight, bias, out, kept, kept_first, pixels, height, width, channels, outputs, size, rows,
            PIXELS=64, OUT=_block(outputs), INNER=_inner(channels), precision=precision, num_warps=4,
            num_stages=_FORWARD_STAGES["few" if channels < 16 else "many"],
        )  # fmt: skip
        ctx.save_for_backward(x.contiguous(), weight, kept, kept_first)
        ctx.size, ctx.precision = size, precision
        return out.permute(0, 1, 4, 2, 3)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor, Tensor, None, None]:
        x, weight, kept, kept_first = ctx.saved_tensors
        gradient = gradients[0]
        models, rows, channels, height, width = x.shape
        outputs = gradient.shape[2]
        places = rows * height * width
        first = x.new_empty(models, rows, outputs, height, width)
        _spread_channel_first[(triton.cdiv(first.numel(), 1024),)](
            gradient.contiguous(), kept_first, first, first.numel(), height, width, BLOCK=1024, num_warps=4
        )
        block, inner, warps, stages = _WEIGHT_TILES["few" if channels < 16 else "many"]
        tiles = triton.cdiv(ctx.size**2 * channels, inner)
        parts = max(1, min(64, triton.cdiv(_PROGRAMS * (1 if models < 8 else 2), tiles * models)))
        per_part = triton.cdiv(triton.cdiv(places, parts), block) * block
        parts = triton.cdiv(places, per_part)
        dw = x.new_empty(parts, *weight.shape)
        db = x.new_empty(parts, models, outputs)
        _weight_gradient[(tiles, parts, models)](
            x, first, dw, db, places, models, per_part, height, width, channels, outputs, ctx.size, rows,
            PLACES=block, OUT=_block(outputs), INNER=inner, precision=ctx.precision, num_warps=warps, num_stages=stages,
        )  # fmt: skip
        dx = None
        if ctx.needs_input_grad[0]:
            spread = x.new_empty(models, rows, height, width, outputs)
            _spread[(triton.cdiv(places, 64), models)](
                gradient.permute(0, 1, 3, 4, 2).contiguous(), kept, spread, places, height, width, outputs,
                PLACES=64, OUT=_block(outputs), num_warps=4,
            )  # fmt: skip
            dx = x.new_empty(models, rows, height, width, channels)
            _input_gradient[(triton.cdiv(places, 128), models)](
                spread, weight, dx, places, height, width, channels, outputs, ctx.size,
                PLACES=128, IN=_block(channels), INNER=16, precision=ctx.precision, num_warps=4,
                num_stages=_INPUT_STAGES,
            )  # fmt: skip
            dx = dx.permute(0, 1, 4, 2, 3)
        return dx, dw.sum(dim=0), db.sum(dim=0), None, None


_FORWARD_STAGES = {"few": 2, "many": 4}
_INPUT_STAGES = 3
_WEIGHT_TILES = {"few": (32, 128, 4, 3), "many": (32, 128, 4, 1)}
"""Places and weights per tile of the weight gradient, warps and stages, for few and many input channels.

With 64 outputs and more than one stage, Triton overwrites a tile that is still being read, and the sums are wrong
and vary between runs (``benchmarks/fused_conv.py``).
"""

_PROGRAMS = 528
"""The fewest programs that a launch should have: four for each multiprocessor of a large GPU."""


def _block(width: int) -> int:
    """Return the smallest power of two that is at least ``width``, and at least the matrix unit's 16."""
    return max(16, cast(int, triton.next_power_of_2(width)))


def _inner(channels: int) -> int:
    return 16 if channels < 16 else 32


def conv_relu_pool(x: Tensor, weight: Tensor, bias: Tensor, size: int, precision: str) -> Tensor:
    """Return max_pool(relu(conv(x, weight) + bias)) for every model; the module's docstring gives the layouts.

    size: the kernel's side length. precision: ``tf32``, ``bf16``, or ``ieee`` for strict float32 products.
    """
    out: Tensor = _ConvReluPool.apply(x, weight, bias, size, precision)
    return out
