"""What noise is worth, against the formula and the library's own accountants; and where it is reported."""

from __future__ import annotations

import builtins
import json
import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import dp_accounting
import numpy as np
import pytest
import torch
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import random_game

import fedmm
from fedmm import FedmmError, GaussianUpdate, Terms
from fedmm.config.schema import Experiment, experiment
from fedmm.config.sweep_grid import grid, groups
from fedmm.core.engine import RoundRecord
from fedmm.core.federation import taking_part
from fedmm.core.layout import Layout
from fedmm.core.problem import FederatedProblem
from fedmm.runs.build import DataCache, prepare
from fedmm.runs.run import run_experiment
from fedmm.training.history import History
from fedmm.training.privacy import EpsilonColumn, PrivacyAccount, privacy_account

DELTA = 1e-5
FOUR = ("a", "b", "c", "d")
MANY = tuple(f"{number:03d}" for number in range(100))


def account(noise: float = 2.0, clients: tuple[str, ...] = FOUR, share: float = 1.0, **options: Any) -> PrivacyAccount:
    return PrivacyAccount(GaussianUpdate(noise_min=noise, noise_max=noise, **options), clients, share)


def of_omega(one: PrivacyAccount) -> PrivacyAccount:
    """The account of a problem without psi."""
    return replace(one, groups=(True, False))


def delta_of(epsilon: float, multiplier: float) -> float:
    """Of the Gaussian mechanism (Balle and Wang 2018, theorem 8)."""

    def below(x: float) -> float:
        return 0.5 * math.erfc(-x / math.sqrt(2))

    half, shift = 1 / (2 * multiplier), epsilon * multiplier
    return below(half - shift) - math.exp(epsilon) * below(-half - shift)


# One client, hidden from the server -----------------------------------------------------------------------------------


@pytest.mark.parametrize("noise", [0.5, 1.0, 2.0, 7.0])
def test_one_round_is_the_gaussian_mechanism_with_half_the_noise(noise: float) -> None:
    # A replaced client moves a clipped part by up to twice the norm.
    assert delta_of(of_omega(account(noise)).spent([4]), noise / 2) == pytest.approx(DELTA, rel=1e-6)
    # Both groups together: two such noises, or one that is smaller by the root of 2.
    assert delta_of(account(noise).spent([4]), noise / 2 / math.sqrt(2)) == pytest.approx(DELTA, rel=1e-6)


def test_a_multiplier_of_one_has_the_epsilon_that_is_known_of_it() -> None:
    assert of_omega(account(2.0)).spent([4]) == pytest.approx(4.3772, abs=1e-4)


@pytest.mark.parametrize("rounds", [2, 10, 300])
def test_rounds_compose_as_one_of_smaller_noise_and_the_librarys_accountants_agree(rounds: int) -> None:
    spent = of_omega(account(20.0)).spent([4] * rounds)
    assert delta_of(spent, 10.0 / math.sqrt(rounds)) == pytest.approx(DELTA, rel=1e-6)
    event = dp_accounting.SelfComposedDpEvent(dp_accounting.GaussianDpEvent(10.0), rounds)
    assert PLDAccountant().compose(event).get_epsilon(DELTA) == pytest.approx(spent, rel=2e-3, abs=2e-3)
    assert RdpAccountant().compose(event).get_epsilon(DELTA) >= spent


def test_unlike_noises_on_omega_and_psi() -> None:
    spent = PrivacyAccount(GaussianUpdate(noise_min=3.0, noise_max=8.0), FOUR).spent([4] * 5)
    joint = 1 / math.sqrt((2 / 3) ** 2 + (2 / 8) ** 2)
    assert delta_of(spent, joint / math.sqrt(5)) == pytest.approx(DELTA, rel=1e-6)


def test_the_norms_do_not_matter_and_delta_does() -> None:
    assert account(norm_min=9.0, norm_max=0.1).spent([4]) == account().spent([4])
    assert account(delta=1e-7).spent([4]) > account().spent([4])


