"""A network whose parameters are one flat vector z = (omega, psi)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from fedmm.core.errors import FedmmError, require
from fedmm.core.layout import Layout
from fedmm.core.objective import AdversaryShape, Objective, Outputs
from fedmm.core.problem import Statistics
from fedmm.models.dropout import SeededDropout
from fedmm.models.network import AdversarialModule, Network

_Norm = nn.modules.batchnorm._NormBase
_EVALUATED_ROWS, _EVALUATED_NUMBERS = 1024, 1 << 24


def rows_at_once(shape: tuple[int, ...]) -> int:
    """Return how many rows of this shape to evaluate at once: 1,024, or fewer if rows are large."""
    return min(_EVALUATED_ROWS, max(1, _EVALUATED_NUMBERS // torch.Size(shape).numel()))


class FlatNetwork:
    """A network that takes its parameters as a flat vector z, and returns its gradient as one.

    The module's parameters and their gradients are views of two flat vectors, so setting z costs one copy, and the
    gradient is flat from the start. Between rounds no state is kept: z, statistics and dropout keys come from the
    caller.

    layout, start: where each parameter lies in z, and the initial z; omega is ``features.*``, ``task_head.*`` and
        ``levels.*``, psi is ``adversary.*``. Parameters with ``requires_grad=False`` are not in z and never change.
    statistics: the initial running statistics of its normalisation layers.
    """

    def __init__(
        self,
        network: Network,
        objective: Objective,
        sample: Tensor,
        *,
        seed: int,
        input_mean: float = 0.0,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        sample = sample[:2]
        scaled = sample / 255.0 if sample.dtype == torch.uint8 else sample
        module = AdversarialModule(network, objective, scaled.cpu(), seed)
        module.input_mean.fill_(input_mean)
        self.module = module.to(device=device, dtype=dtype)
        self.policy = network.batch_norm
        self.classes = network.classes
        self.input_shape = tuple(sample.shape[1:])
        parameters = self._parameters()
        omega = {n: p.detach() for n, p in parameters.items() if not n.startswith("adversary.")}
        psi = {n: p.detach() for n, p in parameters.items() if n.startswith("adversary.")}
        if not omega:
            raise FedmmError("the network has no parameters to train")
        self.layout = Layout.of(omega, psi)
        self.start = self.layout.pack(omega, psi)
        self._point = self.start.clone()
        self._gradient = torch.zeros_like(self._point)
        self._tie()
        self._norms = {p: m for p, m in module.named_modules() if isinstance(m, _Norm) and m.running_mean is not None}
        self._dropouts = [m for m in module.modules() if isinstance(m, SeededDropout) and m.p > 0.0]
        self._buffers = {
            f"{path}.{name}": buffer for path, norm in self._norms.items() for name, buffer in norm.named_buffers()
        }
        self.statistics = self.read_statistics()
        self._try_out(sample.to(device), module.adversary_shape)

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore a copied or unpickled network; views are lost in both, so tie them again."""
        self.__dict__.update(state)
        self._tie()

    def _parameters(self) -> dict[str, nn.Parameter]:
        return {name: parameter for name, parameter in self.module.named_parameters() if parameter.requires_grad}

    def _tie(self) -> None:
        """Make every parameter a view of the point, and its gradient a view of the gradient."""
        parameters = self._parameters()
        points, gradients = self.layout.tensors(self._point), self.layout.tensors(self._gradient)
        for (block, value), (_, gradient) in zip(points, gradients, strict=True):
            parameter = parameters[block.name]
            parameter.data = value
            parameter.grad = gradient

    @property
    def has_dropout(self) -> bool:
        """Whether the dropout key matters."""
        return bool(self._dropouts)

    @property
    def trains_statistics(self) -> bool:
        """Whether training changes running statistics."""
        return bool(self._norms) and self.policy != "frozen"

    def train(self, statistics: Statistics) -> None:
        """Enter training mode with these running statistics; frozen normalisation layers stay in evaluation mode."""
        self.module.train()
        if self.policy == "frozen":
            for norm in self._norms.values():
                norm.eval()
        self._write_statistics(statistics)

    def read_statistics(self) -> Statistics:
        """Return a copy of the current running statistics."""
        return {name: buffer.detach().clone() for name, buffer in self._buffers.items()}

    @contextmanager
    def keep_statistics(self) -> Iterator[None]:
        """Restore the running statistics afterwards, whatever is computed in between."""
        before = self.read_statistics()
        yield
        self._write_statistics(before)

    def _write_statistics(self, statistics: Statistics) -> None:
        for name, buffer in self._buffers.items():
            buffer.copy_(statistics[name])

    def outputs(self, z: Tensor, x: Tensor, dropout: int) -> Outputs:
        """Return the outputs at z for a batch, in training mode. dropout: the key of this step's masks."""
        with torch.no_grad():
            self._point.copy_(z)
        for layer in self._dropouts:
            layer.key.fill_(dropout)
        outputs: Outputs = self.module(x)
        return outputs

    def gradient(self, loss: Tensor, *, keep_graph: bool = False) -> Tensor:
        """Return d loss / d z at the point of the last outputs, ``[size]``; the next call overwrites it.

        keep_graph: keep the graph, for another gradient of the same outputs.
        """
        self._gradient.zero_()
        loss.backward(retain_graph=keep_graph)  # type: ignore[no-untyped-call]
        return self._gradient

    def as_input(self, x: Tensor) -> Tensor:
        """Convert rows to the network's dtype; bytes stay bytes, because the network scales them itself."""
        return x if x.dtype == torch.uint8 else x.to(self.layout.dtype)

    @torch.no_grad()
    def evaluate(self, z: Tensor, statistics: Statistics, x: Tensor, batch_size: int | None = None) -> Outputs:
        """Return the outputs for any number of rows in evaluation mode, computed in batches."""
        self._point.copy_(z)
        self._write_statistics(statistics)
        self.module.eval()
        batches = torch.split(x, batch_size or rows_at_once(self.input_shape))
        parts = [self.module(self.as_input(batch)) for batch in batches]
        return Outputs(*(torch.cat(column) for column in zip(*parts, strict=True)))

    def state(self, z: Tensor, statistics: Statistics) -> dict[str, Tensor]:
        """Return everything that a saved model holds: parameters, running statistics, input mean, random maps."""
        saved = dict(self.module.state_dict())
        saved.update(statistics)
        saved.update({block.name: tensor for block, tensor in self.layout.tensors(z)})
        contiguous = torch.contiguous_format
        return {name: tensor.detach().cpu().clone(memory_format=contiguous) for name, tensor in saved.items()}

    def _try_out(self, sample: Tensor, adversary: AdversaryShape | None) -> None:
        """Run one training pass to check that the heads fit and that no layer draws from torch's global generator.

        Such draws would differ between engines and after a resume.
        """
        rows = self.as_input(sample if len(sample) > 1 else torch.cat([sample, sample]))
        self.train(self.statistics)
        cpu, cuda = torch.get_rng_state(), _cuda_state(rows)
        try:
            with torch.no_grad():
                outputs = self.outputs(self.start, rows, 0)
        except (RuntimeError, ValueError, IndexError) as problem:
            reason = str(problem).splitlines()[0]
            raise FedmmError(
                f"the network cannot be run on a batch of shape {tuple(rows.shape)}: {reason}"
            ) from problem
        drawn = not torch.equal(cpu, torch.get_rng_state()) or not torch.equal(cuda, _cuda_state(rows))
        torch.set_rng_state(cpu)
        require(
            not drawn,
            "the network draws from torch's global random generator (functional dropout?); use nn.Dropout layers, "
            "which are seeded per client and round",
        )
        _require_width("task head", outputs.logits, self.classes)
        if adversary is not None:
            _require_width("adversary", outputs.adversary, adversary.width)


def _cuda_state(rows: Tensor) -> Tensor:
    return torch.cuda.get_rng_state(rows.device) if rows.is_cuda else torch.empty(0)


def _require_width(part: str, outputs: Tensor, width: int) -> None:
    require(
        outputs.dim() == 2 and outputs.shape[1] == width,
        f"the {part} returns outputs of shape {tuple(outputs.shape[1:])} per row; it must return {width} numbers",
    )
