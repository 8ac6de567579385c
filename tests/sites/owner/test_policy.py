"""A server that wants more than a site's owner allows: what it asks for, and the sentence that it gets."""

from __future__ import annotations

import dataclasses
import json
import math
import typing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from deploy.asking import (
    SITE,
    changed,
    entries,
    introduction,
    questions,
    refusal,
    refused_at_once,
    replanned,
    site,
)
from deploy.test_serving import grid_of, log, served, small
from doc_tables import rows_below

from fedmm import FedmmError
from fedmm.config.schema import Experiment
from fedmm.core.imports import allow_import
from fedmm.core.mechanisms import SecretNoise, SeededNoise
from fedmm.core.options import TrainOptions
from fedmm.data import DATASETS, Arrays, ImageFolder, Table
from fedmm.deploy import server as serving
from fedmm.deploy.federation import _with_older
from fedmm.deploy.local import local_sites
from fedmm.deploy.server import serve
from fedmm.models import MODELS
from fedmm.remote.flower.engine import Patience
from fedmm.remote.packed import INTRODUCE, MEASURE, TRAIN, Packed
from fedmm.sites.config import PolicySection, read_site
from fedmm.sites.experiments import deployed_experiment, named_paths
from fedmm.sites.owner.policy import epsilon_of, policy_table, precision_of
from fedmm.sites.work import SiteWork

TOWER = "import torch\ndef tower(width=4.0, name=''):\n    return torch.nn.Flatten()\n"
NOISE: dict[str, Any] = {
    "transmission": {"name": "gaussian", "noise_min": 40.0, "noise_max": 40.0},
    "model": {"centre": "none"},
    "run": {"rounds": 1, "probe_rows": 0},
}


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "Patience", lambda seconds: Patience(seconds, retry_after=0.0, pause=0.0))


# Code -----------------------------------------------------------------------------------------------------------------


def named(backbone: str, **options: Any) -> Experiment:
    model = {"name": "backbone", "backbone": backbone, "options": options, "bottleneck": 4, "adversary_hidden": [4]}
    return deployed_experiment({**small().tables(), "model": model})


def test_a_command_in_the_place_of_a_network_is_not_run_when_the_site_introduces_itself(tmp_path: Path) -> None:
    ran = tmp_path / "it-ran"
    attack = named("os:system", command=f"touch {ran}")
    config = site(tmp_path, small())
    assert "backbone 'os:system' would import a module and run its code, which is not allowed" in (
        refused_at_once(config, attack)
    )
    for kind, question in questions(tmp_path / "honest", small(run={"rounds": 1})).items():
        assert "'os:system'" in refusal(config, kind, changed(question, **introduction(attack).about))
    assert not ran.exists()
    assert [entry["text"] for entry in entries(config, "experiment") if "os:system" in entry["text"]]


def test_no_list_but_the_sites_own_lets_an_experiment_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "owners_net.py").write_text(TOWER)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDMM_ALLOW_IMPORT", "")
    allow_import("owners_net")
    each = named("owners_net:tower")
    assert "policy.allow_imports" in refused_at_once(site(tmp_path, small()), each)
    monkeypatch.setenv("FEDMM_ALLOW_IMPORT", "")
    allowed = site(tmp_path, small(), allow_imports=["owners_net"])
    assert SiteWork(allowed)(INTRODUCE, introduction(each)).about["site"] == SITE
    assert "is defined in 'torch.nn.modules" not in refused_at_once(allowed, named("owners_net:torch"))
    assert "model.options.name may name a file" in refused_at_once(allowed, named("owners_net:tower", name="/etc/x"))
    assert SiteWork(allowed)(INTRODUCE, introduction(named("owners_net:tower", name="relu")))


# Files ----------------------------------------------------------------------------------------------------------------

PATHS = {
    ("mobilenet_v2", "weights"), ("backbone", "weights"),
}  # fmt: skip
NO_PATHS = {
    ("backbone", "backbone"),  # an import, or a name of a library's
    ("backbone", "options"),  # words, or judged as paths
    ("backbone", "frozen"),
    ("run", "label"), ("run", "device"), ("run", "ray_address"), ("run", "track"), ("run", "best_by"),
    ("run", "stop_by"), ("run", "preset"),  # a site reads the device alone
}  # fmt: skip


