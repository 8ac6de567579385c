"""A network as a function of the flat vector z = (omega, psi)."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedmm.core.errors import FedmmError
from fedmm.core.layout import Layout
from fedmm.core.objective import Objective, Outputs
from fedmm.core.problem import Statistics
from fedmm.models.dropout import SeededDropout
from fedmm.models.network import AdversarialModule, Network

_Norm = nn.modules.batchnorm._NormBase


class FunctionalNetwork:
    """A network whose parameters, running statistics and dropout keys are arguments.

    layout, start: where its parameters lie in z, and their first values; omega is ``features.*`` and ``task_head.*``,
        psi is ``adversary.*``.
    statistics: the first running statistics of its normalisation layers.
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
        parameters = dict(self.module.named_parameters())
        omega = {n: p.detach() for n, p in parameters.items() if not n.startswith("adversary.")}
        psi = {n: p.detach() for n, p in parameters.items() if n.startswith("adversary.")}
        if not omega:
            raise FedmmError("the network has no parameters to train")
        self.layout = Layout.of(omega, psi)
        self.start = self.layout.pack(omega, psi)
        self._norms = {p: m for p, m in module.named_modules() if isinstance(m, _Norm) and m.running_mean is not None}
        self._dropouts = [f"{p}.key" for p, m in module.named_modules() if isinstance(m, SeededDropout) and m.p > 0.0]
        self.statistics: Statistics = {
            f"{path}.{name}": buffer.detach().clone()
            for path, norm in self._norms.items()
            for name, buffer in norm.named_buffers()
        }
        self._refuse_hidden_randomness(sample.to(device))

    @property
    def trains_statistics(self) -> bool:
        """Whether training changes running statistics."""
        return bool(self._norms) and self.policy != "frozen"

    def train(self) -> None:
        """Dropout on; normalisation layers train unless they are frozen."""
        self.module.train()
        if self.policy == "frozen":
            for norm in self._norms.values():
                norm.eval()

    def outputs(self, parameters: Mapping[str, Tensor], statistics: Statistics, x: Tensor, dropout: int) -> Outputs:
        """The outputs for a batch in training (after :meth:`train`); updates ``statistics`` in place.

        parameters: by name, as :meth:`Layout.tensors` gives them; dropout: the key of this step's masks.
        """
        tensors = {**parameters, **statistics}
        if self._dropouts:
            tensors.update(dict.fromkeys(self._dropouts, torch.tensor(dropout, device=x.device)))
        outputs: Outputs = functional_call(self.module, tensors, (x,))
        return outputs

    def as_input(self, x: Tensor) -> Tensor:
        """Rows in the network's dtype; bytes stay bytes, which the network scales itself."""
        return x if x.dtype == torch.uint8 else x.to(self.layout.dtype)

    @torch.no_grad()
    def evaluate(self, z: Tensor, statistics: Statistics, x: Tensor, batch_size: int = 1024) -> Outputs:
        """The outputs for any number of rows, in evaluation mode, batch after batch."""
        tensors = {block.name: tensor for block, tensor in self.layout.tensors(z)} | statistics
        self.module.eval()
        parts = [functional_call(self.module, tensors, (self.as_input(batch),)) for batch in torch.split(x, batch_size)]
        self.train()
        return Outputs(*(torch.cat(column) for column in zip(*parts, strict=True)))

    def state(self, z: Tensor, statistics: Statistics) -> dict[str, Tensor]:
        """Everything a saved model holds: parameters, running statistics, input mean, random maps."""
        saved = dict(self.module.state_dict())
        saved.update(statistics)
        saved.update({block.name: tensor for block, tensor in self.layout.tensors(z)})
        return {name: tensor.detach().contiguous().cpu() for name, tensor in saved.items()}

    def _refuse_hidden_randomness(self, sample: Tensor) -> None:
        """A layer that draws from torch's global generator would differ between engines, and after a resume."""
        rows = self.as_input(sample)
        self.train()
        if self.trains_statistics and len(rows) < 2:
            return
        parameters = {block.name: tensor for block, tensor in self.layout.tensors(self.start)}
        with torch.no_grad():
            first, second = (
                self.outputs(parameters, {n: s.clone() for n, s in self.statistics.items()}, rows, 0) for _ in range(2)
            )
        if not torch.equal(first.logits, second.logits) and bool(first.logits.isfinite().all()):
            raise FedmmError(
                "the network gives two different outputs for the same batch and dropout key: it draws random numbers "
                "of its own (functional dropout?); use nn.Dropout layers, which are seeded per client and round"
            )
