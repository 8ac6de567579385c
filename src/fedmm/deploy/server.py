"""The server's side of a deployed run: sites introduce themselves, rounds run, and every round is saved."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from fedmm.config.dataclass_io import as_table
from fedmm.config.schema import Experiment
from fedmm.config.sites import RowsElsewhere
from fedmm.core.algorithm import Algorithm
from fedmm.core.errors import Diverged, Say, require, unknown
from fedmm.core.files import parse_toml
from fedmm.core.mechanisms import GaussianUpdate
from fedmm.core.signals.ranking import Ranking
from fedmm.core.signals.validators import VALIDATORS
from fedmm.data.inputs import TableInput
from fedmm.deploy.agree_tables import (
    agree_on_encoding,
    describe_columns,
    has_tables,
    read_encoding,
    with_encoding,
)
from fedmm.deploy.enrolment import (
    SITES,
    Enrolment,
    build_network,
    expect_sites,
    mean_input,
    shares_of_classes,
    stand_in_client,
    stand_in_row,
)
from fedmm.deploy.layout import Federation, RunRequest
from fedmm.deploy.run_state import StatusFile, run_lock, server_log
from fedmm.engines.inbox import TIMES
from fedmm.engines.server import Server
from fedmm.remote.evaluation import MetricRequest, SiteMetrics
from fedmm.remote.flower.apps import Grid, run_number
from fedmm.remote.flower.engine import FlowerEngine, Patience
from fedmm.remote.flower.envelope import Sealer
from fedmm.remote.flower.roster import Roster
from fedmm.remote.flower.strategy import MinimaxStrategy
from fedmm.remote.packed import About, Packed
from fedmm.runs.build import DataCache, rows_held_at, select_test_rows
from fedmm.runs.resume import read_completed, require_same_run
from fedmm.runs.run_folder import EXPERIMENT, RunFolder
from fedmm.runs.summary import Summary, finish_run, no_best_model
from fedmm.runs.tracking import Tracks
from fedmm.sites.compatibility import versions
from fedmm.sites.credentials.files import require_private_keys
from fedmm.sites.credentials.keys import public_keys, signer
from fedmm.sites.experiments import deployed_experiment, listed_sites
from fedmm.sites.site_info import SiteInfo
from fedmm.training.adaptation import Adaptation
from fedmm.training.callbacks import Callback, OnRound
from fedmm.training.checkpoints import checkpoints_of, newest_common
from fedmm.training.evaluators import metrics_by_client
from fedmm.training.privacy import require_nothing_learnt
from fedmm.training.snapshots import ResumePoint

_LONGER = 10.0
"""Seconds that an invitation outlives its round's patience, so that the round ends first and says who was late."""


def serve(grid: Grid, served: RunRequest) -> None:
    """Serve a run over a grid, in the folder ``runs/NAME`` of the federation; raise if it diverged."""
    with server_log(served.folder) as say, run_lock(served.folder):
        _, error = run_over_sites(grid, served, say)
        if error:
            raise error


def run_over_sites(
    grid: Grid,
    served: RunRequest,
    say: Say,
    *,
    watching: Sequence[Callback] = (),
    encoding: TableInput | None = None,
) -> tuple[Summary, Diverged | None]:
    """Run once over the sites; return the summary, and the error if the run diverged. watching: further callbacks.

    encoding: how the sites' tables become rows, if they agreed on it before the run.
    """
    federation, folder = Federation(served.federation), served.folder
    require_private_keys(federation.certificates, federation.keys)
    experiment = keep_every_round(deployed_experiment(parse_toml(served.experiment, "the experiment")))
    if experiment.run.threads:
        torch.set_num_threads(experiment.run.threads)
    begun = _read_begun(experiment, folder, say) if served.resume else None
    listed = listed_sites(experiment)
    roster = open_roster(grid, served, list(listed), say)
    introduction = introduce_run(served.name, served.experiment)
    encoding = encoding or (read_encoding(folder) if begun else None)
    if has_tables(experiment) and encoding is None:
        encoding = agree_on_encoding(grid, roster, experiment, introduction, served, say)
    columns, known, cache = describe_columns(encoding), with_encoding(experiment, encoding), DataCache()
    introduction = introduction._replace(about={**introduction.about, **columns})
    sites = Enrolment(folder / SITES, listed, expect_sites(known, _domains(experiment), cache), say)
    roster.admit = sites.admit
    sites.enrol(grid, roster, introduction, served.enrol_seconds, served.min_sites, known=begun is not None)
    adaptation = standing_in(known, list(listed), sites.infos, cache)
    say(describe_bound(experiment))
    about: About = {"run": served.name, "experiment": served.experiment}
    engines = _Engines(grid, roster, experiment, adaptation, introduction, about, columns, sites, served.patience, say)
    return _run(experiment, known, adaptation, folder, cache, engines, begun, watching, say)


