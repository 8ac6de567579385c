"""AUC maximisation on label-sorted MNIST clients as a federated problem, for any engine and for stacks of runs.

The digit 0 is the positive class, with share p = 1/10. With a row's score s, omega = (network, a, b) and psi = alpha:

    f = (1 - p) E[(s - a)^2; positive] + p E[(s - b)^2; negative]
        + 2 (1 + alpha) (p E[s; negative] - (1 - p) E[s; positive]) - p (1 - p) alpha^2

E[.; positive] is the mean over all rows of a batch, where negative rows count as 0 (Ying, Wen and Lyu, 2016). This is
the square form of fedmm's objective ``auc``, on a network that is not part of fedmm.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from stacked_lenet import outputs, scores
from torch import Tensor, nn

from fedmm import FederatedProblem, Layout
from fedmm.core.objective import SOURCE, Outputs, RowWeights, row_weights
from fedmm.core.problem import HeldRows, LocalReport, Statistics, WholeRows
from fedmm.core.seeding import rows
from fedmm.data.datasets.mnist_m import read_idx
from fedmm.leaderboard.auc import area
from fedmm.objectives.auc import AUC

POSITIVE_DIGIT, POSITIVE_SHARE = 0, 0.1
OBJECTIVE = AUC(form="square", positive_share=POSITIVE_SHARE)
VIEW = WholeRows()


@dataclass(frozen=True)
class BinaryRows:
    """x: float32 ``[rows, 28, 28]`` from -1 to 1; y: int64 ``[rows]``, 1 or 0."""

    x: Tensor
    y: Tensor

    def to(self, device: str) -> BinaryRows:
        return BinaryRows(self.x.to(device), self.y.to(device))


def load_mnist(folder: Path, part: str, *, by_label: bool = False) -> BinaryRows:
    """Load MNIST. part: ``train`` or ``t10k``. by_label: sort by digit, keeping the file's order within a digit."""
    images, labels = (
        torch.from_numpy(read_idx((folder / name).read_bytes(), dimensions, name).copy())
        for name, dimensions in ((f"{part}-images-idx3-ubyte.gz", 3), (f"{part}-labels-idx1-ubyte.gz", 1))
    )
    order = torch.argsort(labels, stable=True) if by_label else torch.arange(len(labels))
    return BinaryRows(images[order].float().div(255).sub(0.5).div(0.5), (labels[order] == POSITIVE_DIGIT).long())


def lenet_start(seed: int = 1234) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return omega and psi: LeNet with torch's default initialisation, and a = b = alpha = 0."""
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


@dataclass(frozen=True)
class LenetStack:
    """The networks of a stack of runs, for the batched engine. Outputs: two classes, and alpha, a and b."""

    layout: Layout
    has_dropout: bool = False

    def constants(self, which: Tensor) -> Mapping[str, Tensor]:
        return {}

    def outputs(
        self, z: Tensor, x: Tensor, constants: Mapping[str, Tensor], dropout: Tensor | None, statistics: Statistics
    ) -> Outputs:
        return self.evaluate(z, x, constants, statistics)

    def evaluate(self, z: Tensor, x: Tensor, constants: Mapping[str, Tensor], statistics: Statistics) -> Outputs:
        tensors = {block.name: tensor for block, tensor in self.layout.tensors(z)}
        ten = outputs(tensors, x)
        others = torch.cat([ten[..., :1], ten[..., 2:]], dim=-1).logsumexp(dim=-1)
        two = torch.stack([others, ten[..., 1]], dim=-1)
        numbers = torch.cat([tensors[name] for name in ("alpha", "a", "b")], dim=-1)
        return Outputs(two, two, numbers.unsqueeze(1).expand(*x.shape[:2], 3))


