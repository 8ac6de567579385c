"""What a site computes: it introduces itself, trains in rounds, and evaluates models, all on its own rows."""

from __future__ import annotations

import json
import math
import time
import traceback
from dataclasses import dataclass, replace
from typing import Any

import torch

from fedmm.config.schema import Experiment
from fedmm.core.errors import FedmmError, Say, require
from fedmm.core.federation import Terms
from fedmm.core.imports import only_allowed
from fedmm.core.mechanisms import SecretNoise
from fedmm.core.problem import FederatedProblem, LocalRound, Statistics
from fedmm.engines.in_process import workers
from fedmm.engines.mask_ledger import MaskLedger
from fedmm.engines.masking import MaskKey, Masks
from fedmm.engines.messages import NEVER
from fedmm.engines.server import Server
from fedmm.engines.worker import Kept
from fedmm.models.devices import precision
from fedmm.remote.durable_store import DurableMemory, state_folder
from fedmm.remote.evaluation import measure_at_site
from fedmm.remote.packed import CONFIRM, DESCRIBE, INTRODUCE, MEASURE, OPEN, TRAIN, Malformed, Packed, one_line
from fedmm.remote.packing import answer_sum_question, pack_key, read_offer
from fedmm.remote.site import Mask, Site, answer_question
from fedmm.sites.compatibility import difference, versions
from fedmm.sites.config import SiteConfig
from fedmm.sites.credentials.keys import signer, verifier
from fedmm.sites.owner.gate import Admitted, Gate
from fedmm.sites.owner.ledger import NotAllowed
from fedmm.sites.owner.policy import RunPlan, precision_of, require_counts, require_rows, require_steps_kept
from fedmm.sites.rows import SiteRows, site_rows
from fedmm.sites.site_info import SiteInfo
from fedmm.sites.tables import ENCODING, describe_table, require_tables
from fedmm.training.clients import ClientData, batch_split, class_counts, input_sum
from fedmm.training.evaluators import Evaluator, OwnSums
from fedmm.training.measured_rows import held_back_evaluator, source_evaluator, target_evaluator
from fedmm.training.predictor import RowsShown
from fedmm.training.problem import adaptation_problem

_REMEDY = "the site's owner can list it in policy.allow_imports"


@dataclass(frozen=True)
class Elsewhere:
    """Another client of the federation, of which only the name is known here."""

    name: str

    def open_round(self, t: int, rounds: int, steps: int, statistics: Statistics) -> LocalRound:
        raise FedmmError(f"the rows of {self.name!r} are elsewhere")


@dataclass(frozen=True)
class _Built:
    site: Site
    first: Kept
    problem: FederatedProblem
    experiment: Experiment
    sums: OwnSums
    precision: float
    masks: Masks | None