def open_roster(grid: Grid, served: RunRequest, names: Sequence[str], say: Say) -> Roster:
    """Return a roster of these sites with their public keys; it signs messages if the coordinator has a key."""
    federation = Federation(served.federation)
    plain_text = federation.in_plain_text
    signed = federation.coordinator.exists() and not plain_text
    return Roster(
        names,
        {} if plain_text else public_keys(federation.keys),
        say=say,
        ttl=served.patience + _LONGER,
        write=Sealer(run_number(grid), signer(federation.coordinator) if signed else None),
    )


def introduce_run(name: str, experiment: str) -> Packed:
    """Return the question who a site is and what it holds, for a run of an experiment."""
    return Packed({}, {"run": name, "experiment": experiment, "versions": json.dumps(versions())}, {})


def _domains(experiment: Experiment) -> Mapping[str, str]:
    return experiment.data.domains if isinstance(experiment.data, RowsElsewhere) else {}


def keep_every_round(experiment: Experiment) -> Experiment:
    """Return the experiment with a checkpoint after every round; if updates carry noise, sites measure nothing."""
    probe_rows = 0 if experiment.terms.transmission.private else experiment.run.probe_rows
    return replace(experiment, run=replace(experiment.run, checkpoint_every=1, probe_rows=probe_rows))


def _read_begun(experiment: Experiment, folder: Path, say: Say) -> ResumePoint | None:
    """Return where a run continues, None if it has not finished a round; refuse another configuration."""
    if (folder / EXPERIMENT).exists():
        require_same_run(experiment, folder)
    require(
        read_completed(folder) is None or bool(checkpoints_of(experiment.run, folder).rounds()),
        f"the run in {folder} has completed, and its checkpoints were removed; start another one under another name",
    )
    begun = next(iter(newest_common([checkpoints_of(experiment.run, folder)], experiment.run.torch_device, say)), None)
    say(f"continuing after round {begun[0].round}" if begun else "no round was completed: the run starts again")
    return begun


def standing_in(
    experiment: Experiment, names: list[str], infos: Mapping[str, SiteInfo], cache: DataCache
) -> Adaptation:
    """Return the adaptation as the server sees it: a row of the right shape stands in for those at a site.

    The server keeps the sums of each site's updates, so that a site that lost its disk gets its state back; with secure
    aggregation it sees only sums over sites, so it keeps none.
    """
    run, device = experiment.run, experiment.run.torch_device
    for client in run.client_weights:
        if client not in names:
            raise unknown("client in run.client_weights", client, names)
    pair = experiment.partition.seen(cache.pair(experiment, device))
    require_nothing_learnt(experiment.terms, pair.input)
    clients = [stand_in_client(name, infos[name], run.client_weights.get(name, 1.0)) for name in names]
    network = build_network(experiment, pair)
    require(
        network.batch_norm != "local",
        "batch_norm = 'local' keeps statistics at the sites, so the server's model cannot predict; use 'averaged' "
        "or 'frozen' in a federation of sites",
    )
    adaptation = Adaptation(
        clients,
        network,
        experiment.objective,
        experiment.algorithm,
        run,
        validation=select_test_rows(pair) or None,
        source_validation=pair.source_validation,
        view=pair.view,
        terms=replace(experiment.terms, restore=not experiment.terms.secure_sum),
        guard=experiment.guard,
        input_mean=mean_input(infos),
        class_shares=shares_of_classes(experiment, infos),
        batches={name: infos[name].batch for name in names},
        held_at=rows_held_at(pair),
        held_back={name: stand_in_row(infos[name], labelled=True) for name in names if infos[name].validation},
    )
    if adaptation.account:  # sites know the seed, which decides who takes part
        adaptation.account = replace(adaptation.account, secret_sample=False)
    return adaptation


