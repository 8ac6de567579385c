"""AUC maximisation on label-sorted MNIST clients as a federated problem, and its field for many clients at once.

The digit 0 is positive, p = 1/10 its share. With the score s of a row, omega = (network, a, b) and psi = alpha:

    f = (1 - p) E[(s - a)^2; positive] + p E[(s - b)^2; negative]
        + 2 (1 + alpha) (p E[s; negative] - (1 - p) E[s; positive]) - p (1 - p) alpha^2

E[.; positive] is the mean over all rows of a batch, in which the others count as 0 (Ying, Wen and Lyu, 2016).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from sklearn.metrics import roc_auc_score
from stacked_lenet import scores
from torch import Tensor, nn

from fedmm import FederatedProblem, Layout
from fedmm.core.problem import LocalReport, Statistics
from fedmm.core.seeding import rows
from fedmm.data.datasets.mnist_m import read_idx

POSITIVE_DIGIT, POSITIVE_SHARE = 0, 0.1


@dataclass(frozen=True)
class BinaryRows:
    """x: float32 ``[rows, 28, 28]`` from -1 to 1; positive: float32 ``[rows]``, 1 or 0."""

    x: Tensor
    positive: Tensor


def load_mnist(folder: Path, part: str, *, by_label: bool = False) -> BinaryRows:
    """part: ``train`` or ``t10k``. by_label: sorted by digit, those of one digit in the order of the file."""
    images, labels = (
        torch.from_numpy(read_idx((folder / name).read_bytes(), dimensions, name).copy())
        for name, dimensions in ((f"{part}-images-idx3-ubyte.gz", 3), (f"{part}-labels-idx1-ubyte.gz", 1))
    )
    order = torch.argsort(labels, stable=True) if by_label else torch.arange(len(labels))
    return BinaryRows(images[order].float().div(255).sub(0.5).div(0.5), (labels[order] == POSITIVE_DIGIT).float())


def lenet_start(seed: int = 1234) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """omega and psi: LeNet with torch's own first weights, a = b = alpha = 0."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layers: dict[str, nn.Module] = {
            "conv1": nn.Conv2d(1, 6, 5),
            "conv2": nn.Conv2d(6, 16, 5),
            "fc1": nn.Linear(256, 120),
            "fc2": nn.Linear(120, 84),
            "fc3": nn.Linear(84, 10),
        }
    network = {f"{key}.{name}": p.detach() for key, layer in layers.items() for name, p in layer.named_parameters()}
    return {"a": torch.zeros(1), "b": torch.zeros(1), **network}, {"alpha": torch.zeros(1)}


def auc_loss(s: Tensor, positive: Tensor, a: Tensor, b: Tensor, alpha: Tensor) -> Tensor:
    """f ``[G]`` for scores ``[G, rows]``; a, b, alpha: ``[G, 1]``."""
    p, negative = POSITIVE_SHARE, 1 - positive
    gap = (p * s * negative - (1 - p) * s * positive).mean(dim=-1)
    near = (1 - p) * ((s - a).square() * positive).mean(dim=-1) + p * ((s - b).square() * negative).mean(dim=-1)
    alpha = alpha.squeeze(-1)
    return near + 2 * (1 + alpha) * gap - p * (1 - p) * alpha.square()


class AucProblem:
    """``clients`` clients with equally many consecutive rows each, and batches of ``batch`` of them."""

    def __init__(self, train: BinaryRows, clients: int, batch: int, seed: int) -> None:
        self.train = train
        self.batch = batch
        self.seed = seed
        self.held = len(train.x) // clients
        self.names = [f"client-{number:03d}" for number in range(clients)]
        self.number = {name: number for number, name in enumerate(self.names)}
        omega, psi = lenet_start()
        self.layout = Layout.of(omega, psi)
        self._signs = self.layout.signs()
        self.federated = FederatedProblem(
            self.layout, self.layout.pack(omega, psi), [AucClient(name, self) for name in self.names], seed=seed
        )

    def field(self, z: Tensor, x: Tensor, positive: Tensor) -> tuple[Tensor, Tensor]:
        """F ``[G, size]`` and f ``[G]`` at z ``[G, size]`` on batches ``[G, rows, ...]``."""
        z = z.detach().requires_grad_()
        tensors = {block.name: tensor for block, tensor in self.layout.tensors(z)}
        values = auc_loss(scores(tensors, x), positive, tensors["a"], tensors["b"], tensors["alpha"])
        (gradient,) = torch.autograd.grad(values.sum(), z)
        return gradient * self._signs, values.detach()

    def open_stack(self, names: Sequence[str], t: int, steps: int) -> AucRound:
        """Round t of several clients at once, in an endless pass over each one's rows."""
        count = steps * self.batch
        drawn = [
            self.number[name] * self.held + rows((self.seed, name), self.held, t * count, count, "cpu")
            for name in names
        ]
        return AucRound(self, torch.stack(drawn).view(len(names), steps, self.batch))

    def objective(self, z: Tensor, rows_of: BinaryRows) -> float:
        """min over a, b and max over alpha of f at z's network: what methods are compared by in training."""
        p, s = POSITIVE_SHARE, self.scores(z, rows_of.x)
        share = rows_of.positive.mean()
        positive, negative = s[rows_of.positive > 0], s[rows_of.positive == 0]
        near = (1 - p) * share * positive.var(correction=0) + p * (1 - share) * negative.var(correction=0)
        gap = p * (1 - share) * negative.mean() - (1 - p) * share * positive.mean()
        return float(near + 2 * gap + gap.square() / (p * (1 - p)))

    def auc(self, z: Tensor, rows_of: BinaryRows) -> float:
        """The area under the ROC curve."""
        return float(roc_auc_score(rows_of.positive.numpy(), self.scores(z, rows_of.x).numpy()))

    @torch.no_grad()
    def scores(self, z: Tensor, x: Tensor) -> Tensor:
        tensors = {block.name: tensor for block, tensor in self.layout.tensors(z.unsqueeze(0))}
        return torch.cat([scores(tensors, part.unsqueeze(0))[0] for part in torch.split(x, 1000)])


@dataclass(frozen=True)
class AucClient:
    """One client, as every engine takes it."""

    name: str
    problem: AucProblem

    def open_round(self, t: int, rounds: int, steps: int, statistics: Statistics) -> SingleRound:
        return SingleRound(self.problem.open_stack([self.name], t, steps))


@dataclass(frozen=True)
class AucRound:
    """A round of clients ``[G]``, whose steps take the rows ``chosen`` ``[G, steps, batch]``."""

    problem: AucProblem
    chosen: Tensor

    @cached_property
    def _losses(self) -> dict[int, Tensor]:
        return {}

    def field(self, z: Tensor, step: int) -> Tensor:
        chosen, train = self.chosen[:, step], self.problem.train
        F, values = self.problem.field(z, train.x[chosen], train.positive[chosen])
        self._losses.setdefault(step, values)
        return F

    def close(self) -> LocalReport:
        return LocalReport({"loss": float(torch.stack(list(self._losses.values())).mean())})


@dataclass(frozen=True)
class SingleRound:
    """A round of one client."""

    stack: AucRound

    def field(self, z: Tensor, step: int) -> Tensor:
        return self.stack.field(z.unsqueeze(0), step)[0]

    def close(self) -> LocalReport:
        return self.stack.close()
