"""What happens to an update on its way counts on both sides."""

from __future__ import annotations

import math
import stat
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from problems import FLOAT64, Game, games, generator, played, random_game
from scipy import stats
from torch import Tensor

from fedmm import (
    ClippedUpdate,
    CoordinateMedian,
    FedAvgGDA,
    FedMM,
    FedmmError,
    GaussianUpdate,
    ScaffoldGDA,
    SmoothedFedMM,
    Terms,
)
from fedmm.core.algorithm import Algorithm, Coefficients, State
from fedmm.core.engine import FederatedState
from fedmm.core.mechanisms import (
    TRANSMISSIONS,
    Circumstances,
    ExactUpdate,
    NoiseSource,
    SecretNoise,
    SeededNoise,
    Transmission,
    transmit_point,
)
from fedmm.core.seeding import normal
from fedmm.engines.in_process import InProcess
from fedmm.remote.messaging import Messaging

each_transmission = pytest.mark.parametrize("kind", TRANSMISSIONS.values(), ids=TRANSMISSIONS)


@each_transmission
def test_a_row_has_its_name_and_says_what_it_is(kind: type[Transmission]) -> None:
    assert TRANSMISSIONS[kind.name] is kind
    assert kind.summary
    assert kind() == kind()


def test_a_long_update_is_shortened_and_a_short_one_left_alone() -> None:
    updates = torch.tensor([[3.0, 4.0], [0.3, 0.4], [0.0, 0.0], [-6.0, 8.0]], dtype=FLOAT64)
    expected = [[1.2, 1.6], [0.3, 0.4], [0.0, 0.0], [-1.2, 1.6]]
    torch.testing.assert_close(ClippedUpdate(2.0).transmitted(updates), torch.tensor(expected, dtype=FLOAT64))
    for update, row in zip(updates, expected, strict=True):
        torch.testing.assert_close(ClippedUpdate(2.0).transmitted(update), torch.tensor(row, dtype=FLOAT64))


def test_what_arrives_exactly_is_the_point_to_the_bit() -> None:
    z, z_0 = (torch.randn(5, generator=generator(seed)) for seed in range(2))
    assert transmit_point(ExactUpdate(), z, z_0) is z
    assert torch.equal(transmit_point(ClippedUpdate(0.5), z, z_0), z_0 + ClippedUpdate(0.5).transmitted(z - z_0))


OMEGA, PSI = 3000, 1000


def circumstances(*lead: int, clients: int = 5, seed: int = 0) -> Circumstances:
    numbers = torch.randn(*lead, OMEGA + PSI, dtype=FLOAT64, generator=generator(seed))
    return Circumstances(OMEGA, numbers, clients)


SILENT = Circumstances(2, torch.zeros(4, dtype=FLOAT64), 2)


def test_omega_and_psi_are_shortened_each_to_a_norm_of_its_own() -> None:
    updates = torch.tensor([[3.0, 4.0, 0.3, 0.4], [0.3, 0.4, -6.0, 8.0], [0.0, 0.0, 0.0, 1e200]], dtype=FLOAT64)
    expected = [[1.2, 1.6, 0.3, 0.4], [0.3, 0.4, -3.0, 4.0], [0.0, 0.0, 0.0, 5.0]]
    kind = GaussianUpdate(norm_min=2.0, norm_max=5.0)
    expected = torch.tensor(expected, dtype=FLOAT64)
    torch.testing.assert_close(kind.transmitted(updates[:2], SILENT), expected[:2])
    # too long for its norm to be finite: nothing is left of it, which is as short as can be
    assert kind.transmitted(updates[2], SILENT).tolist() == [0.0, 0.0, 0.0, 0.0]