def has_usual_bound(experiment: Experiment) -> bool:
    """Return whether unusually long updates are refused: not with a bound in [run], masked sums or shared noise."""
    terms = experiment.terms
    return not (terms.trusts_server or terms.secure_sum or terms.max_update_norm or terms.max_update_ratio)


def describe_bound(experiment: Experiment) -> str:
    """Describe what bounds the length of an update in this run."""
    terms = experiment.terms
    if isinstance(terms.transmission, GaussianUpdate) and terms.trusts_server:
        clip = f"norm_min = {terms.transmission.norm_min:g}, norm_max = {terms.transmission.norm_max:g}"
        allowed = "noise is shared (trust = 'server'), so no update is refused for its length"
        return f"{allowed}: the clip that sites apply themselves is the bound ({clip})"
    if terms.secure_sum:
        return "updates are masked and the server sees only their sum, so no update is refused for its length"
    if has_usual_bound(experiment):
        usual = f"an update more than {TIMES:g} times as long as is usual among the other sites is refused"
        return f"{usual}; max_update_norm in [run] sets another bound"
    bound = f"max_update_norm = {terms.max_update_norm:g}, max_update_ratio = {terms.max_update_ratio:g}"
    return f"the experiment bounds the length of updates: {bound}"


@dataclass
class _Engines:
    """Makes a Flower engine for an algorithm, and another if a guard continues with smaller steps, to tell the sites.

    The newest engine also asks the sites to evaluate the server's model on their own rows.
    """

    grid: Grid
    roster: Roster
    experiment: Experiment
    adaptation: Adaptation
    introduction: Packed
    told: About
    columns: Mapping[str, str]
    sites: Enrolment
    patience: float
    say: Say
    _last: FlowerEngine | None = None

    def __post_init__(self) -> None:
        adaptation = self.adaptation
        asked = {
            name: own for name, own in metrics_by_client(adaptation.evaluators).items() if name not in self.sites.late
        }
        panel = MetricRequest(asked, adaptation.function.classes, self.experiment.run.probe_rows)
        self.measured = SiteMetrics(adaptation.problem, panel, self._ask, self.say)

    @property
    def timings(self) -> Mapping[str, About]:
        """The timings that the sites reported for the last round."""
        return self._last.strategy.timings if self._last else {}

    def _ask(self, kind: str, questions: Mapping[str, Packed]) -> Mapping[str, Packed]:
        assert self._last is not None
        return self._last.ask(kind, questions)

    def __call__(self, algorithm: Algorithm) -> FlowerEngine:
        adaptation = self.adaptation
        bounded = has_usual_bound(self.experiment)
        server = Server(adaptation.problem, algorithm, adaptation.rounds, adaptation.terms, bounded=bounded)
        strategy = MinimaxStrategy(
            server,
            self.roster,
            told=self._told(algorithm),
            introduction=self.introduction,
            session=secrets.randbelow(1 << 62),
            ttl=self.patience + _LONGER,
            say=self.say,
        )
        strategy.summary()
        self._last = FlowerEngine(strategy, self.grid, Patience(self.patience), say=self.say)
        return self._last

    def _told(self, algorithm: Algorithm) -> dict[str, About]:
        """Return what each site must know besides the experiment; of other sites' data, only values over all sites."""
        shared: dict[str, Any] = {
            "algorithm": as_table(algorithm),
            "clients": [client.name for client in self.adaptation.problem.clients],
            "listed": list(self.adaptation.problem.listed),
            "input_mean": mean_input(self.sites.infos),
            "class_shares": shares_of_classes(self.experiment, self.sites.infos),
            "odds": self.adaptation.odds,
            **self.columns,
        }
        alphas = {client_data.name: client_data.alpha for client_data in self.adaptation.client_data}
        return {
            name: {**self.told, "plan": json.dumps({**shared, "alpha": alphas.get(name, 1.0)})}
            for name in self.adaptation.problem.listed
        }


