"""Three rounds of public code, recorded in golden/peers.json, proxskip.json and momentum.json, by our methods."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from problems import FLOAT64, golden, played
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedmm import (
    CODASCA,
    CODAPlus,
    Extragradient,
    FedAvgGDA,
    FederatedProblem,
    FedGDAGT,
    FedSGDAM,
    FunctionClient,
    InProcess,
    MomentumGDA,
    ProxSkipSGDA,
    SGDAPlus,
)
from fedmm.core.algorithm import Algorithm, Coefficients, State
from fedmm.core.layout import Layout
from fedmm.core.projections import ConvexSet

FILES = {name: golden(name) for name in ("peers", "proxskip", "momentum")}
RATE, STEPS = FILES["peers"]["rate"], FILES["peers"]["steps"]
SERVER_RATE, KEPT = FILES["peers"]["server_rate"], 1 - FILES["momentum"]["alpha"]
STAGES = {"smoothing_min": FILES["peers"]["pull"], "stage_rounds": FILES["peers"]["stage"], "stage_decay": 3.0}


@dataclass(frozen=True)
class CODASCAOfOmega(CODASCA):
    """CODASCA whose controls correct omega alone, as in the public code."""

    def coefficients(self, layout: Layout, t: int, rounds: int) -> Coefficients:
        return Coefficients(super().coefficients(layout, t, rounds), in_omega=layout.join(1.0, 0.0))

    def local_step(self, z: Tensor, sent: State, client: State, F: Tensor, c: Coefficients) -> Tensor:
        own, common = client["control"] * c.in_omega, sent["control"] * c.in_omega
        return super().local_step(z, {**sent, "control": common}, {"control": own}, F, c)


@dataclass(frozen=True)
class RecordedLengths:
    """The lengths that the recorded rounds of ProxSkip have."""

    def steps(self, own: int, seed: int, t: int) -> int:
        return int(FILES["proxskip"]["lengths"][t])

    def most(self, own: int) -> int:
        return max(FILES["proxskip"]["lengths"])


class ProxSkipAsRecorded(ProxSkipSGDA):
    @property
    def step_schedule(self) -> Any:
        return RecordedLengths()


class FedSGDAMOfOwnPoints(FedSGDAM):
    """FedSGDA-M whose clients begin a round with their own points before their last steps, not with the mean."""

    def init_client(self, z: Tensor) -> State:
        return {"before": z}

    def begin(self, z: Tensor, sent: State, client: State, c: Coefficients) -> State:
        return {**super().begin(z, sent, client, c), "previous": client["before"]}

    def finish(self, z: Tensor, sent: State, client: State, c: Coefficients) -> tuple[State, State]:
        return super().finish(z, sent, client, c)[0], {"before": client["previous"]}


OURS: dict[tuple[str, str], Algorithm] = {
    ("peers", "CODA_Plus"): CODAPlus(RATE, RATE, STEPS, **STAGES),
    ("peers", "CODASCA"): CODASCAOfOmega(RATE, RATE, STEPS, SERVER_RATE, **STAGES),
    ("peers", "Extra_Step_Local_SGD"): Extragradient(RATE, RATE, STEPS),
    # Its snapshot follows every local step, so that its Local SGDA+ is local SGDA.
    ("peers", "Local_SGDA_Plus"): FedAvgGDA(RATE, 2 * RATE, STEPS),
    ("proxskip", "ProxSkip"): ProxSkipAsRecorded(RATE, RATE, STEPS),
    ("proxskip", "Local_GDA"): FedAvgGDA(RATE, RATE, STEPS),
    ("proxskip", "Local_EG"): Extragradient(RATE, RATE, STEPS),
    ("proxskip", "FedGDA_GT"): FedGDAGT(RATE, RATE, STEPS),
    ("momentum", "FCSG_M"): MomentumGDA(RATE, RATE, STEPS, momentum=KEPT),
    ("momentum", "Acc_FCSG_M"): FedSGDAMOfOwnPoints(RATE, RATE, STEPS, momentum=KEPT),
}
"""By the file of the recording and the method's name there."""