def texts(kind: type) -> set[str]:
    """The options that hold text."""
    hints = {option.name: str(typing.get_type_hints(kind)[option.name]) for option in dataclasses.fields(kind)}
    return {name for name, hint in hints.items() if "str" in hint and "Mapping[str, float]" not in hint}


def test_every_text_of_an_experiment_is_known_to_be_a_path_or_not() -> None:
    """A new option with text in it has to be thought about: does it reach a site's files?"""
    known = {**MODELS, "run": TrainOptions}
    assert {(name, text) for name, kind in known.items() for text in texts(kind)} == PATHS | NO_PATHS
    assert {(name, path) for name, kind in known.items() for path in getattr(kind, "paths", ())} == PATHS


@pytest.mark.parametrize("name", DATASETS)
def test_a_data_set_says_of_every_text_whether_it_is_a_path(name: str) -> None:
    paths, words = getattr(DATASETS[name], "paths", ()), getattr(DATASETS[name], "words", ())
    assert texts(DATASETS[name]) == {*paths, *words}
    assert not set(paths) & set(words)


def test_the_texts_of_a_users_own_data_that_name_files_are_these() -> None:
    assert ImageFolder.paths == ("source", "target", "target_test", "sites")
    assert Arrays.paths == ("file", "source", "target", "target_test")
    assert Table.paths == ("file", "files", "target_test")


@pytest.mark.parametrize("there", [True, False])
def test_a_server_cannot_probe_the_files_of_a_site(tmp_path: Path, there: bool) -> None:
    secret = tmp_path / "secret.safetensors"
    if there:
        secret.write_text("hidden")
    config, said = site(tmp_path, small()), []
    for model in ({"name": "mobilenet_v2"}, {"name": "backbone"}):
        tables = {**small().tables(), "model": {**model, "weights": str(secret)}}
        said.append(refused_at_once(config, deployed_experiment(tables)))
    for data in (
        {"name": "arrays", "file": str(secret)},
        {"name": "table", "files": {"east": str(secret)}, "label": "y", "target_sites": ["east"]},
        {"name": "image_folder", "sites": str(secret), "target_sites": ["east"]},
    ):
        said.append(refused_at_once(config, deployed_experiment({**small().tables(), "data": data})))
    assert {sentence.partition("refuses: ")[2] for sentence in said} == {
        f"{key} names a file or folder, and this site's policy.allow_paths does not list it"
        for key in ("model.weights", "data.file", "data.files.east", "data.sites")
    }
    allowed = site(tmp_path, small(), allow_paths=[str(secret)])
    assert "allow_paths" not in refused_at_once(allowed, deployed_experiment(tables))
    assert named_paths(deployed_experiment({**tables, "model": {"name": "mobilenet_v2", "weights": "imagenet"}})) == {}
    assert named_paths(deployed_experiment({**tables, "model": {"name": "backbone", "weights": "imagenet"}}))


# Single rows ----------------------------------------------------------------------------------------------------------


def test_one_row_a_batch_and_one_step_a_round_are_refused(tmp_path: Path) -> None:
    """What gave one patient's row exactly: batch_size = 1 with FedSGDA."""
    config = site(tmp_path, small())
    one_step = deployed_experiment({**small().tables(), "algorithm": {"name": "fedsgda"}})
    assert "as few as 1 local steps; its policy.min_local_steps is 2" in refused_at_once(config, one_step)
    for rows in (1, 7):
        few = small(run={"batch_size": rows})
        assert "fewer source rows than this site's policy.min_batch_size, 8" in refused_at_once(config, few)
    assert SiteWork(config)(INTRODUCE, introduction(small(run={"batch_size": 8})))
    mine = small(algorithm={"local_steps": {SITE: 1, "target-1": 9}})
    assert "min_local_steps is 2" in refused_at_once(config, mine)
    others = small(algorithm={"local_steps": {SITE: 2, "target-1": 1}})
    assert SiteWork(config)(INTRODUCE, introduction(others))


