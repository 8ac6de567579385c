"""Two hostile clients of ten, one of each kind: what each defence keeps out, and what it lets through.

Errors are those of ``hostile.error``: relative distances from the saddle of the honest clients.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

import pytest
import torch
from faults import hostile
from faults.exchanges import Hostile
from faults.hostile import ATTACKS, DEFENCES, METHODS, error, two_kinds
from problems import FLOAT64, FieldClient, Game, generator, played, random_game, with_options
from torch import Tensor

from fedmm import ALGORITHMS, CoordinateMedian, FedMM, Terms
from fedmm.core.aggregation import AGGREGATIONS, Aggregation, group_centre, groups_of
from fedmm.core.algorithm import Algorithm
from fedmm.core.problem import FederatedProblem, Statistics
from fedmm.core.seeding import key
from fedmm.engines.in_process import InProcess
from fedmm.engines.messages import Update
from fedmm.remote.messaging import Exchange, Messaging

FEDMM = METHODS[0]
ROBUST = ("median", "trimmed mean", "geometric median")
each_robust = pytest.mark.parametrize("kind", [k for k in AGGREGATIONS.values() if k.robust], ids=lambda k: k.name)


@cache
def exact(defence: str, attack: str, algorithm: Algorithm = FEDMM, *, grouped: bool = True) -> float:
    return error(0, algorithm, DEFENCES[defence], attack, noisy=False, grouped=grouped)


# What each defence does -----------------------------------------------------------------------------------------------


def test_the_mean_goes_wherever_a_hostile_client_takes_it() -> None:
    assert exact("mean", "nobody") < 1e-12
    for attack in ("garbage", "flipped x 10", "scaled x 100"):
        assert exact("mean", attack) > 10
    assert 0.03 < exact("mean", "flipped") < 0.2  # as long as an honest update, so that it does little


@pytest.mark.parametrize("attack", ["garbage", "flipped x 10", "scaled x 100"])
def test_a_bound_on_unusual_norms_keeps_out_what_is_long_and_the_saddle_is_exact(attack: str) -> None:
    # Who is refused counts for nothing: its dual stays 0 on both sides.
    assert exact("mean, `max_update_ratio` 3", attack) < 1e-12


def test_a_fixed_bound_keeps_out_what_is_always_long_but_not_what_is_long_at_first() -> None:
    assert exact("mean, `max_update_norm` 5", "garbage") < 1e-12
    assert exact("mean, `max_update_norm` 5", "flipped x 10") > 0.05


@pytest.mark.parametrize("defence", ["mean, `max_update_norm` 5", "mean, `max_update_ratio` 3"])
def test_no_bound_on_norms_sees_a_flipped_sign(defence: str) -> None:
    assert exact(defence, "flipped") == pytest.approx(exact("mean", "flipped"), rel=1e-3)


@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize("defence", ROBUST)
def test_robust_centres_within_groups_withstand_every_attack_at_the_price_of_a_bias(defence: str, attack: str) -> None:
    # Not even without hostile clients is it the saddle: the centre of unlike clients is not their mean.
    assert 1e-4 < exact(defence, attack) < 0.12


@pytest.mark.parametrize("attack", ["garbage", "flipped"])
@pytest.mark.parametrize("defence", ["median", "geometric median"])
def test_across_groups_the_honest_are_each_others_outliers(defence: str, attack: str) -> None:
    assert exact(defence, attack, grouped=False) > 2 * exact(defence, attack)
    assert exact(defence, attack, grouped=False) > 0.1


@pytest.mark.parametrize("algorithm", METHODS[1:], ids=lambda a: a.name)
@pytest.mark.parametrize("defence", ROBUST)
def test_other_methods_are_defended_as_well(algorithm: Algorithm, defence: str) -> None:
    assert exact("mean", "garbage", algorithm) > 10
    assert exact(defence, "garbage", algorithm) < 0.15


# Broken clients -------------------------------------------------------------------------------------------------------


@dataclass
class Broken(Exchange):
    """A client sends something that is no update at all, another one each round."""

    client: str
    sent: int = 0

    def arriving(self, t: int, answers: Sequence[Update]) -> Sequence[Update]:
        return [self._spoilt(update) if update.client == self.client else update for update in answers]

    def _spoilt(self, update: Update) -> Update:
        z = update.vectors.get("z", torch.ones(5, dtype=FLOAT64))  # nothing is to be sent, where clients only report
        ways: list[dict[str, Tensor]] = [
            {"w": z},
            {"z": z[:-1]},
            {"z": z.float()},
            {"z": z * math.nan},
            {"z": z + 1e9},
            {"z": z + 1e300},
        ]
        way = self.sent % (1 + len(ways))
        self.sent += 1
        if way == len(ways):
            return replace(update, vectors={}, scalars={})
        return replace(update, vectors={**update.vectors, **ways[way]})


@pytest.mark.parametrize("kind", ALGORITHMS.values(), ids=ALGORITHMS)
def test_a_broken_client_is_refused_in_every_round_and_the_others_go_on_without_it(kind: type[Algorithm]) -> None:
    game = random_game(0, clients=4)
    terms = Terms(on_bad_update="skip", max_update_norm=1e6)
    rounds = 32 if kind.in_pairs else 16
    engine = Messaging(game.problem(), with_options(kind), rounds, terms, Broken("client-2"))
    reasons = set()
    for state, record in played(engine, rounds):
        assert record.clients == 3
        if not kind.in_pairs or state.round % 2 == 1:  # it is not asked in the second round of a pair
            ((client, reason),) = record.refused
            assert client == "client-2"
            reasons.add(reason)
        assert bool(state.z.isfinite().all())
    # Where every other round is one of reports alone, there are two more: a vector too many, and a number too few.
    assert len(reasons) == (9 if with_options(kind).reports_only(1) else 7)
    for name, vector in state.clients["client-2"].items():
        assert torch.equal(vector, engine.start().clients["client-2"][name])


# Sums over rounds -----------------------------------------------------------------------------------------------------


@each_robust
def test_the_servers_sum_is_the_centre_of_the_clients_sums(kind: type[Aggregation]) -> None:
    game = two_kinds(1)
    groups = {name: str(place < 5) for place, name in enumerate(game.names)}
    problem = replace(game.problem(), groups=groups)
    engine = InProcess(problem, FEDMM, 30, Terms(participation=0.6, aggregation=kind()))
    for state, _ in played(engine, 30):
        duals = torch.stack([state.clients[name]["dual"] for name in game.names])
        centre = group_centre(kind(), duals, groups_of(game.names, groups, duals.device))
        torch.testing.assert_close(state.server["mean_dual"], centre, rtol=0, atol=1e-9)
        for name in game.names:
            torch.testing.assert_close(state.totals[name]["z"], state.clients[name]["dual"], rtol=1e-9, atol=1e-12)


@dataclass(frozen=True)
class SkewedClient(hostile.NoisyClient):
    """Noise of mean 0 whose median is not 0, as that of gradients on small batches."""

    def open_round(self, t: int, rounds: int, steps: int, statistics: Statistics) -> FieldClient:
        return replace(self, t=t)

    def field(self, z: Tensor, step: int) -> Tensor:
        noise = torch.rand(len(z), dtype=FLOAT64, generator=generator(key(self.name, self.t, step) % 2**31))
        return self.signed_field(z) + hostile.NOISE * (-noise.log() - 1.0)


class RoundByRound(Terms):
    """The server adds up the centres of single rounds instead."""

    def keeps_totals(self, algorithm: Algorithm) -> bool:
        return False


def test_adding_up_the_centres_of_single_rounds_would_drift_away() -> None:
    game = two_kinds(0)
    names = [f"{number}" for number in range(10)]
    ended = []
    for terms in (Terms, RoundByRound):
        clients = [SkewedClient(name, client.field) for name, client in zip(names, game.clients, strict=True)]
        groups = {name: str(place < 5) for place, name in enumerate(names)}
        problem = FederatedProblem(game.layout, torch.cat(game.start), clients, groups=groups)
        engine = InProcess(problem, FEDMM, 300, terms(aggregation=CoordinateMedian()))
        errors = [game.error(state) for state, _ in played(engine, 300)]
        ended.append(sum(errors[-50:]) / 50)
    assert ended[0] < 0.15
    assert ended[1] > 0.5


def test_without_a_defence_the_sums_are_not_kept() -> None:
    game = two_kinds(0)
    assert not game.play(FedMM(), 1).totals
    state = InProcess(game.problem(), FEDMM, 1, Terms(aggregation=CoordinateMedian())).start()
    assert set(state.totals) == set(game.names)


def test_a_hostile_client_that_is_left_out_does_not_move_the_honest_ones() -> None:
    # The honest saddle is that of the federation without the hostile clients, to the last digits.
    game = two_kinds(2)
    bad = [game.names[place] for place in hostile.HOSTILE]
    exchange = Hostile(bad, lambda update, t, client: 1e3 * torch.ones_like(update))
    *_, (state, record) = played(Messaging(game.problem(), FEDMM, 200, Terms(max_update_norm=50.0), exchange), 200)
    honest = Game([client for name, client in zip(game.names, game.clients, strict=True) if name not in bad])
    assert honest.error(state) < 1e-12
    assert sorted(each.client for each in record.refused) == bad
