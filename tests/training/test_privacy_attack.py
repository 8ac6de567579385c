"""The reported epsilon under attack: nobody learns more of a client than it says, whatever the algorithm.

One client pushes as hard as clipping lets it, up or down, and an attacker is to tell which from all that is released.
Thousands of federations run as one stack along a leading axis, through the clients' own code (``Worker``). The attacker
knows everything but the noise: it learns the best linear statistic of what it sees from half of the federations and is
judged by the other half. Its d' is the distance between the two means of that statistic in standard deviations. An
epsilon of a Gaussian mechanism stands for the d' of the best attack on it, and no attack may have a larger one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
from problems import FLOAT64, FieldClient, generator, played, takes_noise
from torch import Tensor

from fedmm import (
    ALGORITHMS,
    FESSGDA,
    AdaptiveFedMM,
    AscentFedMM,
    Extragradient,
    FedAvgGDA,
    FedMM,
    FedmmError,
    FedSGDA,
    GaussianUpdate,
    OptimisticFedMM,
    ProximalPoint,
    ProxSkipSGDA,
    RestrainedFedMM,
    ScaffoldGDA,
    SGDAPlus,
    SmoothedFedMM,
    Terms,
)
from fedmm.core.aggregation import aggregate, groups_of
from fedmm.core.algorithm import Algorithm, first_exchange, steps_by_client
from fedmm.core.compression import algorithms_part, broadcast, decode_upload, first_memory, known_point, remember
from fedmm.core.federation import head_count, taking_part
from fedmm.core.layout import Layout
from fedmm.core.mechanisms import NoiseSource, SeededNoise
from fedmm.core.problem import FederatedProblem
from fedmm.engines.in_process import InProcess
from fedmm.engines.worker import Worker
from fedmm.training.privacy import PrivacyAccount

LAYOUT = Layout({"omega": (1,)}, {"psi": (1,)}, dtype=FLOAT64)
CLIENTS, ROUNDS = 17, 6
NAMES = [f"client-{number:02d}" for number in range(CLIENTS)]
SHARE = 0.5
OFTEN = sorted(NAMES, key=lambda name: -sum(name in taking_part(NAMES, SHARE, 0, t) for t in range(ROUNDS)))
LOUD, INSIDER = OFTEN[:2]
"""Who takes part most often where half of the clients do."""
FEDERATIONS = 2000
"""For each sign: then the standard error of a d' of 1.7 is 0.04."""
ERRORS = 5
"""By so many standard errors a measured d' may be above the claimed one: one in three million would be, by chance."""

ATTACKED: dict[str, Algorithm] = {
    **{name: kind(1.0, 1.0) for name, kind in ALGORITHMS.items()},
    "fedsgda": FedSGDA(1.0, 1.0),
    "fedavg_gda": FedAvgGDA(1.0, 1.0, 1),
    "fedprox_gda": ALGORITHMS["fedprox_gda"](1.0, 1.0, local_steps=2),  # type: ignore[call-arg]
    "fedmm": FedMM(1.0, 1.0, local_steps=1),
    "fedmm_restrained": RestrainedFedMM(1.0, 1.0, 1.0, 1.0, local_steps=1),
    "fedmm_ascent": AscentFedMM(1.0, 1.0, 1.0, 1.0, local_steps=1),
    "fedmm_adaptive": AdaptiveFedMM(1.0, 1.0, 1.0, 1.0, local_steps=1),
    "fedmm_smoothed": SmoothedFedMM(1.0, 1.0, local_steps=1, smoothing_max=0.5),
    "scaffold_gda": ScaffoldGDA(1.0, 1.0, local_steps=[1 + number % 3 for number in range(CLIENTS)]),
    "fedmm_optimistic": OptimisticFedMM(1.0, 1.0, local_steps=1),
    "proxskip_sgda": ProxSkipSGDA(1.0, 1.0, mean_steps=1),
    "extragradient": Extragradient(1.0, 1.0, 1),
    "proximal_point": ProximalPoint(1.0, 1.0, 2, inner_steps=2),
    "sgda_plus": SGDAPlus(1.0, 1.0, 1, snapshot_every=2),
    "fess_gda": FESSGDA(1.0, 1.0, 1, smoothing_min=0.5),
}
SENDS_MORE = {name for name, kind in ALGORITHMS.items() if not takes_noise(kind)}
"""Whose clients send what comes of their local steps, or their losses, beside z: they are refused with any noise."""
each_algorithm = pytest.mark.parametrize(
    "algorithm", [pytest.param(ATTACKED[name], id=name) for name in ALGORITHMS if name not in SENDS_MORE]
)
STATELESS = {
    name for name, each in ATTACKED.items() if not first_exchange(each, LAYOUT, torch.zeros(2))[1]
} - SENDS_MORE


@dataclass(frozen=True)
class StackedNoise(NoiseSource):
    """Noise of its own for every federation of a stack."""

    random: torch.Generator

    def normal(
        self, client: str, t: int, session: int, update: Tensor, received: Mapping[str, Tensor] | None = None
    ) -> Tensor:
        return torch.randn(update.shape, dtype=FLOAT64, generator=self.random)