def test_steps_are_counted_as_the_site_takes_them_and_not_as_the_plan_lists_it(tmp_path: Path) -> None:
    each = small(run={"rounds": 1}, algorithm={"local_steps": [2, 1]})
    question = questions(tmp_path / "honest", each)[TRAIN]
    config = site(tmp_path, each)
    assert SiteWork(config)(TRAIN, question).arrays
    plan = json.loads(str(question.about["plan"]))
    swapped = json.dumps({**plan, "listed": list(reversed(plan["listed"]))})
    assert "as few as 1 local steps" in refusal(config, TRAIN, changed(question, plan=swapped))


def test_steps_that_forget_those_before_them_are_refused(tmp_path: Path) -> None:
    """With lr x penalty = 1 every step begins at the server's point again: the last batch alone would be sent."""
    each = small(run={"rounds": 1}, algorithm={"name": "fedprox_gda", "lr_min": 0.1, "penalty_min": 10.0})
    question = questions(tmp_path / "honest", each)[TRAIN]
    config = site(tmp_path, each)
    assert "the last local step alone would be sent" in refusal(config, TRAIN, question)


@pytest.mark.parametrize(
    ("method", "refused", "allowed"),
    [
        ("proximal_point", {"local_steps": 7, "inner_steps": 4}, {"local_steps": 8, "inner_steps": 4}),
        ("momentum_gda", {"local_steps": 20, "momentum": 0.0}, {"local_steps": 20, "momentum": 0.9}),
        ("fedsgda_m", {"local_steps": 5, "momentum": 0.9}, {"local_steps": 20, "momentum": 0.9}),
    ],
)
def test_steps_are_counted_as_they_are_mixed_in_what_is_sent(
    tmp_path: Path, method: str, refused: dict[str, Any], allowed: dict[str, Any]
) -> None:
    """One anchor tells the last field alone; a running mean of fields is nearly its last, or the first of a run."""
    config = site(tmp_path, small())

    def asked(options: dict[str, Any]) -> Experiment:
        return deployed_experiment({**small().tables(), "algorithm": {"name": method, **options}})

    assert "as few as 1 local steps" in refused_at_once(config, asked(refused))
    assert SiteWork(config)(INTRODUCE, introduction(asked(allowed)))


def test_a_batch_is_judged_by_each_domain_that_is_in_it(tmp_path: Path) -> None:
    each = small(partition={"name": "p_split", "p": 0.3}, run={"batch_size": 16})
    serve_nobody = grid_of(tmp_path, each)
    with pytest.raises(FedmmError, match=r"the site 'client-1' refuses: a batch would hold fewer \w+ rows than this"):
        serve(serve_nobody, served(tmp_path, each, enrol_seconds=0.2))


def own_rows(tmp_path: Path, count: int, **policy: Any) -> tuple[Any, Experiment]:
    """A site with so many labelled rows of its own."""
    np.savez(tmp_path / "rows.npz", source_x=np.zeros((count, 3), "float32"), source_y=np.arange(count) % 2)
    lines = "\n".join(f"{key} = {value}" for key, value in policy.items())
    (tmp_path / "a.toml").write_text(
        '[site]\nname = "a"\n[data]\nkind = "npz"\npath = "rows.npz"\ndomain = "source"\n'
        f'[superlink]\naddress = "127.0.0.1:1"\ninsecure = true\n[policy]\n{lines}\n'
    )
    data = {"name": "sites", "sites": ["a", "b"], "classes": ["no", "yes"], "shape": [3]}
    tables = {**small().tables(), "data": data, "model": {"name": "mlp", "hidden": [4], "centre": "train_mean"}}
    return read_site(tmp_path / "a.toml"), deployed_experiment(tables)


@pytest.mark.parametrize("count", [1, 19])
def test_nothing_of_a_few_rows_leaves(tmp_path: Path, count: int) -> None:
    config, each = own_rows(tmp_path, count)
    assert "holds fewer source rows than its policy.min_rows, 20" in refused_at_once(config, each)
    enough, each = own_rows(tmp_path, 20)
    assert SiteWork(enough)(INTRODUCE, introduction(each))


