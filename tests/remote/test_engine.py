"""An engine that asks its sites by packed messages: the bits of the reference, and an end where one cannot answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from problems import played, with_options
from ray_federation import Federation

from fedmm import ALGORITHMS, FedmmError, Terms
from fedmm.core.algorithm import Algorithm
from fedmm.core.mechanisms import GaussianUpdate
from fedmm.engines.in_process import InProcess, workers
from fedmm.engines.messages import NEVER
from fedmm.engines.server import Server
from fedmm.engines.worker import Kept
from fedmm.remote.durable_store import DurableMemory
from fedmm.remote.engine import AskingEngine
from fedmm.remote.packed import PROBLEM, Packed
from fedmm.remote.site import Site, answer_question

ROUNDS = 6
FEDMM = with_options(ALGORITHMS["fedmm"])


class Sites:
    """Sites in this process, with their states on disk; each message is handled by a site that was read from there."""

    def __init__(self, folder: Path, algorithm: Algorithm, terms: Terms, federation: Federation) -> None:
        self.problem = federation.problem()
        self.server = Server(self.problem, algorithm, ROUNDS, terms)
        self.folder = folder

    def site(self, name: str) -> Site:
        memory = DurableMemory(self.folder / name)
        if not memory.held:
            memory.remember(NEVER, Kept(self.server.first_own(), self.problem.statistics))
        return Site(workers(self.server)[name], memory, self.problem.statistics)

    def __call__(self, kind: str, questions: Mapping[str, Packed]) -> dict[str, Packed]:
        assert kind == "train"
        answers = {
            name: answer_question(self.site(name), self.problem.layout, each) for name, each in questions.items()
        }
        return dict(reversed(answers.items()))


def _engine(
    folder: Path, algorithm: Algorithm = FEDMM, terms: Terms | None = None, federation: Federation | None = None
) -> tuple[AskingEngine, Sites]:
    terms, federation = terms or Terms(), federation or Federation()
    sites = Sites(folder, algorithm, terms, federation)
    return AskingEngine(federation.problem(), algorithm, ROUNDS, sites, terms), sites


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize("terms", [Terms(), Terms(participation=0.5)], ids=["all", "half"])
def test_every_algorithm_has_the_same_bits_as_in_process(name: str, terms: Terms, tmp_path: Path) -> None:
    algorithm = with_options(ALGORITHMS[name])
    engine, sites = _engine(tmp_path, algorithm, terms)
    ours = list(played(engine, ROUNDS))
    reference = list(played(InProcess(Federation().problem(), algorithm, ROUNDS, terms), ROUNDS))
    for (state, record), (expected, expected_record) in zip(ours, reference, strict=True):
        assert (state.round, state.counted) == (expected.round, expected.counted)
        for part in ("server", "statistics"):
            left, right = getattr(state, part), getattr(expected, part)
            assert left.keys() == right.keys()
            assert all(torch.equal(left[key], right[key]) for key in left)
        assert record.dual_norm == pytest.approx(expected_record.dual_norm, rel=1e-6)
        same = {"seconds": 0.0, "dual_norm": 0.0}
        assert replace(record, **same) == replace(expected_record, **same)
    last = reference[-1][0]
    for client in Federation().names:
        if client in last.counted:
            kept = sites.site(client).memory.held[last.counted[client]].own
            assert all(torch.equal(kept[key], last.clients[client][key]) for key in kept)


def test_with_noise_the_norm_of_the_duals_is_that_of_what_the_server_has_summed_up(tmp_path: Path) -> None:
    noise = GaussianUpdate(norm_min=0.1, norm_max=0.1, noise_min=2.0, noise_max=2.0)
    federation = Federation(share_statistics=False)
    engine, sites = _engine(tmp_path, terms=Terms(transmission=noise), federation=federation)
    *_, (state, record) = played(engine, ROUNDS)
    held = [sites.site(name).memory.held[state.counted[name]] for name in federation.names]
    norms = torch.stack([each.own["dual"].norm() for each in held])
    assert float(norms.min()) > 0.0
    assert record.dual_norm == pytest.approx(float(norms.square().mean().sqrt()), rel=1e-5)
    assert not record.by_client


def test_a_round_that_is_repeated_counts_once(tmp_path: Path) -> None:
    engine, _ = _engine(tmp_path)
    state, _ = engine.run_round(engine.start())
    first, _ = engine.run_round(state)
    again, _ = engine.run_round(state)
    assert torch.equal(first.z, again.z)
    after, _ = engine.run_round(again)
    expected = list(played(InProcess(Federation().problem(), FEDMM, ROUNDS), 3))[-1][0]
    assert torch.equal(after.z, expected.z)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda answer: None, r"^the site 'client-1' did not answer in round 1; the run can be resumed$"),
        (lambda answer: Packed({}, {PROBLEM: "its disk is full"}, {}), r"^its disk is full$"),
        (lambda answer: Packed({}, {}, {}), r"'client-1' cannot be read: its answer does not say which client"),
        (
            lambda answer: answer._replace(about={**answer.about, "client": "client-0"}),
            r"^the site 'client-1' answers in the name of 'client-0'$",
        ),
        (
            lambda answer: answer._replace(arrays={"min.omega": answer.arrays["min.omega"]}),
            r"'client-1' cannot be read: its 'z' lacks part 'max.psi'$",
        ),
    ],
    ids=["silent", "refuses", "nothing", "forged", "cut"],
)
def test_a_site_that_cannot_answer_ends_the_run(change: object, sentence: str, tmp_path: Path) -> None:
    engine, sites = _engine(tmp_path)

    def ask(kind: str, questions: Mapping[str, Packed]) -> dict[str, Packed]:
        answers = sites(kind, questions)
        changed = change(answers.pop("client-1"))  # type: ignore[operator]
        return answers if changed is None else {**answers, "client-1": changed}

    failing = AskingEngine(Federation().problem(), FEDMM, ROUNDS, ask)
    with pytest.raises(FedmmError, match=sentence):
        failing.run_round(failing.start())
    engine.run_round(engine.start())  # and the others can be asked again


def test_a_site_that_lost_its_dual_does_not_begin_anew(tmp_path: Path) -> None:
    engine, sites = _engine(tmp_path)
    state, _ = engine.run_round(engine.start())
    sites.site("client-2").memory.forget(0)
    with pytest.raises(FedmmError, match="'client-2' has lost its state after earlier rounds; start the run again"):
        engine.run_round(state)
