"""Codes and noise in a federation: both sides add up the same, the saddle is reached, and nothing else is told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from faults.exchanges import Unreliable, survived
from hypothesis import given
from hypothesis import strategies as st
from problems import (
    FLOAT64,
    FieldClient,
    Game,
    adapt,
    games,
    generator,
    network,
    played,
    random_game,
    source_client,
    target_client,
    with_options,
)
from torch import Tensor, nn

from fedmm import (
    ALGORITHMS,
    FedAvgGDA,
    FedMM,
    FedmmError,
    GaussianUpdate,
    ScaffoldGDA,
    SmoothedFedMM,
    Terms,
    solve,
)
from fedmm.core.algorithm import Aggregated, Algorithm, Coefficients, State, first_exchange
from fedmm.core.compression import ENCODINGS, RESIDUAL, algorithms_part, known_point, vector_bytes
from fedmm.core.engine import FederatedState
from fedmm.core.problem import LocalReport
from fedmm.engines.in_process import InProcess
from fedmm.engines.messages import Invitation, size_in_bytes
from fedmm.remote.messaging import Exchange, Messaging

FEDMM = FedMM(0.05, 0.05, 2.0, 2.0, local_steps=8)
CONVERGING = (FEDMM, SmoothedFedMM(0.05, 0.05, 2.0, 2.0, local_steps=8), ScaffoldGDA(0.05, 0.05, local_steps=8))
CODED = {
    "uploads in int8": {"uploads": "int8"},
    "broadcasts in int8": {"broadcasts": "int8"},
    "all in int8": {"uploads": "int8", "broadcasts": "int8"},
    "all in fp16": {"uploads": "fp16", "broadcasts": "fp16"},
}
each_coded = pytest.mark.parametrize("coded", CODED.values(), ids=CODED)
encodings = st.sampled_from(ENCODINGS)


def sums(algorithm: Algorithm, state: FederatedState) -> tuple[Tensor, Tensor]:
    """What the server has added up, and the mean of what the clients have."""
    ours, theirs = ("control", "control") if isinstance(algorithm, ScaffoldGDA) else ("mean_dual", "dual")
    return state.server[ours], torch.stack([own[theirs] for own in state.clients.values()]).mean(0)


# Codes ----------------------------------------------------------------------------------------------------------------


@each_coded
@pytest.mark.parametrize("share", [1.0, 0.75])
@pytest.mark.parametrize("algorithm", CONVERGING, ids=lambda a: a.name)
def test_the_saddle_is_reached_to_the_last_digits_by_codes(
    algorithm: Algorithm, share: float, coded: dict[str, Any]
) -> None:
    game = random_game(0, clients=4)
    rounds = 350 if isinstance(algorithm, SmoothedFedMM) else 150
    run = played(InProcess(game.problem(), algorithm, rounds, Terms(share, **coded)), rounds)
    assert any(game.error(state) < 1e-12 for state, _ in run)


@given(games, encodings, encodings, st.sampled_from([0.5, 1.0]), st.sampled_from([FedMM, ScaffoldGDA]))
def test_both_sides_add_up_the_same_however_vectors_travel(
    game: Game, uploads: Any, broadcasts: Any, share: float, kind: type[Algorithm]
) -> None:
    algorithm = with_options(kind)
    noise = GaussianUpdate(0.3, 0.2, 0.1, 0.1)
    for transmission in (Terms().transmission, noise):
        terms = Terms(share, transmission=transmission, uploads=uploads, broadcasts=broadcasts)
        for state, _ in played(InProcess(game.problem(), algorithm, 5, terms), 5):
            ours, theirs = sums(algorithm, state)
            torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("kind", ALGORITHMS.values(), ids=ALGORITHMS)
def test_bytes_are_counted_as_sent(kind: type[Algorithm]) -> None:
    game, algorithm = random_game(0, clients=4, sizes=(300, 30)), with_options(kind)
    start = torch.cat(game.start)
    up = len(first_exchange(algorithm, game.layout, start)[0])
    down = len(algorithm.broadcast(algorithm.init_server(start)))
    assert kind is not ScaffoldGDA or up == down == 2
    terms = Terms(0.5, uploads="int8", broadcasts="fp16")
    whole, code, half = (vector_bytes(each, 330, FLOAT64) for each in ("exact", "int8", "fp16"))
    present: set[str] = set()
    told = 0
    for state, record in played(InProcess(game.problem(), algorithm, 12, terms), 12):
        now = {name for name, at in state.counted.items() if at == state.round - 1}
        vectors = 0 if algorithm.reports_only(state.round - 1) else code + (up - 1) * whole
        assert record.bytes_up == 2 * (vectors + 8 * len(algorithm.reports))
        weights = 2 * 8 if "weights" in state.server else 0
        assert record.bytes_down == weights + down * (len(now & present) * half + len(now - present) * whole)
        told += len(now & present)
        present = now
    assert 0 < told < 24


def test_what_error_feedback_is_for() -> None:
    # FedAvgGDA's updates do not vanish at the saddle, and neither does what codes leave out of them.
    game = random_game(0, clients=4)
    mean_errors = []
    for forgets in (False, True):
        engine = InProcess(game.problem(), FedAvgGDA(0.05, 0.05, 1), 600, Terms(uploads="int8"))
        state, total = engine.start(), 0.0
        for t in range(600):
            state, _ = engine.run_round(state)
            total += game.error(state) if t >= 300 else 0.0
            if forgets:
                nothing = {RESIDUAL: torch.zeros_like(state.z)}
                state = replace(state, clients={name: {**own, **nothing} for name, own in state.clients.items()})
        mean_errors.append(total / 300)
    assert mean_errors[0] < 3e-4
    assert mean_errors[1] > 1e-3


@each_coded
def test_codes_survive_faults_of_every_kind(coded: dict[str, Any]) -> None:
    # A site's memory of what it left out and of what it was sent is part of its state: it counts when its update does.
    game = random_game(0, clients=4)
    faults = Unreliable(seed=1, unasked=0.15, unheard=0.15, late=0.15, twice=0.2, stale=0.05)
    run = Messaging(game.problem(), FEDMM, 300, Terms(restore=True, **coded), faults)
    state, records = survived(run, 300, crashes=0.05, checkpoint_every=3, seed=1)
    assert game.error(state) < 1e-12
    assert any("lost" in each.reason for record in records for each in record.refused)


@each_coded
def test_sites_know_what_the_server_takes_them_to_know(coded: dict[str, Any]) -> None:
    run = Messaging(random_game(0, clients=3).problem(), FEDMM, 20, Terms(0.67, **coded))
    for state, _ in played(run, 20):
        for name, at in state.counted.items():
            own = run.sites[name].memory.held[at].own
            assert algorithms_part(own).keys() == {"dual"}
            if at == state.round - 1 and "broadcasts" in coded:
                assert torch.equal(known_point(own)["z"], known_point(state.server)["z"])


class Watching(Exchange):
    """Sees what travels."""

    def __init__(self) -> None:
        self.down: list[State] = []
        self.up: list[State] = []

    def invited(self, client: str, invitation: Invitation) -> bool:
        self.down.append(invitation.travelling)
        return True

    def arriving(self, t: int, answers: Any) -> Any:
        self.up += [each.vectors for each in answers]
        return answers


def test_what_travels_are_codes_and_scales() -> None:
    seen = Watching()
    run = Messaging(random_game(0, clients=2).problem(), FEDMM, 3, Terms(uploads="int8", broadcasts="fp16"), seen)
    records = [record for _, record in played(run, 3)]
    assert [sorted(each) for each in seen.down] == [["z"]] * 2 + [["z.codes", "z.scales"]] * 4
    assert seen.down[-1]["z.codes"].dtype == torch.float16
    for update in seen.up:
        assert {name: tensor.dtype for name, tensor in update.items()} == {
            "z.codes": torch.int8,
            "z.scales": torch.float32,
        }
    assert sum(record.bytes_up for record in records) == sum(map(size_in_bytes, seen.up))
    assert sum(record.bytes_down for record in records) == sum(map(size_in_bytes, seen.down))


@dataclass
class Spoiling(Exchange):
    """One client's codes are changed on their way."""

    ways: Mapping[str, Tensor]

    def arriving(self, t: int, answers: Any) -> Any:
        return [
            replace(each, vectors={**each.vectors, **self.ways}) if each.client == "client-1" else each
            for each in answers
        ]