def test_a_count_of_few_rows_of_a_class_does_not_leave(tmp_path: Path) -> None:
    def asked(**objective: Any) -> Experiment:
        model = {"name": "mlp", "hidden": [4]}
        tables = {**each.tables(), "model": model, "objective": {"name": "auc", **objective}}
        return deployed_experiment(tables)

    config, each = own_rows(tmp_path, 30)  # 15 of each class
    assert "holds fewer rows of a class than its policy.min_rows, 20, and does not report" in refused_at_once(
        config, asked()
    )
    assert SiteWork(config)(INTRODUCE, introduction(asked(positive_share=0.5)))
    enough, each = own_rows(tmp_path, 40)
    told = SiteWork(enough)(INTRODUCE, introduction(asked()))
    assert json.loads(str(told.about["card"]))["class_counts"] == [20, 20]


def test_no_counts_leave_where_updates_carry_noise(tmp_path: Path) -> None:
    pytest.importorskip("dp_accounting", reason="noise in updates needs fedmm[privacy]")
    noisy = small(**NOISE)
    config = site(tmp_path, noisy)
    balanced = {"name": "source_only", "class_weights": "balanced"}
    counting = deployed_experiment({**noisy.tables(), "objective": balanced})
    assert "needs the clients' class counts, which carry no noise; if updates carry noise" in refused_at_once(
        config, counting
    )


# Often ----------------------------------------------------------------------------------------------------------------


def answered(work: SiteWork, kind: str, question: Packed) -> Packed | None:
    try:
        return work(kind, question)
    except FedmmError:
        return None


def test_two_thousand_sessions_of_a_round_do_not_average_the_noise_away(tmp_path: Path) -> None:
    pytest.importorskip("dp_accounting", reason="noise in updates needs fedmm[privacy]")
    each = small(**NOISE)
    question = questions(tmp_path / "honest", each)[TRAIN]
    config = site(tmp_path, each, max_epsilon=2.0)
    work, got = SiteWork(config), []
    for session in range(2000):
        answer = answered(work, TRAIN, changed(question, session=session, run=f"run-{session // 300}"))
        got += [answer] if answer else []
    assert len({answer.arrays["min.omega"].tobytes() for answer in got}) == len(got)
    precision = precision_of(each.terms, (True, True), 2)
    assert epsilon_of(len(got) * precision, 1e-5) <= 2.0 < epsilon_of((len(got) + 1) * precision, 1e-5)
    assert 10 < len(got) < 200
    with pytest.raises(FedmmError, match="the site would have spent epsilon"):
        SiteWork(config)(TRAIN, changed(question, session=-5))
    assert max(entry["times"] for entry in entries(config, "refusal")) == 1024  # counted, no longer one by one

    quieter = small(**{**NOISE, "transmission": {**NOISE["transmission"], "noise_max": 4000.0}})
    told = changed(question, **introduction(quieter, "another").about)
    with pytest.raises(FedmmError, match="would have spent epsilon"):  # omega's noise counts, whatever psi's is
        SiteWork(config)(TRAIN, told)


def test_without_noise_max_rounds_is_the_end_whatever_the_run_is_called(tmp_path: Path) -> None:
    each = small(run={"rounds": 1})
    question = questions(tmp_path / "honest", each)[TRAIN]
    config = site(tmp_path, each, max_rounds=5)
    for number in range(12):  # each by a process that knows the log alone, of another session or another run
        asked = changed(question, session=number) if number % 2 else changed(question, run=f"run-{number}")
        assert (answered(SiteWork(config), TRAIN, asked) is not None) == (number < 5)
    assert "has answered 5 rounds; its policy.max_rounds is 5" in refusal(config, TRAIN, changed(question, session=99))
    assert SiteWork(config)(INTRODUCE, introduction(each))


def test_a_question_that_is_put_again_is_answered_by_the_same_bits_and_is_no_other_round(tmp_path: Path) -> None:
    each = small(run={"rounds": 1})
    question = questions(tmp_path / "honest", each)[TRAIN]
    config = site(tmp_path, each, max_rounds=1, max_questions=4)
    first = SiteWork(config)(TRAIN, question)
    again = SiteWork(config)(TRAIN, question)
    assert all(np.array_equal(first.arrays[name], again.arrays[name]) for name in first.arrays)
    assert [entry["rounds"] for entry in entries(config, "answer")] == [1, 0]
    elsewhere = question._replace(arrays={name: array * 1.01 for name, array in question.arrays.items()})
    assert "max_rounds is 1" in refusal(config, TRAIN, elsewhere)
    for _ in range(2):
        SiteWork(config)(TRAIN, question)
    assert "has answered 4 questions; its policy.max_questions is 4" in refusal(config, TRAIN, question)
    assert "max_questions" in refusal(config, "describe", introduction(each))