def _run(
    experiment: Experiment,
    known: Experiment,
    adaptation: Adaptation,
    folder: Path,
    cache: DataCache,
    engines: _Engines,
    begun: ResumePoint | None,
    watching: Sequence[Callback],
    say: Say,
) -> tuple[Summary, Diverged | None]:
    before = read_completed(folder) or {}
    best = adaptation.best_model()
    checkpoints = checkpoints_of(experiment.run, folder, best, in_parts=True)
    if begun:
        checkpoints.go_on(begun[0], experiment.run.torch_device)
    status = StatusFile(folder, engines.roster, experiment.run.rounds, begun[0].round if begun else 0)
    engines.roster.on_change = status.write
    with (
        RunFolder(folder, experiment.tables(), begun[1] if begun else ()) as files,
        Tracks(experiment, folder, begun[0].round if begun else 0) as tracks,
    ):
        shown = OnRound(lambda row: status.after_round(int(row["round"] or 0), engines.timings))
        adapted, error = adaptation.run([best, files, tracks, shown, checkpoints, *watching], begun, engines=engines)
        summary = finish_run(files, known, adaptation, adapted, cache, {"name": "flower"})
        clients = {client_data.name: {"holds": client_data.domains} for client_data in adaptation.client_data}
        scores = _scores_of_sites(experiment, engines.measured, adapted.state.round)
        if begun and begun[0].round == adapted.state.round:  # sites measured this round before
            scores = before.get("clients", {})
        summary |= {"clients": {name: {**about, **scores.get(name, {})} for name, about in clients.items()}}
        files.summarise(summary)
        tracks.finish(summary)
    if experiment.run.best_by and not (summary.get("best") or summary.get("oracle_best")):
        say(no_best_model(experiment.run.best_by))
    reached = summary["target_accuracy"]
    said = "" if reached is None else f"; target accuracy {reached}"
    say(f"{summary['status']} after round {summary['rounds']}{said}")
    return summary, error


def _scores_of_sites(experiment: Experiment, measured: SiteMetrics, round_: int) -> dict[str, dict[str, float]]:
    """Return, by site, how many labelled rows it keeps from training, and how many of them a round's model gets right.

    With two classes, also how many are of the second, and the AUROC with the error that its histogram leaves, if the
    site reports counts of both. Empty if not all sites reported their rows, and with masked sums, where only sums over
    all sites are to be known.
    """
    asked_in, columns = measured.of_sites
    if asked_in != round_ or experiment.terms.secure_sum:
        return {}
    counted, ranked = (
        columns.get(column) for column in (VALIDATORS["validation_worst_accuracy"].column, "validation_ranking")
    )
    scores: dict[str, dict[str, float]] = {
        name: {"validation_rows": own.rows, "validation_hits": int(own.sums[0])}
        for name, own in (counted.by_site if counted else {}).items()
    }
    for name, own in (ranked.by_site if ranked else {}).items():
        assert ranked is not None
        assert isinstance(ranked.metric, Ranking)
        _, positive = ranked.metric.rows_by_class(own.sums)
        if name in scores and own.rows == scores[name]["validation_rows"] and 0 < positive < own.rows:
            auroc, error, *_ = ranked.metric.value(own.sums, own.rows).tolist()
            scores[name] |= {
                "validation_positive": positive, "validation_auroc": auroc, "validation_auroc_error": error,
            }  # fmt: skip
    return scores