def test_a_client_that_is_asked_less_often_tells_less_and_the_one_asked_most_counts() -> None:
    rounds = 40
    times = {name: sum(name in taking_part(FOUR, 0.5, 0, t) for t in range(rounds)) for name in FOUR}
    assert len(set(times.values())) > 1
    assert account(share=0.5).spent([2] * rounds) == account().spent([4] * max(times.values()))
    # counted or not, what was sent was sent
    assert account(share=0.5).spent([0] * rounds) == account(share=0.5).spent([2] * rounds)


def test_nothing_is_spent_before_the_first_round() -> None:
    assert account().spent([]) == 0.0


# The sum, hidden from all but the server ------------------------------------------------------------------------------


def test_shared_noise_hides_the_sum_as_whole_noise_hides_one() -> None:
    assert account(trust="server").spent([4] * 7) == account().spent([4] * 7)


def test_a_secret_sample_tells_less_of_each() -> None:
    rounds = 50
    sampled = account(4.0, MANY, 0.1, trust="server")
    both = dp_accounting.ComposedDpEvent([dp_accounting.GaussianDpEvent(2.0)] * 2)

    def of_sample(others: int, sample: int) -> float:
        accountant = RdpAccountant(neighboring_relation=dp_accounting.NeighboringRelation.REPLACE_ONE)
        accountant.compose(dp_accounting.SampledWithoutReplacementDpEvent(others, sample, both), rounds)
        return accountant.get_epsilon(DELTA)

    # Another client knows whether it takes part itself: the sample is then 9 or 10 of the other 99.
    assert sampled.spent([10] * rounds) == pytest.approx(max(of_sample(99, 9), of_sample(99, 10)), rel=1e-9)
    known = account(4.0, MANY, 0.1).spent([10] * rounds)
    assert sampled.spent([10] * rounds) < known
    assert replace(sampled, secret_sample=False).spent([10] * rounds) == known


def test_a_large_sample_is_no_worse_than_one_that_everybody_knows() -> None:
    # The bound for secret samples is loose where most are in them.
    half, known = (account(3.0, FOUR, 0.5, trust=trust).spent([2] * 30) for trust in ("server", "nobody"))
    assert half <= known


def test_a_round_that_lost_updates_has_less_noise_in_its_sum() -> None:
    whole, short = (account(4.0, MANY, 0.1, trust="server").spent(each) for each in ([10] * 20, [10] * 19 + [4]))
    assert short > whole
    # 3 of 9 parts of the variance are left beside one's own
    alone = account(4.0 * math.sqrt(3 / 9), MANY, 0.1, trust="server").spent([10])
    assert account(4.0, MANY, 0.1, trust="server").spent([4]) == pytest.approx(alone, rel=1e-9)
    assert account(trust="server").spent([4, 1]) == math.inf  # its only client knows nothing but the others'
    assert account(trust="server").spent([4, 0]) <= account(trust="server").spent([4, 4])


# Any of them ----------------------------------------------------------------------------------------------------------

accounts = st.builds(
    account,
    noise=st.floats(0.5, 30),
    clients=st.sampled_from([FOUR, MANY]),
    share=st.sampled_from([1.0, 0.5]),
    trust=st.sampled_from(["nobody", "server"]),
)


