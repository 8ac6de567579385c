"""Compiling an algorithm's local step into one CUDA kernel.

A local step is plain arithmetic on tensors, so its operations are traced and written as one C++ expression, which
torch's jiterator compiles in well under a second. The algorithm's own code stays unchanged.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx

from fedmm.core.algorithm import Algorithm, Coefficients, State

Fused = Callable[[Tensor, Tensor, Tensor, State, State, Coefficients], Tensor]
_MOST_INPUTS = 8
_OPERATORS = {
    torch.ops.aten.add.Tensor: "{} + {}",
    torch.ops.aten.sub.Tensor: "{} - {}",
    torch.ops.aten.mul.Tensor: "{} * {}",
    torch.ops.aten.div.Tensor: "{} / {}",
    torch.ops.aten.neg.default: "-{}",
}


def fused_step(
    rule: Algorithm, z: Tensor, gradient: Tensor, scale: Tensor, sent: State, own: State, c: Coefficients
) -> Fused | None:
    """Return ``rule.local_step(z, sent, own, gradient * scale, c)`` as one kernel; None if it cannot be fused."""
    names = (tuple(sent), tuple(own), tuple(c))

    def step(z: Tensor, F: Tensor, *vectors: Tensor) -> Tensor:
        parts, taken = [], 0
        for group in names:
            parts.append(dict(zip(group, vectors[taken : taken + len(group)], strict=True)))
            taken += len(group)
        return rule.local_step(z, parts[0], parts[1], F, Coefficients(parts[2]))

    def scaled_step(z: Tensor, gradient: Tensor, scale: Tensor, *vectors: Tensor) -> Tensor:
        return step(z, gradient * scale, *vectors)

    vectors = (*sent.values(), *own.values(), *c.values())
    with torch.no_grad():
        written = in_one_expression(make_fx(scaled_step)(z, gradient, scale, *vectors).graph)
        scales = written is not None
        if written is None:  # perhaps one input too many: scale the gradient outside the kernel
            written = in_one_expression(make_fx(step)(z, gradient, *vectors).graph)
    if written is None:
        return None
    code, used = written
    kernel = torch.cuda.jiterator._create_jit_fn(code)

    def run(z: Tensor, gradient: Tensor, scale: Tensor, sent: State, own: State, c: Coefficients) -> Tensor:
        first = (z, gradient, scale) if scales else (z, gradient * scale)
        inputs = (*first, *sent.values(), *own.values(), *c.values())
        result: Tensor = kernel(*(inputs[position] for position in used))
        return result

    return run


def in_one_expression(graph: fx.Graph) -> tuple[str, list[int]] | None:
    """Return the C++ of a graph and the inputs it uses; None unless it is arithmetic on at most 8 inputs."""
    inputs = [node for node in graph.nodes if node.op == "placeholder"]
    used = [position for position, node in enumerate(inputs) if node.users]
    if len(used) > _MOST_INPUTS:
        return None
    names = {inputs[position]: f"in{position}" for position in used}
    lines: list[str] = []
    result = ""
    for node in graph.nodes:
        if node.op == "get_attr":
            return None
        if node.op == "call_function":
            if node.target not in _OPERATORS or node.kwargs:
                return None
            operands = [names[arg] if isinstance(arg, fx.Node) else f"T({arg!r})" for arg in node.args]
            names[node] = f"v{len(lines)}"
            lines.append(f"T {names[node]} = {_OPERATORS[node.target].format(*operands)};")
        elif node.op == "output":
            (result,) = (names[arg] for arg in node.args if isinstance(arg, fx.Node))
    arguments = ", ".join(f"T in{position}" for position in used)
    return f"template <typename T> T local_step({arguments}) {{ {' '.join(lines)} return {result}; }}", used