@pytest.mark.parametrize(
    ("ways", "reason"),
    [
        ({"z.codes": torch.zeros(4, dtype=torch.int8)}, "its 'z.codes' has shape (4,), not (5,)"),
        ({"z.codes": torch.zeros(5)}, "its 'z.codes' has dtype torch.float32, not torch.int8"),
        ({"z.scales": torch.tensor([torch.nan])}, "its 'z' is not finite"),
        ({"z.scales": torch.tensor([1e30])}, "above the bound 100"),
        ({"z": torch.zeros(5, dtype=FLOAT64)}, "its update holds an unknown vector 'z'"),
    ],
)
def test_spoilt_codes_are_refused_by_a_reason(ways: dict[str, Tensor], reason: str) -> None:
    terms = Terms(uploads="int8", on_bad_update="skip", max_update_norm=100.0)
    run = Messaging(random_game(0, clients=3).problem(), FEDMM, 2, terms, Spoiling(ways))
    for _, record in played(run, 2):
        ((client, why),) = record.refused
        assert client == "client-1"
        assert reason in why


# Noise ----------------------------------------------------------------------------------------------------------------

NOISE = GaussianUpdate(0.5, 0.5, 0.2, 0.2)


def test_the_same_round_carries_the_same_noise_and_a_restarted_server_gets_other_noise() -> None:
    # Asked again after a restart, for another point, a site must not answer with noise that is known by then.
    run = Messaging(random_game(0, clients=2).problem(), FEDMM, 4, Terms(transmission=NOISE))
    site, state = run.sites["client-0"], run.start()
    first = run.server.invitations(state)["client-0"]
    answers = [site.answer(each).vectors["z"] for each in (first, first, replace(first, session=1))]
    assert torch.equal(answers[0], answers[1])
    assert not torch.allclose(answers[0], answers[2])
    following = site.answer(replace(first, round=1))
    assert not torch.allclose(answers[0], following.vectors["z"])