def client(number: int, given: dict[str, Any], layout: Layout) -> FunctionClient:
    c = {name: torch.tensor(values, dtype=FLOAT64) for name, values in given.items()}

    def f(x: Tensor, y: Tensor) -> Tensor:
        curved = c["bend"] * x * x / 2 + c["coupling"] * x * y - c["dip"] * y * y / 2
        return (curved + c["pull_x"] * x + c["pull_y"] * y).sum()

    return FunctionClient(f"client-{number}", f, None, layout, torch.ones((), dtype=FLOAT64))


def rounds_of(algorithm: Algorithm, recorded: dict[str, Any]) -> Tensor:
    """The server's point after every round, or pair of rounds, of the recorded game."""
    start = tuple(torch.tensor(each, dtype=FLOAT64) for each in recorded["start"])
    layout = Layout.of(*start)
    clients = [client(number, given, layout) for number, given in enumerate(recorded["clients"])]
    every = 2 if algorithm.in_pairs else 1
    engine = InProcess(FederatedProblem(layout, layout.pack(*start), clients), algorithm, 3 * every)
    return torch.stack([state.z for state, _ in played(engine, 3 * every)][every - 1 :: every])


def theirs(file: str, method: str) -> Tensor:
    return torch.tensor(FILES[file]["rounds"][method], dtype=FLOAT64)


@pytest.mark.parametrize(("file", "method"), OURS)
def test_three_rounds_are_those_of_the_public_code(file: str, method: str) -> None:
    found = rounds_of(OURS[file, method], FILES[file])
    torch.testing.assert_close(found, theirs(file, method), rtol=1e-10, atol=1e-12)


def test_every_recorded_method_is_compared() -> None:
    assert OURS.keys() == {(file, method) for file, recorded in FILES.items() for method in recorded["rounds"]}


@pytest.mark.parametrize(
    ("file", "method", "ours"),
    [
        ("peers", "CODASCA", CODASCA(RATE, RATE, STEPS, SERVER_RATE, **STAGES)),
        ("peers", "Local_SGDA_Plus", SGDAPlus(RATE, 2 * RATE, STEPS, snapshot_every=1)),
    ],
)
def test_where_the_public_code_departs_from_the_papers_ours_does_not(file: str, method: str, ours: Algorithm) -> None:
    assert (rounds_of(ours, FILES[file]) - theirs(file, method)).abs().max() > 1e-3


def test_fedsgda_m_differs_from_the_public_code_in_the_points_a_round_begins_with_alone() -> None:
    # Theirs belongs to another problem's method, and keeps a client's own point; here it is the clients' mean.
    found = rounds_of(FedSGDAM(RATE, RATE, STEPS, momentum=KEPT), FILES["momentum"])
    recorded = theirs("momentum", "Acc_FCSG_M")
    torch.testing.assert_close(found[0], recorded[0], rtol=1e-10, atol=1e-12)
    assert (found[1:] - recorded[1:]).abs().amax(dim=1).min() > 1e-4


@dataclass(frozen=True)
class DividedBySum(ConvexSet):
    """Weights as FedSGDA+'s program holds them in the simplex."""

    def project(self, x: Tensor) -> Tensor:
        return x.relu() / x.relu().sum(dim=-1, keepdim=True)


def test_three_rounds_of_sgda_plus_are_those_of_fedsgda_plus() -> None:
    recorded = golden("fedsgda")
    x, classes = torch.tensor(recorded["rows"], dtype=FLOAT64), len(recorded["rows"])

    def f(weights: Tensor, shares: Tensor) -> Tensor:
        return shares @ cross_entropy(x.unsqueeze(1) * weights, torch.arange(classes), reduction="none")

    start = torch.tensor(recorded["start"], dtype=FLOAT64), torch.full((classes,), 1 / classes, dtype=FLOAT64)
    layout, every = Layout.of(*start), recorded["snapshot_every"]
    only = FunctionClient("only", f, None, layout, torch.ones((), dtype=FLOAT64))
    rates = (recorded["rate"], recorded["rate_max"], recorded["steps"], recorded["server_rate"])
    algorithm = SGDAPlus(*rates[:3], server_lr=rates[3], snapshot_every=every)
    problem = FederatedProblem(layout, layout.pack(*start), [only], constraints={"psi": DividedBySum()})
    found = torch.stack([state.z for state, _ in played(InProcess(problem, algorithm, 3), 3)])
    torch.testing.assert_close(found, torch.tensor(recorded["rounds"], dtype=FLOAT64), rtol=1e-10, atol=1e-12)
