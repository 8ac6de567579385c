"""An algorithm's local step as one kernel: traced once, compiled by torch."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from fedmm.core.algorithm import Algorithm, Coefficients, State

Fused = Callable[[Tensor, Tensor, Tensor, State, State, Coefficients], Tensor]


def fused_step(
    rule: Algorithm, z: Tensor, gradient: Tensor, scale: Tensor, sent: State, own: State, c: Coefficients
) -> Fused:
    """``rule.local_step(z, sent, own, gradient * scale, c)`` for tensors of these shapes, compiled.

    The rule is plain arithmetic on tensors, so what it does is recorded operation by operation and handed to the
    compiler; the rule's own code stays as it is.
    """
    names = (tuple(sent), tuple(own), tuple(c))

    def step(z: Tensor, gradient: Tensor, scale: Tensor, *vectors: Tensor) -> Tensor:
        parts, taken = [], 0
        for group in names:
            parts.append(dict(zip(group, vectors[taken : taken + len(group)], strict=True)))
            taken += len(group)
        return rule.local_step(z, parts[0], parts[1], gradient * scale, Coefficients(parts[2]))

    given = (z, gradient, scale, *sent.values(), *own.values(), *c.values())
    with torch.no_grad():
        compiled = torch.compile(make_fx(step)(*given), dynamic=False)

    def run(z: Tensor, gradient: Tensor, scale: Tensor, sent: State, own: State, c: Coefficients) -> Tensor:
        with torch.no_grad():
            result: Tensor = compiled(z, gradient, scale, *sent.values(), *own.values(), *c.values())
        return result

    return run
