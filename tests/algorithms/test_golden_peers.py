"""Three rounds of the public federated-minimax optimisers, recorded in golden/peers.json, by our methods."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from problems import FLOAT64, golden, played
from torch import Tensor

from fedmm import CODASCA, CODAPlus, Extragradient, FedAvgGDA, FederatedProblem, FunctionClient, InProcess, SGDAPlus
from fedmm.core.algorithm import Algorithm, Coefficients, State
from fedmm.core.layout import Layout

RECORDED = golden("peers")
RATE, STEPS = RECORDED["rate"], RECORDED["steps"]
STAGES = {"smoothing_min": RECORDED["pull"], "stage_rounds": RECORDED["stage"], "stage_decay": 3.0}


@dataclass(frozen=True)
class CODASCAOfOmega(CODASCA):
    """CODASCA whose controls correct omega alone, as in the public code."""

    def coefficients(self, layout: Layout, t: int, rounds: int) -> Coefficients:
        return Coefficients(super().coefficients(layout, t, rounds), in_omega=layout.join(1.0, 0.0))

    def local_step(self, z: Tensor, sent: State, client: State, F: Tensor, c: Coefficients) -> Tensor:
        own, common = client["control"] * c.in_omega, sent["control"] * c.in_omega
        return super().local_step(z, {**sent, "control": common}, {"control": own}, F, c)


OURS: dict[str, Algorithm] = {
    "CODA_Plus": CODAPlus(RATE, RATE, STEPS, **STAGES),
    "CODASCA": CODASCAOfOmega(RATE, RATE, STEPS, RECORDED["server_rate"], **STAGES),
    "Extra_Step_Local_SGD": Extragradient(RATE, RATE, STEPS),
    # Its snapshot follows every local step, so that its Local SGDA+ is local SGDA.
    "Local_SGDA_Plus": FedAvgGDA(RATE, 2 * RATE, STEPS),
}


def client(number: int, given: dict[str, Any], layout: Layout) -> FunctionClient:
    c = {name: torch.tensor(values, dtype=FLOAT64) for name, values in given.items()}

    def f(x: Tensor, y: Tensor) -> Tensor:
        curved = c["bend"] * x * x / 2 + c["coupling"] * x * y - c["dip"] * y * y / 2
        return (curved + c["pull_x"] * x + c["pull_y"] * y).sum()

    return FunctionClient(f"client-{number}", f, None, layout, torch.ones((), dtype=FLOAT64))


def rounds_of(algorithm: Algorithm) -> list[list[float]]:
    start = tuple(torch.tensor(each, dtype=FLOAT64) for each in RECORDED["start"])
    layout = Layout.of(*start)
    clients = [client(number, given, layout) for number, given in enumerate(RECORDED["clients"])]
    engine = InProcess(FederatedProblem(layout, layout.pack(*start), clients), algorithm, 3)
    return [state.z.tolist() for state, _ in played(engine, 3)]


@pytest.mark.parametrize("method", OURS)
def test_three_rounds_are_those_of_the_public_code(method: str) -> None:
    torch.testing.assert_close(
        torch.tensor(rounds_of(OURS[method]), dtype=FLOAT64),
        torch.tensor(RECORDED["rounds"][method], dtype=FLOAT64),
        rtol=1e-10,
        atol=1e-12,
    )


@pytest.mark.parametrize(
    ("method", "ours"),
    [
        ("CODASCA", CODASCA(RATE, RATE, STEPS, RECORDED["server_rate"], **STAGES)),
        ("Local_SGDA_Plus", SGDAPlus(RATE, 2 * RATE, STEPS, snapshot_every=1)),
    ],
)
def test_where_the_public_code_departs_from_the_papers_ours_does_not(method: str, ours: Algorithm) -> None:
    theirs = torch.tensor(RECORDED["rounds"][method], dtype=FLOAT64)
    assert (torch.tensor(rounds_of(ours), dtype=FLOAT64) - theirs).abs().max() > 1e-3