def test_messages_carry_the_noise_of_the_reference() -> None:
    game = random_game(0, clients=3)
    terms = Terms(0.67, transmission=NOISE, uploads="int8", broadcasts="int8")
    one, other = (kind(game.problem(), FEDMM, 6, terms) for kind in (InProcess, Messaging))
    for (state, _), (same, _) in zip(played(one, 6), played(other, 6), strict=True):
        assert torch.equal(state.z, same.z)
    seeds = [replace(game.problem(), seed=seed) for seed in (0, 1)]
    ends = [[s for s, _ in played(InProcess(p, FEDMM, 2, Terms(transmission=NOISE)), 2)][-1].z for p in seeds]
    assert not torch.allclose(*ends)


@dataclass(frozen=True)
class Telling(FieldClient):
    """Reports a loss."""

    def close(self) -> LocalReport:
        return LocalReport({"loss": 1.0})


def test_with_noise_no_client_reports_losses() -> None:
    game = random_game(0, clients=2)
    clients = [Telling(name, client.field) for name, client in zip(game.names, game.clients, strict=True)]
    problem = replace(game.problem(), clients=clients)
    for terms, metrics in ((Terms(), {"loss": 1.0}), (Terms(transmission=NOISE), {})):
        *_, (_, record) = played(InProcess(problem, FEDMM, 1, terms), 1)
        assert record.metrics == metrics


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        (network(), {"probe_rows": 5}, "probe_rows must be 0 if updates carry noise"),
        (network(centre="train_mean"), {}, "centre must be 'none' or 'image_mean' if updates carry noise"),
        (network(nn.Linear(4, 3), nn.BatchNorm1d(3)), {}, "batch normalisation would travel without noise"),
        (network(nn.Linear(4, 3), nn.BatchNorm1d(3), batch_norm="local"), {}, "batch_norm must be 'frozen'"),
    ],
)
def test_whatever_would_tell_of_rows_without_noise_is_refused(
    model: Any, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(FedmmError, match=message):
        adapt(model=model, terms=Terms(transmission=NOISE), **{"probe_rows": 0} | options)


def test_a_run_with_noise_tells_accuracies_epsilon_and_distances_alone() -> None:
    adapted = adapt(
        [source_client(), target_client()], network(), terms=Terms(transmission=NOISE), probe_rows=0, rounds=2
    )
    assert set(adapted.history[-1]) == {
        "round", "epsilon", "drift", "consensus_gap", "dual_norm",
        "bytes_up", "bytes_down", "seconds", "clients", "refused",
    }  # fmt: skip
    zero = torch.zeros((), dtype=FLOAT64)
    solved = solve([lambda x, y: x * x - y * y] * 2, (zero, zero), FedMM(), 2, terms=Terms(transmission=NOISE))
    assert "loss" not in solved.history[-1]
    assert solved.history["epsilon"] == adapted.history["epsilon"]


def test_what_a_client_sends_depends_on_its_rows_through_noisy_updates_alone() -> None:
    # The whole state of a client follows from what it sent and was sent: FedMM's dual, SCAFFOLD's control.
    game = random_game(0, clients=3)
    for algorithm in (FEDMM, ScaffoldGDA(0.05, 0.05, local_steps=8)):
        run = Messaging(game.problem(), algorithm, 5, Terms(transmission=NOISE, restore=True))
        for state, _ in played(run, 5):
            for name, site in run.sites.items():
                c = site.worker.coefficients(state.round)
                rebuilt = algorithm.restored_client(state.server, state.totals[name], c)
                torch.testing.assert_close(rebuilt, state.clients[name], rtol=1e-12, atol=1e-12)


@dataclass(frozen=True)
class ServerAddsTheNoise(FedMM):
    """The server adds noise to the mean of the updates, and the clients do not know which."""

    def server_update(self, server: State, uploads: Aggregated, c: Coefficients) -> State:
        noise = 0.02 * torch.randn(len(server["z"]), dtype=FLOAT64, generator=_CENTRAL)
        noisy = Aggregated({"z": uploads.mean["z"] + noise}, {"z": uploads.gain["z"] + noise})
        return super().server_update(server, noisy, c)


_CENTRAL = generator(5)


def test_noise_of_the_servers_own_would_lead_fedmm_away_and_the_clients_noise_does_not() -> None:
    # Noise that is in the server's sum and in no client's dual stays there for good: a random walk of the saddle.
    game = random_game(0, clients=4)
    noisy = Terms(transmission=GaussianUpdate(10.0, 10.0, 0.0046, 0.0046))  # 0.023 on the mean
    runs = {
        "of the server's own": InProcess(
            game.problem(), ServerAddsTheNoise(0.05, 0.05, 2.0, 2.0, local_steps=8), 800, Terms()
        ),
        "of the clients": InProcess(game.problem(), FEDMM, 800, noisy),
    }
    late, early = {}, {}
    for name, engine in runs.items():
        errors = [game.error(state) for state, _ in played(engine, 800)]
        early[name], late[name] = sum(errors[100:200]) / 100, sum(errors[700:]) / 100
    assert late["of the clients"] < 1.2 * early["of the clients"] < 0.12
    assert late["of the server's own"] > 0.5
    assert late["of the server's own"] > 1.3 * early["of the server's own"]