def test_what_differs_from_the_answer_before_is_another_round(tmp_path: Path) -> None:
    """The site's rows changed, or another processor rounds otherwise: then the bits that leave are new ones."""
    each = small(run={"rounds": 1})
    question = questions(tmp_path / "honest", each)[TRAIN]
    config = site(tmp_path, each, max_rounds=1)
    SiteWork(config)(TRAIN, question)
    (rows,) = config.state.glob("rows/*/source_x.npy")
    np.save(rows, np.load(rows) * 0.5)
    assert "max_rounds is 1" in refusal(config, TRAIN, question)


def test_where_epsilon_is_bounded_nothing_leaves_without_noise(tmp_path: Path) -> None:
    pytest.importorskip("dp_accounting", reason="noise in updates needs fedmm[privacy]")
    plain, noisy = small(run={"rounds": 1}), small(**NOISE)
    config = site(tmp_path, plain, max_epsilon=100.0)
    assert "its epsilon would be infinite" in refused_at_once(config, plain)
    asked = questions(tmp_path / "honest", noisy)
    assert "its epsilon would be infinite" in refusal(config, MEASURE, asked[TRAIN])
    assert "its epsilon would be infinite" in refusal(config, "describe", introduction(noisy))
    assert SiteWork(config)(TRAIN, asked[TRAIN]).arrays
    means = deployed_experiment({**noisy.tables(), "model": {**noisy.tables()["model"], "centre": "train_mean"}})
    assert "centre must be 'none'" in refused_at_once(config, means)

    before = site(tmp_path / "second", plain)
    SiteWork(before)(TRAIN, questions(tmp_path / "plain", plain)[TRAIN])  # what left without noise stays left
    after = site(tmp_path / "second", plain, max_epsilon=100.0)
    assert "would have spent epsilon inf" in refusal(after, TRAIN, asked[TRAIN])


def test_epsilon_is_that_of_the_existing_account_and_a_site_trusts_no_server() -> None:
    pytest.importorskip("dp_accounting", reason="noise in updates needs fedmm[privacy]")
    from fedmm.training.privacy import PrivacyAccount

    terms = small(**NOISE).terms
    account = PrivacyAccount(terms.transmission, ("a", "b"))
    spent = epsilon_of(3 * precision_of(terms, (True, True), 2), 1e-5)
    assert spent == pytest.approx(account.spent([2, 2, 2]))
    shared = small(**{**NOISE, "transmission": {**NOISE["transmission"], "trust": "server"}}).terms
    assert precision_of(shared, (True, True), 11) == pytest.approx(10 * precision_of(terms, (True, True), 11))
    assert precision_of(terms, (True, False), 2) == pytest.approx(precision_of(terms, (True, True), 2) / 2)
    assert precision_of(small().terms, (True, True), 2) == math.inf
    assert epsilon_of(0.0, 1e-5) == 0.0


# Plans ----------------------------------------------------------------------------------------------------------------


def test_a_plan_changes_steps_as_the_guard_would_and_nothing_else(tmp_path: Path) -> None:
    guard = {"policy": "rollback", "calm": 0.7, "stiffen": 1.3, "most": 3}
    each = small(run={"rounds": 1}, guard=guard, algorithm={"local_steps": 2})
    question = questions(tmp_path / "honest", each)[TRAIN]
    config = site(tmp_path, each)
    plan = json.loads(str(question.about["plan"]))["algorithm"]

    def calmed(times: int) -> dict[str, float]:
        keys = {"lr_min": 0.7, "lr_max": 0.7, "penalty_min": 1.3, "penalty_max": 1.3}
        return {key: plan[key] * factor**times * (1 + 1e-15) for key, factor in keys.items()}

    for times in range(4):
        assert SiteWork(config)(TRAIN, changed(replanned(question, **calmed(times)), session=times)).arrays
    for other in (calmed(4), {"local_steps": 3}, {"name": "fedsgda"}, {"lr_min": 1e9}, {"dual_decay": 0.5}):
        said = refusal(config, TRAIN, replanned(question, **other))
        assert "neither the experiment's nor one that its guard allows" in said or "algorithm" in said
    for wrong in ("", "[]", "{", "[" * 100_000, json.dumps({"alpha": 1}), json.dumps({"alpha": math.nan})):
        assert "plan" in refusal(config, TRAIN, changed(question, plan=wrong))