@settings(max_examples=15)
@given(accounts, st.integers(1, 40))
def test_epsilon_only_ever_grows_with_rounds_and_shrinks_with_noise(one: PrivacyAccount, rounds: int) -> None:
    usual = [len(one.clients) if one.share == 1.0 else len(one.clients) // 2] * rounds
    now, then = one.spent(usual), one.spent([*usual, usual[0]])
    assert 0 < now <= then
    assert of_omega(one).spent(usual) < now
    louder = replace(one, noise=replace(one.noise, noise_min=2 * one.noise.noise_min))
    assert louder.spent(usual) < now


@pytest.mark.parametrize(("trust", "epsilon"), [("nobody", 0.5), ("nobody", 20.0), ("server", 3.0)])
def test_the_noise_for_an_epsilon_keeps_it_and_hardly_less_would(trust: str, epsilon: float) -> None:
    one = account(clients=MANY, share=0.1, trust=trust)
    noise = one.noise_for(epsilon, 60)

    def spent(times: float) -> float:
        other = replace(one, noise=replace(one.noise, noise_min=times * noise, noise_max=times * noise))
        return other.spent([10] * 60)

    assert spent(1.0) <= epsilon
    assert spent(0.998) > epsilon
    with pytest.raises(FedmmError, match="epsilon must be above 0"):
        one.noise_for(0.0, 60)


def test_without_noise_there_is_no_account_and_without_psi_none_of_psi() -> None:
    problem = random_game(0).problem()
    assert privacy_account(Terms(), problem) is None
    noisy = Terms(transmission=GaussianUpdate())
    column = EpsilonColumn(privacy_account(noisy, problem))
    column.begin(None, History())
    assert set(column.columns(RoundRecord(1, 0.0, 0.0, 0.0, 0, 0, 0.0, clients=3))) == {"epsilon"}
    bare = FederatedProblem(Layout({"omega": (3,)}, {}), problem.start[:3], problem.clients)
    assert privacy_account(noisy, bare).spent([3]) == of_omega(privacy_account(noisy, problem)).spent([3])


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def absent(name: str, *rest: Any) -> Any:
        if name.startswith("dp_accounting"):
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", absent)
    with pytest.raises(FedmmError, match=r"noise in updates needs dp-accounting: pip install 'fedmm\[privacy\]'"):
        account()


# In runs --------------------------------------------------------------------------------------------------------------

TABLES: dict[str, dict[str, Any]] = {
    "run": {"rounds": 6, "batch_size": 8, "probe_rows": 0, "checkpoint_every": 2, "participation": 0.5},
    "data": {"name": "moons", "rows": 60, "test_rows": 10},
    "partition": {"name": "source_target", "source_clients": 2, "target_clients": 2},
    "model": {"name": "mlp", "hidden": [6], "adversary_hidden": [5], "centre": "none"},
    "algorithm": {"name": "fedmm", "lr_min": 0.1, "lr_max": 0.1, "local_steps": 2},
    "transmission": {"name": "gaussian", "norm_min": 0.1, "norm_max": 0.1, "delta": 1e-6},
}


def given_(**changes: dict[str, Any]) -> Experiment:
    return experiment({section: {**TABLES[section], **changes.get(section, {})} for section in TABLES})


def rows_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]


STATELESS: dict[str, dict[str, Any]] = {"nobody": {}, "server": {"name": "fedavg_gda"}}


@pytest.mark.parametrize("trust", ["nobody", "server"])
def test_both_engines_report_epsilon_round_by_round_and_at_the_end(tmp_path: Path, trust: str) -> None:
    found = []
    for engine in ("in_process", "batched"):
        resolved = given_(run={"engine": engine}, algorithm=STATELESS[trust], transmission={"trust": trust})
        summary = run_experiment(resolved, tmp_path / engine, progress=False)
        rows = rows_of(tmp_path / engine)
        found.append([row["epsilon"] for row in rows])
        assert all(earlier <= later for earlier, later in zip(found[-1], found[-1][1:], strict=False))
        assert found[-1][0] < found[-1][-1]
        told = summary["privacy"]
        assert told["epsilon"] == rows[-1]["epsilon"]
        assert (told["delta"], told["trust"], told["neighbours"]) == (1e-6, trust, "one client replaced")
        assert not {"loss", "task_loss", "domain_loss"} & rows[-1].keys()
        names = tuple(prepare(resolved, DataCache()).account.clients)
        expected = PrivacyAccount(resolved.transmission, names, 0.5, 0).spent([2] * 6)
        assert rows[-1]["epsilon"] == pytest.approx(expected, rel=1e-12)
    assert found[0] == found[1]


