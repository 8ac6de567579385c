"""The picture of docs/gan.md, and the numbers beside it.

    python docs/gan.py

Written to docs/images/gan.png; a few minutes on one core.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import softplus

import fedmm
from fedmm.reporting.style import FAINT, INK, RULE, SMALL, TEXT, new_figure, save

PICTURE = Path(__file__).parent / "images" / "gan.png"
SITES, SPREAD, ROUNDS, STEPS, BATCH, SLOPE = 4, 0.2, 60, 10, 64, 0.1
RATES = ((0.05, 0.05), (0.02, 0.1))
COLOURS = {"FedAvgGDA": "#0072B2", "FedMM": "#D55E00"}
Batch = tuple[Tensor, Tensor]


class Gan(nn.Module):
    """A generator and a discriminator of points in the plane; called, it gives the value of their game."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = nn.Sequential(
            nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 2)
        )  # fmt: skip
        self.discriminator = nn.Sequential(
            nn.Linear(2, 32), nn.LeakyReLU(0.2), nn.Linear(32, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1)
        )

    def forward(self, points: Tensor, noise: Tensor) -> Tensor:
        """E log D(v) + E log (1 - D(G(e))) - SLOPE / 2 E ||slope of D's logit at v||^2."""
        points = points.requires_grad_()
        real, made = self.discriminator(points), self.discriminator(self.generator(noise))
        (slope,) = torch.autograd.grad(real.sum(), points, create_graph=True)
        return -softplus(-real).mean() - softplus(made).mean() - SLOPE / 2 * slope.square().sum(dim=1).mean()


def site_points() -> list[Tensor]:
    """256 points at each site, around a centre of its own."""
    angles = torch.arange(SITES) * 2 * math.pi / SITES
    centres = 2 * torch.stack([angles.cos(), angles.sin()], dim=1)
    random = torch.Generator().manual_seed(0)
    return [centre + SPREAD * torch.randn(256, 2, generator=random) for centre in centres]


def batches(points: Tensor, seed: int) -> Callable[[], Iterator[Batch]]:
    """An endless pass of (points, noise)."""

    def made() -> Iterator[Batch]:
        random = torch.Generator().manual_seed(seed)
        while True:
            rows = torch.randint(len(points), (BATCH,), generator=random)
            yield points[rows], torch.randn(BATCH, 2, generator=random)

    return made


def generated(points: list[Tensor], algorithm: fedmm.Algorithm, rounds: int) -> Tensor:
    """1000 points of the trained generator."""
    torch.manual_seed(0)
    gan = Gan()
    weights = {name: tensor.detach() for name, tensor in gan.named_parameters()}
    omega = {name: tensor for name, tensor in weights.items() if name.startswith("generator")}
    psi = {name: tensor for name, tensor in weights.items() if name.startswith("discriminator")}

    def game(omega: dict[str, Tensor], psi: dict[str, Tensor], batch: Batch) -> Tensor:
        value: Tensor = functional_call(gan, {**omega, **psi}, batch)
        return value

    functions = [(game, batches(own, seed)) for seed, own in enumerate(points)]
    gan.load_state_dict({**psi, **fedmm.solve(functions, (omega, psi), algorithm, rounds).omega})
    with torch.no_grad():
        made: Tensor = gan.generator(torch.randn(1000, 2, generator=torch.Generator().manual_seed(1)))
    return made


def energy_distance(made: Tensor, points: Tensor) -> float:
    """2 E||G - v|| - E||G - G'|| - E||v - v'||: 0 where both are distributed alike."""
    within = torch.cdist(made, made).mean() + torch.cdist(points, points).mean()
    return float(2 * torch.cdist(made, points).mean() - within)


def main() -> None:
    """Train, print and draw."""
    torch.set_num_threads(1)
    points = site_points()
    everything = torch.cat(points)
    figure = new_figure(7.6, 7.6)
    axes = iter(figure.subplots(2, 2, sharex=True, sharey=True).flat)
    for low, high in RATES:
        for name, algorithm in {
            "FedAvgGDA": fedmm.FedAvgGDA(lr_min=low, lr_max=high, local_steps=STEPS),
            "FedMM": fedmm.FedMM(lr_min=low, lr_max=high, local_steps=STEPS),
        }.items():
            made = generated(points, algorithm, ROUNDS)
            distance = energy_distance(made, everything)
            near = torch.cdist(made, torch.stack([own.mean(dim=0) for own in points])) < 3 * SPREAD
            shares = near.float().mean(dim=0).tolist()
            found = ", ".join(f"{share:.0%}" for share in shares)
            print(f"{name}, {low:g} and {high:g}: energy distance {distance:.3f}; at the sites {found}", flush=True)
            part = next(axes)
            part.scatter(*everything.T, s=4, color=RULE)
            part.scatter(*made.T, s=4, color=COLOURS[name], alpha=0.5, linewidths=0)
            part.set_title(f"{name}, lr {low:g} and {high:g}", loc="left", weight="bold", fontsize=TEXT - 1, color=INK)
            part.set_xlabel(f"energy distance {distance:.3f}", fontsize=SMALL, color=FAINT)
            part.set(xlim=(-4, 4), ylim=(-4, 4), xticks=[], yticks=[], box_aspect=1)
            part.spines[:].set_color(RULE)
    save(figure, PICTURE)


if __name__ == "__main__":
    main()