@given(st.integers(0, 2**31), st.floats(-20, 20), st.floats(0.01, 10), st.floats(0.01, 10))
def test_no_update_is_ever_longer(seed: int, magnitude: float, norm_min: float, norm_max: float) -> None:
    update = 10.0**magnitude * torch.randn(6, 4, dtype=FLOAT64, generator=generator(seed))
    short = GaussianUpdate(norm_min, norm_max).transmitted(update, SILENT)
    assert bool((short[:, :2].norm(dim=-1) <= norm_min * (1 + 1e-12)).all())
    assert bool((short[:, 2:].norm(dim=-1) <= norm_max * (1 + 1e-12)).all())


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_that_a_client_diverged_is_hidden_by_the_noise(bad: float) -> None:
    given = circumstances()
    nothing = torch.zeros(OMEGA + PSI, dtype=FLOAT64)
    diverged = nothing.clone()
    diverged[7] = diverged[-1] = bad
    assert torch.equal(GaussianUpdate().transmitted(diverged, given), GaussianUpdate().transmitted(nothing, given))


def test_the_noise_has_the_deviation_it_is_said_to_have_on_either_side() -> None:
    kind = GaussianUpdate(norm_min=2.0, norm_max=0.5, noise_min=1.5, noise_max=4.0)
    noise = kind.transmitted(torch.zeros(40, OMEGA + PSI, dtype=FLOAT64), circumstances(40))
    for part, deviation in ((noise[:, :OMEGA], 2.0 * 1.5), (noise[:, OMEGA:], 0.5 * 4.0)):
        assert float(part.std()) == pytest.approx(deviation, rel=4 / math.sqrt(2 * part.numel()))
        assert abs(float(part.mean())) < 4 * deviation / math.sqrt(part.numel())


@pytest.mark.parametrize("clients", [2, 5])
def test_shared_noise_is_whole_in_the_sum_of_all_but_one(clients: int) -> None:
    kind = GaussianUpdate(norm_min=2.0, noise_min=1.5, trust="server")
    updates = torch.zeros(40, clients, OMEGA + PSI, dtype=FLOAT64)
    alone = kind.transmitted(updates, circumstances(40, clients, clients=clients))
    others = alone[:, 1:, :OMEGA].sum(dim=1)
    assert float(others.std()) == pytest.approx(2.0 * 1.5, rel=4 / math.sqrt(2 * others.numel()))
    number = torch.full((40, 1, 1), float(clients), dtype=FLOAT64)
    given = circumstances(40, clients)._replace(clients=number)
    torch.testing.assert_close(kind.transmitted(updates, given), alone, rtol=1e-14, atol=0)


@pytest.mark.parametrize(
    ("option", "value"),
    [(name, bad) for name in ("norm_min", "norm_max", "noise_min", "noise_max", "delta") for bad in (0.0, -1.0, "x")]
    + [("delta", 1.0), ("trust", "me")],
)
def test_noise_that_is_none_is_refused(option: str, value: Any) -> None:
    with pytest.raises(FedmmError, match=option):
        GaussianUpdate(**{option: value})


SHARED = GaussianUpdate(trust="server")


@pytest.mark.parametrize(
    ("terms", "message"),
    [
        ({"aggregation": CoordinateMedian()}, "aggregation must be the mean if noise is shared"),
        ({"on_bad_update": "skip"}, "no update may be left out because of its content if noise is shared"),
        ({"max_update_norm": 3.0}, "no update may be left out"),
        ({"max_update_ratio": 3.0}, "no update may be left out"),
        ({"uploads": "int8"}, "uploads must be 'exact' if noise is shared among the clients, not 'int8'"),
        ({"uploads": "fp16"}, "Use trust = 'nobody' to code them; broadcasts may be coded with either"),
    ],
)
def test_shared_noise_is_refused_where_the_sum_could_move_by_more_than_one_update(
    terms: dict[str, Any], message: str
) -> None:
    with pytest.raises(FedmmError, match=message):
        Terms(transmission=SHARED, **terms)
    Terms(transmission=GaussianUpdate(), **terms)  # what a client has hidden by itself may be put to any use
    Terms(transmission=SHARED, broadcasts="int8")  # codes of a point that follows from the noisy sums


def test_shared_noise_is_refused_among_too_few_and_for_uploads_of_more_than_points() -> None:
    with pytest.raises(FedmmError, match="at least two clients take part in a round"):
        InProcess(random_game(0, clients=4).problem(), FedAvgGDA(), 1, Terms(0.25, transmission=SHARED))
    with pytest.raises(FedmmError, match="scaffold_gda sends more, so use trust = 'nobody'"):
        InProcess(random_game(0, clients=4).problem(), ScaffoldGDA(), 1, Terms(transmission=SHARED))