class Released(NamedTuple):
    """Of every round: the server's point after it, ``[federations, size]``, and by client what it sent."""

    points: list[Tensor]
    sent: list[dict[str, list[Tensor]]]


def problem_of(signs: Tensor, pull: float) -> FederatedProblem:
    """A client whose updates are as long as they may be, in the direction of its sign; the others are drawn to 0."""

    def pushed(z: Tensor) -> Tensor:
        return torch.zeros_like(z) - 1e3 * signs

    clients = [FieldClient(name, pushed if name == LOUD else lambda z: pull * z) for name in NAMES]
    return FederatedProblem(LAYOUT, torch.zeros(*signs.shape[:-1], 2, dtype=FLOAT64), clients)


def release(algorithm: Algorithm, terms: Terms, noise: NoiseSource, signs: Tensor, pull: float = 0.0) -> Released:
    """All that leaves the clients and the server; no combination is refused here."""
    problem, present = problem_of(signs, pull), head_count(CLIENTS, terms.participation)
    steps = steps_by_client(algorithm.steps, NAMES)
    work = {
        each.name: Worker(each, algorithm, LAYOUT, ROUNDS, steps[each.name], terms, present, noise)
        for each in problem.clients
    }
    server = algorithm.init_server(problem.start)
    first = algorithm.broadcast(server)
    begun = {**algorithm.init_client(problem.start), **first_memory(terms.uploads, terms.broadcasts, first)}
    own, server = dict.fromkeys(NAMES, begun), {**server, **remember(terms.broadcasts, first)}
    released = Released([], [])
    for t in range(ROUNDS):
        now = broadcast(terms.broadcasts, algorithm.broadcast(algorithms_part(server)), known_point(server)).sent
        uploads = {}
        for name in taking_part(NAMES, terms.participation, 0, t - algorithm.ends_pair(t)):
            worked = work[name].run(t, now, own[name], {})
            own[name], uploads[name] = worked.own, decode_upload(terms.uploads, worked.upload, now)
        stacked = {
            name: torch.stack([each[name] for each in uploads.values()], dim=-2)
            for name in next(iter(uploads.values()))
        }
        came = aggregate(
            terms.aggregation, stacked, now, groups_of(list(uploads), {}, LAYOUT.device), present / CLIENTS,
            algorithm.accumulates,
        )  # fmt: skip
        after = algorithm.server_update(algorithms_part(server), came, algorithm.coefficients(LAYOUT, t, ROUNDS))
        server = {**after, **remember(terms.broadcasts, now)}
        released.points.append(server["z"])
        released.sent.append({name: list(vectors.values()) for name, vectors in uploads.items()})
    return released


def seen_by(trust: str, released: Released) -> Tensor:
    """What the attacker sees of each federation, ``[federations, numbers]``.

    Where nobody is trusted, the loud client's own uploads and all points. Where the server is, the points, by another
    client, which knows its own uploads.
    """
    uploads = [vector for sent in released.sent for vector in sent.get(LOUD if trust == "nobody" else INSIDER, ())]
    return torch.cat([*released.points, *uploads], dim=-1)


class Attack(NamedTuple):
    """The d' of the best linear attack, and its standard error."""

    d: float
    error: float


def attack(up: Tensor, down: Tensor) -> Attack:
    """Learnt from one half of the federations and judged by the other, both ways round."""
    half = len(up) // 2
    found = []
    for learn, judge in ((slice(half), slice(half, None)), (slice(half, None), slice(half))):
        spread = (torch.cov(up[learn].T) + torch.cov(down[learn].T)) / 2
        spread += 1e-9 * spread.diagonal().mean() * torch.eye(len(spread), dtype=FLOAT64)
        statistic = torch.linalg.solve(spread, up[learn].mean(0) - down[learn].mean(0))
        one, other = up[judge] @ statistic, down[judge] @ statistic
        found.append(float((one.mean() - other.mean()) / ((one.var() + other.var()) / 2).sqrt()))
    d = sum(found) / 2
    return Attack(d, math.sqrt(2 / len(up) + d**2 / (4 * len(up))))


def attacked(algorithm: Algorithm, terms: Terms, pull: float = 0.0) -> Attack:
    signs = torch.tensor([1.0, -1.0], dtype=FLOAT64).repeat_interleave(FEDERATIONS).unsqueeze(-1)
    released = release(algorithm, terms, StackedNoise(generator(0)), signs, pull)
    assert isinstance(terms.transmission, GaussianUpdate)
    seen = seen_by(terms.transmission.trust, released)
    return attack(seen[:FEDERATIONS], seen[FEDERATIONS:])


def claimed(terms: Terms) -> float:
    """The d' that the reported epsilon stands for."""
    assert isinstance(terms.transmission, GaussianUpdate)
    account = PrivacyAccount(terms.transmission, tuple(NAMES), terms.participation, secret_sample=False)
    epsilon = account.spent([head_count(CLIENTS, terms.participation)] * ROUNDS)
    low, high = 0.0, 100.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if delta_of(epsilon, middle) < terms.transmission.delta else (low, middle)
    return high


