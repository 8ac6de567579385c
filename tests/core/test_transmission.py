"""What happens to an update on its way counts on both sides."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from problems import FLOAT64, Game, games, generator, played, random_game
from torch import Tensor

from fedmm import ClippedUpdate, FedMM, FedmmError, ScaffoldGDA, Terms
from fedmm.core.algorithm import Algorithm, Coefficients, State
from fedmm.core.engine import FederatedState
from fedmm.core.transmission import TRANSMISSIONS, ExactUpdate, Transmission, arrived
from fedmm.engines.in_process import InProcess

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
    assert arrived(ExactUpdate(), z, z_0) is z
    assert torch.equal(arrived(ClippedUpdate(0.5), z, z_0), z_0 + ClippedUpdate(0.5).transmitted(z - z_0))


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
        return {"z": arrived(ClippedUpdate(0.05), upload["z"], sent["z"])}, own


def test_clipping_the_upload_alone_leads_elsewhere() -> None:
    game = random_game(0, clients=4)
    assert game.error(play(game, ClipsTheUploadAlone(), Terms(), 600)[-1][0]) > 0.1
    whole = replace(ClipsTheUploadAlone(), local_steps=1, lr_min=1e-3, lr_max=1e-3)  # too short to be clipped
    torch.testing.assert_close(
        play(game, whole, Terms(), 3)[-1][0].z, play(game, FedMM(1e-3, 1e-3, local_steps=1), Terms(), 3)[-1][0].z
    )