class SiteWork:
    """Answers all kinds of questions, as far as the site's policy allows.

    What is built for a run is kept until another run is asked for.
    """

    def __init__(self, config: SiteConfig, say: Say = lambda line: None) -> None:
        self._config = config
        self._say = say
        self._gate = Gate(config)
        self._built: tuple[tuple[object, ...], _Built] | None = None

    def __call__(self, kind: str, question: Packed) -> Packed:
        try:
            admitted = self._gate.admit(kind, question)
            with only_allowed(self._config.policy.allow_imports, _REMEDY):
                answer, precision = self._answer(admitted, question)
            self._gate.release(admitted, answer, precision)
        except Exception as problem:
            raise self._describe_refusal(kind, question, problem) from problem
        return answer

    def _describe_refusal(self, kind: str, question: Packed, problem: Exception) -> FedmmError:
        """Log a refusal and return the error for the server, which learns of an unexpected one only its type."""
        sentence = str(problem)
        if not isinstance(problem, FedmmError | Malformed):
            self._say("".join(traceback.format_exception(problem)))
            sentence = f"the site cannot answer, for a reason that is in its log ({type(problem).__name__})"
        if kind == INTRODUCE:
            sentence = f"the site {self._config.site.name!r} refuses: {sentence}"
        self._say(f"{one_line(kind, 40)}: refused: {one_line(sentence, 1000)}")
        self._gate.refuse(kind, question, sentence)
        return (NotAllowed if isinstance(problem, NotAllowed) else FedmmError)(sentence)

    def note_refusal(self, kind: str, sentence: str) -> None:
        """Log a message that was refused before it came here, since it is not the coordinator's."""
        self._gate.refuse(kind, None, sentence)

    def _answer(self, admitted: Admitted, question: Packed) -> tuple[Packed, float]:
        """Return the answer and the precision of its noise: infinite if it depends on rows and has no noise."""
        began = time.perf_counter()
        experiment, kind = admitted.asked.experiment, admitted.kind
        if kind == INTRODUCE:
            return self._introduce(experiment, admitted.run, question)
        if kind == DESCRIBE:
            return describe_table(self._config, experiment, self._say), math.inf
        require(kind in (TRAIN, MEASURE, CONFIRM, OPEN), f"this site does not know questions of the kind {kind!r:.40}")
        built = self._build_once(admitted)
        if kind == MEASURE:
            return self._measure(built, question), math.inf
        if kind in (CONFIRM, OPEN):
            require(built.masks is not None, "there is no sum to open: the experiment has no secure_sum = true")
            assert built.masks is not None
            return answer_sum_question(built.masks, kind, question), 0.0
        t = question.about.get("round")
        if not isinstance(t, int) or t < 0:
            raise FedmmError("the server did not say which round this is")
        require_steps_kept(self._config.policy, built.site.worker.coefficients(t))
        self._gate.require_epsilon(admitted, built.precision)
        if question.about.get("counted") == NEVER:
            _begin(built)
        prepared = time.perf_counter() - began
        with precision(experiment.run.precision, built.problem.layout.device):
            answer = answer_question(built.site, built.problem.layout, question, _mask(built, question))
        answer.about["prepared"] = round(prepared, 3)
        return answer, built.precision if answer.arrays else 0.0

    def _introduce(self, experiment: Experiment, run: str, question: Packed) -> tuple[Packed, float]:
        other = difference(question.about["versions"], "the server") if "versions" in question.about else ""
        if other:
            self._say(other)
        masks = site_masks(self._config, experiment.terms, run)
        info = self._site_info(experiment, str(question.about.get(ENCODING, "")))
        answer = info.packed(self._config.site.name)
        if masks is not None:
            answer.about.update(pack_key(masks.signed()))
        answer.about["versions"] = json.dumps(versions())
        return answer, math.inf if info.input_count or info.class_counts else 0.0

    def _measure(self, built: _Built, question: Packed) -> Packed:
        """Return sums over the site's own rows; refuse if its updates carry noise, which the sums would bypass."""
        problem, run = built.problem, built.experiment.run
        require(
            not built.experiment.terms.transmission.private and run.probe_rows > 0,
            "nothing is measured at this site: the experiment has noise in the updates, or probe_rows = 0",
        )
        with precision(run.precision, problem.layout.device):
            return measure_at_site(
                self._config.site.name, problem.layout, problem.statistics, question, built.sums, self._say
            )

    def _site_info(self, experiment: Experiment, encoding: str) -> SiteInfo:
        data = self._config.data
        if data.kind == "table" and not encoding:  # a row's shape is known only after all sites have described theirs
            require_tables(experiment)
            domains = (data.domain in ("source", "both"), data.domain in ("target", "both"))
            return SiteInfo(*domains, (), False, validation=bool(data.validation_rows))
        rows, client_data = self._rows(experiment, encoding)
        held = rows.source if rows.source is not None else rows.target
        assert held is not None
        total, count = 0.0, 0
        if _network(experiment, rows).centre == "train_mean":
            total, count = input_sum(client_data if experiment.objective.adapts else replace(client_data, target=None))
        return SiteInfo(
            rows.source is not None,
            rows.target is not None,
            tuple(held.x.shape[1:]),
            held.x.dtype == torch.uint8,
            total,
            count,
            rows.validation is not None,
            _batch(experiment, rows),
            self._class_counts(experiment, rows),
        )

    def _class_counts(self, experiment: Experiment, rows: SiteRows) -> tuple[int, ...]:
        if rows.source is None or not experiment.objective.needs_class_shares:
            return ()
        counts = class_counts(rows.source, rows.classes, self._config.site.name)
        require_counts(self._config.policy, counts)
        return counts

    def _build_once(self, admitted: Admitted) -> _Built:
        assert admitted.plan is not None
        key = (admitted.asked.digest, admitted.run, admitted.plan)
        if self._built is None or self._built[0] != key:
            self._built = None
            self._built = (key, self._build(admitted.asked.experiment, admitted.run, admitted.plan))
        return self._built[1]

    def _rows(self, experiment: Experiment, encoding: str) -> tuple[SiteRows, ClientData]:
        """Return the site's rows, and those that are trained on: enough of each domain, and in every batch."""
        rows = site_rows(self._config, experiment, encoding, self._say)
        target = rows.target if experiment.objective.adapts or rows.source is None else None
        counts = [0 if part is None else len(part) for part in (rows.source, target)]
        require_rows(self._config.policy, experiment.run.batch_size, *counts)
        return rows, ClientData(self._config.site.name, rows.source, target, 1.0)

    def _build(self, experiment: Experiment, run: str, plan: RunPlan) -> _Built:
        config, name = self._config, self._config.site.name
        threads = config.site.threads or experiment.run.threads
        if threads:
            torch.set_num_threads(threads)
        rows, client_data = self._rows(experiment, plan.encoding)
        client_data = replace(client_data, alpha=plan.alpha)
        problem, function = adaptation_problem(
            [client_data],
            _network(experiment, rows),
            experiment.objective.restrain() if plan.algorithm.restrains else experiment.objective,
            seed=experiment.run.seed,
            batch_size=experiment.run.batch_size,
            dtype=experiment.run.torch_dtype,
            device=experiment.run.torch_device,
            view=rows.view,
            mean=plan.input_mean,
            shares=plan.class_shares,
            odds=plan.odds,
        )
        others = [Elsewhere(other) for other in plan.clients if other != name]
        problem = replace(problem, clients=[*problem.clients, *others], listed=plan.listed)
        terms = experiment.guard.terms(experiment.terms)
        server = Server(problem, plan.algorithm, experiment.run.rounds, terms)
        worker = workers(server)[name]
        if terms.transmission.private:
            worker = replace(worker, noise=SecretNoise.kept_in(config.state / "noise.secret", run))
        folder = state_folder(config.state / "runs", run, name)
        memory = DurableMemory(folder, depth=config.site.depth, device=problem.layout.device, say=self._say)
        self._say(f"run {run}: {worker.algorithm.name}, states of rounds {sorted(memory.held)} in {folder}")
        first = Kept(server.first_own(), problem.statistics)
        sums = OwnSums(function, _probes(name, rows, experiment, plan.odds), config.policy.min_rows)
        groups = (problem.layout.min_size > 0, problem.layout.size > problem.layout.min_size)
        told, masks = precision_of(worker.terms, groups, worker.clients), site_masks(config, terms, run)
        return _Built(Site(worker, memory, problem.statistics), first, problem, experiment, sums, told, masks)