def delta_of(epsilon: float, d: float) -> float:
    """Of a Gaussian mechanism that the best attack on has this d' (Balle and Wang 2018, theorem 8)."""

    def below(x: float) -> float:
        return 0.5 * math.erfc(-x / math.sqrt(2))

    return below(d / 2 - epsilon / d) - math.exp(epsilon) * below(-d / 2 - epsilon / d)


def noisy(trust: str, noise: float = 4.0, **terms: Any) -> Terms:
    return Terms(transmission=GaussianUpdate(1.0, 1.0, noise, noise, trust=trust), **terms)  # type: ignore[arg-type]


def assert_bounded(found: Attack, most: float) -> None:
    assert found.d < most + ERRORS * found.error
    assert found.d > 0.8 * most, "the attack is too weak to tell anything"


@each_algorithm
@pytest.mark.parametrize("share", [1.0, SHARE])
def test_a_server_that_sees_every_update_learns_no_more_than_is_claimed(algorithm: Algorithm, share: float) -> None:
    terms = noisy("nobody", participation=share)
    assert_bounded(attacked(algorithm, terms, pull=0.3), claimed(terms))


@pytest.mark.parametrize("algorithm", [ATTACKED["fedmm"], ATTACKED["fedavg_gda"]], ids=lambda each: each.name)
def test_coded_updates_tell_a_curious_server_no_more(algorithm: Algorithm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedmm.core.compression.BLOCK", 2)  # as many coordinates as there are
    terms = noisy("nobody", uploads="int8", broadcasts="int8")
    assert_bounded(attacked(algorithm, terms), claimed(terms))


@each_algorithm
def test_points_tell_other_clients_no_more_than_is_claimed_or_the_combination_is_refused(algorithm: Algorithm) -> None:
    terms, problem = noisy("server"), problem_of(torch.ones(1, dtype=FLOAT64), 0.0)
    if algorithm.name in STATELESS:
        InProcess(problem, algorithm, ROUNDS, terms)
        assert_bounded(attacked(algorithm, terms, pull=0.3), claimed(terms))
    else:
        with pytest.raises(FedmmError, match=r"noise can only be shared if clients .*trust = 'nobody'"):
            InProcess(problem, algorithm, ROUNDS, terms)
        # And rightly so: what clients keep takes the noise of earlier rounds back.
        found = attacked(algorithm, terms)
        # In pairs they keep it for the second round alone; of steps that follow the noise a linear attack sees less.
        much = 1 if algorithm.in_pairs or isinstance(algorithm, AdaptiveFedMM) else 2
        assert found.d - ERRORS * found.error > much * claimed(terms)


@pytest.mark.parametrize("options", [{"broadcasts": "int8"}, {"participation": SHARE}], ids=["coded", "half"])
def test_neither_coded_points_nor_participation_that_is_known_tell_more(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedmm.core.compression.BLOCK", 2)
    terms = noisy("server", **options)
    assert_bounded(attacked(FedAvgGDA(1.0, 1.0, 1), terms, pull=0.3), claimed(terms))


def test_some_algorithms_are_left_with_a_trusted_server() -> None:
    assert {
        "fedsgda", "fedavg_gda", "fedprox_gda", "extragradient", "proximal_point", "sgda_plus", "fess_gda", "coda_plus",
    } == STATELESS  # fmt: skip


def test_those_that_send_more_than_z_are_known() -> None:
    assert {"momentum_gda", "fedsgda_m", "afl", "fedmm_agnostic", "drfa", "q_ffl"} == SENDS_MORE


@pytest.mark.parametrize("name", sorted(SENDS_MORE))
@pytest.mark.parametrize("trust", ["nobody", "server"])
def test_what_comes_of_the_local_steps_beside_z_does_not_travel_with_noise(name: str, trust: str) -> None:
    problem = problem_of(torch.ones(1, dtype=FLOAT64), 0.0)
    with pytest.raises(FedmmError, match=f"updates cannot carry noise with {name}"):
        InProcess(problem, ATTACKED[name], ROUNDS, noisy(trust))
    with pytest.raises(FedmmError, match=f"updates cannot carry noise with {name}"):  # nor from a worker by itself
        release(ATTACKED[name], noisy(trust), SeededNoise(0), torch.ones(1, dtype=FLOAT64))


@each_algorithm
def test_the_stack_that_is_attacked_computes_what_the_reference_does(algorithm: Algorithm) -> None:
    terms = noisy("nobody", participation=SHARE, uploads="fp16", broadcasts="fp16")
    sign = torch.ones(1, dtype=FLOAT64)
    released = release(algorithm, terms, SeededNoise(0), sign, pull=0.3)
    engine = InProcess(problem_of(sign, 0.3), algorithm, ROUNDS, terms)
    for (state, _), point in zip(played(engine, ROUNDS), released.points, strict=True):
        torch.testing.assert_close(state.z, point, rtol=1e-9, atol=1e-9)