@pytest.mark.parametrize("engine", ["in_process", "batched"])
def test_a_run_that_goes_on_has_spent_and_sent_what_a_whole_one_has(tmp_path: Path, engine: str) -> None:
    whole, resumed = tmp_path / "whole", tmp_path / "resumed"
    coded = given_(run={"uploads": "int8", "broadcasts": "fp16", "engine": engine, "participation": 0.75})
    run_experiment(coded, whole, progress=False)

    def kill(row: dict[str, Any]) -> None:
        if row["round"] == 5:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run_experiment(coded, resumed, progress=False, on_round=kill)
    run_experiment(coded, resumed, progress=False, resume=True)
    one, other = rows_of(whole), rows_of(resumed)
    assert len({row["bytes_down"] for row in one}) > 1
    for row in (*one, *other):
        del row["seconds"]
    assert one == other


def test_noise_and_codes_may_be_swept() -> None:
    sweep = {"run.uploads": ["exact", "int8"], "run.seed": [0, 1]}
    experiments = grid({**TABLES, "sweep": sweep})
    cache = DataCache()
    stacks = groups(experiments, [prepare(each, cache) for each in experiments])
    assert [len(stack.members) for stack in stacks] == [2, 2]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"run": {"probe_rows": 10}}, "probe_rows must be 0"),
        ({"model": {"centre": "train_mean"}}, "centre must be 'none' or 'image_mean'"),
        ({"run": {"participation": 0.25}, "transmission": {"trust": "server"}}, "at least two clients take part"),
        ({"transmission": {"trust": "server"}}, "those of fedmm keep 'dual', .* such as fedavg_gda"),
        ({"run": {"engine": "batched"}, "transmission": {"trust": "server"}}, "Use trust = 'nobody'"),
        ({"run": {"uploads": "int8"}, "transmission": {"trust": "server"}}, "uploads must be 'exact'"),
        ({"run": {"max_update_norm": 1.0}, "transmission": {"trust": "server"}}, "no update may be left out"),
    ],
)
def test_what_cannot_be_private_is_refused_before_anything_is_written(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(FedmmError, match=message):
        run_experiment(given_(**changes), tmp_path / "run", progress=False)
    assert not (tmp_path / "run").exists()


def test_rows_that_were_made_with_numbers_of_all_clients_are_refused(tmp_path: Path) -> None:
    # The means by which rows are standardised would travel without noise.
    x, y = np.random.default_rng(0).normal(size=(40, 3)), np.arange(40) % 2
    np.savez(tmp_path / "rows.npz", source_x=x, source_y=y, target_x=x)
    table = np.c_[x, y, np.arange(40) // 20]
    np.savetxt(tmp_path / "rows.csv", table, "%g", header="a,b,c,label,site", comments="", delimiter=",")
    arrays: dict[str, Any] = {"name": "arrays", "file": str(tmp_path / "rows.npz")}
    named = {"label": "label", "site": "site", "target_sites": ["1"]}
    for data in (arrays, {"name": "table", "file": str(tmp_path / "rows.csv"), **named}):
        with pytest.raises(FedmmError, match=f"'{data['name']}' uses means, deviations and words .* carry no noise"):
            prepare(experiment({**TABLES, "data": data}), DataCache())
    prepare(experiment({**TABLES, "data": {**arrays, "standardise": False}}), DataCache())


def test_a_guard_is_refused_where_it_would_look_at_single_updates() -> None:
    zero = torch.zeros(())
    with pytest.raises(FedmmError, match=r"guard.policy must be 'off' if clients share the noise"):
        fedmm.solve(
            [lambda x, y: x * x - y * y] * 2, (zero, zero), fedmm.FedAvgGDA(), 1,
            terms=Terms(transmission=GaussianUpdate(trust="server")), guard=fedmm.Guard("stop"),
        )  # fmt: skip
    tables = {**{s: dict(t) for s, t in TABLES.items()}, "guard": {"policy": "rollback"}}
    prepare(experiment(tables), DataCache())
    tables["transmission"]["trust"] = "server"
    with pytest.raises(FedmmError, match=r"guard.policy must be 'off' if clients share the noise"):
        prepare(experiment(tables), DataCache())


def test_without_noise_the_library_is_not_imported() -> None:
    code = (
        "import sys, torch, fedmm; zero = torch.zeros(());"
        "fedmm.solve([lambda x, y: x * x - y * y], (zero, zero), fedmm.FedMM(), 1);"
        "assert not any(name.startswith('dp_accounting') for name in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