def _probes(name: str, rows: SiteRows, experiment: Experiment, odds: float | None) -> list[Evaluator]:
    """Return the evaluators on the site's own rows, with at most ``probe_rows`` of each kind."""
    held = rows.source if rows.source is not None else rows.target
    assert held is not None
    most, seed, device = experiment.run.probe_rows, experiment.run.seed, experiment.run.torch_device
    show = RowsShown(rows.view, tuple(held.x.shape[1:]))
    found: list[Evaluator | None] = []
    if rows.target is not None:
        found.append(target_evaluator({name: rows.target}, most, seed, show, device, rows.classes, odds))
    if rows.validation is not None:
        kept = {name: rows.validation}
        found.append(held_back_evaluator(kept, most, seed, show, device, rows.classes, odds, accuracy=True))
    elif rows.source is not None and odds is not None:
        found.append(source_evaluator({name: rows.source}, most, seed, show, device, odds))
    return [evaluator for evaluator in found if evaluator is not None]


def _mask(built: _Built, question: Packed) -> Mask | None:
    """Return what hides the site's update among those of its round, if the experiment asks for it."""
    masks = built.masks
    if masks is None:
        return None
    offer = read_offer(question.about)
    return lambda invitation, update: masks.masked(invitation, update, offer)


def _begin(built: _Built) -> None:
    """Store the first state, for a server that has not counted this site yet; drop an older run's states."""
    memory = built.site.memory
    if memory.state_for(NEVER) is None:
        memory.remember(NEVER, built.first)


def _batch(experiment: Experiment, rows: SiteRows) -> tuple[int, int]:
    """Return how a batch is split if both domains are here and their shares matter to evaluation or restraint."""
    restrains = experiment.objective.restrained or experiment.algorithm.restrains
    matters = (
        experiment.objective.tells_domains
        and (experiment.run.probe_rows > 0 or restrains)
        and not experiment.terms.transmission.private
    )
    if not matters or rows.source is None or rows.target is None:
        return 0, 0
    return batch_split(experiment.run.batch_size, len(rows.source), len(rows.target))


def _network(experiment: Experiment, rows: SiteRows) -> Any:
    held = rows.source if rows.source is not None else rows.target
    assert held is not None
    return experiment.model.build(rows.view.shape(tuple(held.x.shape[1:])), rows.classes, experiment.run.seed)


_SECRET, _LEDGER = "masks.secret", "masks.jsonl"


def site_masks(config: SiteConfig, terms: Terms, run: str) -> Masks | None:
    """Return the site's masks in a run; None if it has none. A site with others' keys joins masked runs only."""
    section, link = config.masks, config.superlink
    if not terms.secure_sum:
        require(
            not section.peers,
            "this site sends updates only for masked sums (masks.peers), but the experiment has no secure_sum = true",
        )
        return None
    require(
        bool(section.peers and link.key),
        "secure_sum = true needs superlink.key and masks.peers in this site's file: a folder with the public key "
        "NAME.pub of every other site, from the sites themselves and not from the coordinator",
    )
    folder = config.path(section.peers)
    require(folder.is_dir(), f"masks.peers is not a folder: {folder}")
    verifiers = {path.stem: verifier(path, "a key in masks.peers") for path in sorted(folder.glob("*.pub"))}

    def verify(name: str, signature: bytes, text: bytes) -> bool:
        return name in verifiers and verifiers[name](signature, text)

    return Masks(
        config.site.name,
        run,
        MaskKey(SecretNoise.kept_in(config.state / _SECRET).secret, run),
        signer(config.path(link.key), "superlink.key"),
        verify,
        MaskLedger(config.state / _LEDGER),
        section.least,
    )