def test_what_is_no_question_is_refused_in_a_sentence(tmp_path: Path) -> None:
    config, each = site(tmp_path, small()), small()
    for text in ("[run", "a = " + "[" * 50_000, "x" * 300_000, "[run]\nrounds = 'x'"):
        assert refusal(config, INTRODUCE, changed(introduction(each), experiment=text))
    for run in ("../up", ".hidden", "x" * 101, "a\nb", 7):
        said = refusal(config, INTRODUCE, changed(introduction(each), run=run))
        assert run == "../up" or "1 to 100 printable characters" in said


# Approval -------------------------------------------------------------------------------------------------------------


def test_a_site_that_refuses_is_named_and_ends_nobody_elses_run(tmp_path: Path) -> None:
    each = small(run={"rounds": 3})
    grid = grid_of(tmp_path, each)
    file = tmp_path / "sites" / f"{SITE}.toml"
    file.write_text(file.read_text() + "max_rounds = 1\n")
    serve(grid, served(tmp_path, each))
    assert f"round 2: {SITE} was not counted: this site has answered 1 rounds; its policy.max_rounds is 1" in (
        log(tmp_path)
    )
    assert "completed after round 3" in log(tmp_path)
    assert len(entries(read_site(tmp_path / "sites" / "target-1.toml"), "refusal")) == 0


def test_a_site_that_refuses_at_once_is_named_with_its_sentence(tmp_path: Path) -> None:
    each = small(run={"rounds": 1})
    with pytest.raises(
        FedmmError, match=rf"{SITE}.* did not come .*the site '{SITE}' refuses: the experiment \w+ waits"
    ):
        serve(grid_of(tmp_path, each, require_approval=True), served(tmp_path, each, enrol_seconds=0.2))
    assert f"is turned away: the site '{SITE}' refuses: the experiment" in log(tmp_path)


def test_a_federation_that_comes_up_again_keeps_what_was_written_into_its_policies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDMM_ALLOW_IMPORT", "mine.net")
    (one, _) = local_sites(small())
    assert one.policy == {"allow_imports": ["mine.net"], "allow_paths": []}
    file = tmp_path / "a.toml"
    assert _with_older(one.policy, file) == one.policy
    file.write_text('[policy]\nallow_imports = ["theirs"]\nmax_rounds = 3\nmax_epsilon = inf\n')
    assert _with_older(one.policy, file) == {
        "allow_imports": ["theirs", "mine.net"],
        "allow_paths": [],
        "max_rounds": 3,
    }


# The page -------------------------------------------------------------------------------------------------------------


def test_the_page_lists_the_keys_and_their_defaults() -> None:
    rows = rows_below("| key | default | what it allows |", Path(__file__).parents[3] / "docs" / "deploy.md")
    table = policy_table(PolicySection())
    shown = {key: "inf" if value is None else json.dumps(value) for key, value in table.items()}
    assert {key: default for key, default, _ in rows} == shown | {"delta": "1e-5"}


def test_noise_is_another_where_another_point_came() -> None:
    update, secret = torch.zeros(50), SecretNoise(bytes(32))
    points = [None, {"z": torch.zeros(3)}, {"z": torch.ones(3)}, {"y": torch.ones(3)}, {"z": torch.ones(1, 3)}]
    drawn = [secret.normal("a", 0, 0, update, point) for point in points]
    assert len({tuple(numbers.tolist()) for numbers in drawn}) == len(points)
    seeded = [SeededNoise(1).normal("a", 0, 0, update, point) for point in points]
    assert all(torch.equal(seeded[0], numbers) for numbers in seeded)