class AucProblem:
    """``clients`` clients with equally many consecutive rows and batches of ``batch`` rows, on the rows' device."""

    def __init__(self, train: BinaryRows, clients: int, batch: int, seed: int) -> None:
        omega, psi = lenet_start()
        device = train.x.device
        self.train = train
        self.layout = Layout.of(*({name: own.to(device) for name, own in side.items()} for side in (omega, psi)))
        self.network = LenetStack(self.layout)
        signs = self.layout.signs()
        weights = row_weights(torch.full((batch,), SOURCE, device=device), torch.ones(batch, device=device))
        held = len(train.x) // clients
        owned = torch.arange(clients * held, device=device).view(clients, held)
        names = [f"client-{number:03d}" for number in range(clients)]
        each = [
            AucClient(name, self, (HeldRows(train.x, train.y, own, (seed, name), batch),), weights, signs)
            for name, own in zip(names, owned, strict=True)
        ]
        self.federated = FederatedProblem(self.layout, self.layout.pack(omega, psi).to(device), each, seed=seed)

    @torch.no_grad()
    def objective(self, z: Tensor, rows_of: BinaryRows) -> Tensor:
        """Return min over a, b and max over alpha of f at each of z ``[runs, size]``; candidates are judged by it."""
        p, s = POSITIVE_SHARE, self.scores(z, rows_of.x)
        share = rows_of.y.float().mean()
        positive, negative = s[:, rows_of.y == 1], s[:, rows_of.y == 0]
        near = (1 - p) * share * positive.var(dim=1, correction=0)
        near += p * (1 - share) * negative.var(dim=1, correction=0)
        gap = p * (1 - share) * negative.mean(dim=1) - (1 - p) * share * positive.mean(dim=1)
        return near + 2 * gap + gap.square() / (p * (1 - p))

    def auc(self, z: Tensor, rows_of: BinaryRows) -> list[float]:
        """Return the area under the ROC curve at each of z ``[runs, size]``; 0.5 if all scores are NaN."""
        found = self.scores(z, rows_of.x).nan_to_num()
        return [area(each, rows_of.y == 1) for each in found]

    @torch.no_grad()
    def scores(self, z: Tensor, x: Tensor) -> Tensor:
        """Return the scores ``[runs, rows]``."""
        tensors = {block.name: tensor for block, tensor in self.layout.tensors(z)}
        parts = [part.expand(len(z), *part.shape).contiguous() for part in torch.split(x, 1000)]
        return torch.cat([scores(tensors, part) for part in parts], dim=1)


@dataclass(frozen=True)
class AucClient:
    """A client, in the form that every engine accepts."""

    name: str
    problem: AucProblem
    held: Sequence[HeldRows]
    weights: RowWeights
    field_scale: Tensor
    objective: AUC = OBJECTIVE
    alpha: float = 1.0
    view: WholeRows = VIEW

    def dropout_key(self, t: int, step: int) -> int:
        return 0

    def view_key(self, t: int, step: int) -> int:
        return 0

    def open_round(self, t: int, rounds: int, steps: int, statistics: Statistics) -> AucRound:
        (held,) = self.held
        count = steps * held.batch_rows
        chosen = held.index[rows(held.key_parts, held.count, t * count, count, held.x.device)]  # type: ignore[index]
        return AucRound(self, chosen.view(steps, -1))


@dataclass(frozen=True)
class AucRound:
    """A client's round. chosen: int64 ``[steps, batch]``, the rows of each step."""

    client: AucClient
    chosen: Tensor
    losses: dict[int, Tensor] = field(default_factory=dict)

    def field(self, z: Tensor, step: int) -> Tensor:
        client, (held,) = self.client, self.client.held
        z = z.detach().requires_grad_()
        chosen = self.chosen[step]
        seen = client.problem.network.evaluate(z.unsqueeze(0), held.x[chosen].unsqueeze(0), {}, {})
        value = client.objective.task_loss(seen, held.y[chosen].unsqueeze(0), client.weights).sum()  # type: ignore[index]
        self.losses.setdefault(step, value.detach())
        (gradient,) = torch.autograd.grad(value, z)
        return gradient * client.field_scale

    def close(self) -> LocalReport:
        return LocalReport({"loss": float(torch.stack(list(self.losses.values())).mean())})