@dataclass(frozen=True)
class Remembers(FedAvgGDA):
    """A new algorithm that declares nothing of what its clients keep; after the first round, they keep their point."""

    name: ClassVar[str] = "remembers"

    def finish(self, z: Tensor, sent: State, client: State, c: Coefficients) -> tuple[State, State]:
        return {"z": z}, {"last": z}


@pytest.mark.parametrize(
    ("algorithm", "kept"),
    [(FedMM(), "'dual'"), (SmoothedFedMM(), "'centre' and 'dual'"), (Remembers(), "'last'")],
    ids=lambda each: getattr(each, "name", ""),
)
def test_shared_noise_is_refused_for_clients_that_keep_anything(algorithm: Algorithm, kept: str) -> None:
    problem = random_game(0, clients=4).problem()
    message = f"those of {algorithm.name} keep {kept}, which .* Use trust = 'nobody', .* such as fedavg_gda"
    for engine in (InProcess, Messaging):
        with pytest.raises(FedmmError, match=message):
            engine(problem, algorithm, 1, Terms(transmission=SHARED))
    InProcess(problem, algorithm, 1, Terms(transmission=GaussianUpdate()))
    InProcess(problem, FedAvgGDA(), 1, Terms(transmission=SHARED))


@pytest.mark.parametrize("norm", [0.0, -1.0, float("nan"), float("inf"), "short"])
def test_a_norm_that_is_none_is_refused(norm: float) -> None:
    with pytest.raises(FedmmError, match="norm"):
        ClippedUpdate(norm)


# In a federation ------------------------------------------------------------------------------------------------------


def play(game: Game, algorithm: Algorithm, terms: Terms, rounds: int) -> list[tuple[FederatedState, float]]:
    engine = InProcess(game.problem(), algorithm, rounds, terms)
    return [(state, record.drift) for state, record in played(engine, rounds)]


@given(games, st.floats(0.01, 0.5), st.sampled_from([0.5, 1.0]))
def test_fedmms_server_knows_the_mean_dual_however_updates_are_clipped(game: Game, norm: float, share: float) -> None:
    for state, drift in play(
        game, FedMM(0.02, 0.03, 0.7, 1.3, 0.9, 3), Terms(share, transmission=ClippedUpdate(norm)), 6
    ):
        own = torch.stack([client["dual"] for client in state.clients.values()]).mean(0)
        torch.testing.assert_close(state.server["mean_dual"], own, rtol=1e-10, atol=1e-12)
        assert drift < norm * (1 + 1e-12)


@pytest.mark.parametrize("algorithm", [FedMM(), ScaffoldGDA()], ids=lambda a: a.name)
def test_where_the_bound_no_longer_binds_at_the_end_the_saddle_is_reached(algorithm: Algorithm) -> None:
    game = random_game(0, clients=4)
    rounds = play(game, algorithm, Terms(transmission=ClippedUpdate(0.05)), 600)
    bound = [drift > 0.05 * (1 - 1e-9) for _, drift in rounds]
    assert all(bound[:5])
    assert not any(bound[400:])
    assert game.error(rounds[-1][0]) < 1e-12


@dataclass(frozen=True)
class ClipsTheUploadAlone(FedMM):
    """The dual takes the whole difference, the server what arrives of it."""

    def finish(self, z: Tensor, sent: State, client: State, c: Coefficients) -> tuple[State, State]:
        upload, own = super().finish(z, sent, client, c)
        return {"z": transmit_point(ClippedUpdate(0.05), upload["z"], sent["z"])}, own


def test_clipping_the_upload_alone_leads_elsewhere() -> None:
    game = random_game(0, clients=4)
    assert game.error(play(game, ClipsTheUploadAlone(), Terms(), 600)[-1][0]) > 0.1
    whole = replace(ClipsTheUploadAlone(), local_steps=1, lr_min=1e-3, lr_max=1e-3)  # too short to be clipped
    torch.testing.assert_close(
        play(game, whole, Terms(), 3)[-1][0].z, play(game, FedMM(1e-3, 1e-3, local_steps=1), Terms(), 3)[-1][0].z
    )


SOURCES = {"seeded": SeededNoise(3), "secret": SecretNoise(bytes(range(32)))}
each_source = pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
SIZE = 40_000
UPDATE = torch.linspace(-1.0, 1.0, SIZE)


@each_source
def test_numbers_are_standard_normal(source: NoiseSource) -> None:
    numbers = source.normal("a", 0, 0, UPDATE)
    assert numbers.dtype == torch.float64
    assert numbers.shape == (SIZE,)
    assert bool(numbers.isfinite().all())
    assert stats.kstest(numbers.numpy(), "norm").pvalue > 0.01
    assert abs(float(numbers.mean())) < 4 / SIZE**0.5
    assert float(numbers.var()) == pytest.approx(1.0, abs=4 * (2 / SIZE) ** 0.5)


@each_source
def test_the_same_question_has_the_same_noise_and_any_other_has_other(source: NoiseSource) -> None:
    questions = [("a", 0, 0), ("b", 0, 0), ("a", 1, 0), ("a", 0, 1), ("a", 10, 0), ("a", 1, 1)]
    drawn = [source.normal(*question, UPDATE) for question in questions]
    for question, numbers in zip(questions, drawn, strict=True):
        assert torch.equal(source.normal(*question, UPDATE), numbers)
    for one, other in combinations(drawn, 2):
        assert abs(float(one @ other) / SIZE) < 5 / SIZE**0.5


def test_no_two_updates_share_the_noise_of_a_secret() -> None:
    # A server that asks a round again from another point would have the difference of the answers without any noise.
    source = SOURCES["secret"]
    other = UPDATE.clone()
    other[7] += 1e-6
    drawn = source.normal("a", 0, 0, UPDATE)
    assert torch.equal(source.normal("a", 0, 0, UPDATE.clone()), drawn)
    assert abs(float(drawn @ source.normal("a", 0, 0, other)) / SIZE) < 5 / SIZE**0.5


def test_other_seeds_and_secrets_are_other_noise() -> None:
    assert not torch.equal(SeededNoise(0).normal("a", 0, 0, UPDATE[:9]), SeededNoise(1).normal("a", 0, 0, UPDATE[:9]))
    drawn = [
        SecretNoise(*each).normal("a", 0, 0, UPDATE[:9])
        for each in ((bytes(32),), (bytes(range(32)),), (bytes(32), "b"))
    ]
    assert not any(torch.equal(one, other) for one, other in combinations(drawn, 2))


def test_neighbouring_numbers_have_nothing_to_do_with_each_other() -> None:
    numbers = SeededNoise(5).normal("a", 0, 0, UPDATE)
    for lag in (1, 2, 3, 64):
        assert abs(float(numbers[lag:] @ numbers[:-lag]) / SIZE) < 5 / SIZE**0.5


def test_a_stack_of_clients_draws_what_each_would_draw() -> None:
    source = SeededNoise(4)
    keys = torch.tensor([[source.key(name, t) for name in ("a", "b")] for t in range(3)])
    together = normal(keys.unsqueeze(-1), torch.arange(7))
    for t in range(3):
        for place, name in enumerate(("a", "b")):
            assert torch.equal(together[t, place], source.normal(name, t, 0, UPDATE[:7]))


def test_a_secret_is_kept_for_its_owner_alone_and_found_again(tmp_path: Path) -> None:
    path = tmp_path / "site" / "noise.key"
    first = SecretNoise.kept_in(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert SecretNoise.kept_in(path) == first
    assert SecretNoise.kept_in(tmp_path / "other").secret != first.secret
    assert list(path.parent.iterdir()) == [path]
    assert first.secret.hex() not in repr(first)
    assert repr(first.secret) not in repr(first)


def test_a_secret_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FedmmError, match="at least 32 bytes"):
        SecretNoise(b"short")
    (tmp_path / "torn").write_bytes(b"x")
    with pytest.raises(FedmmError, match="holds 1 bytes, not a secret of 32; remove the file"):
        SecretNoise.kept_in(tmp_path / "torn")
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(FedmmError, match="the secret for noise cannot be kept in"):
        SecretNoise.kept_in(tmp_path / "file" / "key")
