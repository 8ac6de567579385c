"""The server's side of a deployed run: sites introduce themselves, rounds run, and every round is on disk."""

from __future__ import annotations

import json
import secrets
import sys
import time
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from fedmm.config.dataclass_io import as_table
from fedmm.config.schema import Experiment
from fedmm.core.algorithm import Algorithm
from fedmm.core.engine import FederatedState
from fedmm.core.errors import FedmmError, require, unknown
from fedmm.core.mechanisms import GaussianUpdate
from fedmm.core.usual_norms import TIMES
from fedmm.data.domains import DomainPair
from fedmm.data.inputs import TableInput
from fedmm.data.rows import TensorRows
from fedmm.deploy.agree_tables import agree_on_encoding, has_tables, kept_encoding, told_columns, with_encoding
from fedmm.deploy.enrolment import SITES, Enrolment
from fedmm.deploy.layout import Federation
from fedmm.deploy.run_lock import driving
from fedmm.deploy.status import StatusFile
from fedmm.engines.server import Server
from fedmm.models.network import Network
from fedmm.remote.evaluation import Panel, SiteMeasures
from fedmm.remote.flower.engine import FlowerEngine, Patience
from fedmm.remote.flower.envelope import Sealer
from fedmm.remote.flower.roster import Roster, introduced
from fedmm.remote.flower.server import Grid, run_number
from fedmm.remote.flower.strategy import MinimaxStrategy
from fedmm.remote.packed import About, Packed
from fedmm.runs.build import DataCache, tested_rows
from fedmm.runs.resume import completed_run, run_checkpoints
from fedmm.runs.run import finish_run
from fedmm.runs.run_folder import EXPERIMENT, RunFolder
from fedmm.runs.tracking import Tracks
from fedmm.sites.compatibility import versions
from fedmm.sites.credentials.files import require_private_keys
from fedmm.sites.credentials.keys import public_keys, signer
from fedmm.sites.experiments import RowsElsewhere, deployed_experiment, listed_sites, require_quorum
from fedmm.sites.site_info import Card, Expected
from fedmm.training.adaptation import Adaptation
from fedmm.training.checkpoints import newest_common
from fedmm.training.fingerprint import differences, refuse_others
from fedmm.training.history import History, Row
from fedmm.training.loop import Begun
from fedmm.training.privacy import require_nothing_learnt
from fedmm.training.problem import Client
from fedmm.training.site_evaluators import asked_for

LOG = "server.log"
_LONGER = 10.0
"""Seconds for which an invitation holds after its round's patience: so the round ends first, and says who was late."""
Say = Callable[[str], None]


@dataclass(frozen=True)
class Served:
    """A run. federation: the server's folder. name: of the run. experiment: as TOML. resume: go on with it.

    patience: seconds that a round waits for its sites. enrol_seconds: that the run waits for them at its beginning.
    min_sites: with how many of them it begins; the others may join later. 0 for all.
    """

    federation: Path
    name: str
    experiment: str
    resume: bool = False
    patience: float = 600.0
    enrol_seconds: float = 600.0
    min_sites: int = 0


def serve(grid: Grid, served: Served) -> None:
    """Run a federation over a grid; its folder is ``runs/NAME`` of the federation's."""
    federation = Federation(served.federation)
    folder = federation.run(served.name)
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / LOG).open("a", encoding="utf-8") as log:

        def say(line: str) -> None:
            stamped = f"{time.strftime('%H:%M:%S')} {line}\n"
            sys.stderr.write(stamped)
            sys.stderr.flush()
            log.write(stamped)
            log.flush()

        try:
            with driving(folder):
                _serve(grid, served, federation, folder, say)
        except FedmmError as problem:
            say(f"error: {problem}")
            raise


def _serve(grid: Grid, served: Served, federation: Federation, folder: Path, say: Say) -> None:
    require_private_keys(federation.certificates, federation.keys)
    each = every_round_kept(deployed_experiment(tomllib.loads(served.experiment)))
    if each.run.threads:
        torch.set_num_threads(each.run.threads)
    begun = _begun(each, folder, say) if served.resume else None
    plain_text = _plain_text(federation)
    signed = federation.coordinator.exists() and not plain_text
    listed = listed_sites(each)
    roster = Roster(
        list(listed),
        {} if plain_text else public_keys(federation.keys),
        say=say,
        ttl=served.patience + _LONGER,
        write=Sealer(run_number(grid), signer(federation.coordinator) if signed else None),
    )
    told: About = {"run": served.name, "experiment": served.experiment}
    introduction = Packed({}, {**told, "versions": json.dumps(versions())}, {})
    encoding = kept_encoding(folder) if begun else None
    if has_tables(each) and encoding is None:
        encoding = _agreed_encoding(grid, roster, each, introduction, served, folder, say)
    columns, known, cache = told_columns(encoding), with_encoding(each, encoding), DataCache()
    introduction = introduction._replace(about={**introduction.about, **columns})
    sites = Enrolment(folder / SITES, listed, expected_cards(known, _domains(each), cache), say)
    roster.admit = sites.admit
    sites.enrol(grid, roster, introduction, served.enrol_seconds, served.min_sites, known=begun is not None)
    adaptation = standing_in(known, list(listed), sites.cards, cache)
    say(told_bound(each))
    engines = _Engines(grid, roster, each, adaptation, introduction, told, columns, sites, served.patience, say)
    _run(each, known, adaptation, folder, cache, engines, begun, say)


def _agreed_encoding(
    grid: Grid, roster: Roster, each: Experiment, introduction: Packed, served: Served, folder: Path, say: Say
) -> TableInput:
    """How the tables of the sites that are there become rows; they introduce themselves again once it is known."""
    require_quorum(served.min_sites, listed_sites(each))
    least, seconds = served.min_sites or len(roster.names), served.enrol_seconds
    absent = introduced(grid, roster, introduction, timeout=seconds, say=say, enough=served.min_sites or None)
    reasons = "; ".join(["", *sorted(set(roster.turned_away.values()))])
    wanted = f"begins with {least} sites, and {len(roster.nodes)} came" if served.min_sites else "needs them"
    require(
        len(roster.nodes) >= least,
        f"{', '.join(absent)} did not come within {seconds:g} seconds; the run {wanted}{reasons}",
    )
    encoding = agree_on_encoding(
        grid, roster, each, introduction, folder, least=least, seconds=served.patience, say=say
    )
    roster.forget()
    return encoding


def _domains(each: Experiment) -> Mapping[str, str]:
    return each.data.domains if isinstance(each.data, RowsElsewhere) else {}


def _plain_text(federation: Federation) -> bool:
    """Whether nodes have no keys, since the SuperLink speaks plain text."""
    try:
        return bool(json.loads(federation.about.read_text(encoding="utf-8"))["insecure"])
    except (OSError, ValueError, KeyError, TypeError):
        return False


def every_round_kept(each: Experiment) -> Experiment:
    """The experiment with a checkpoint after every round; with noise in the updates, sites measure nothing."""
    probe_rows = 0 if each.terms.transmission.private else each.run.probe_rows
    return replace(each, run=replace(each.run, checkpoint_every=1, probe_rows=probe_rows))


def _begun(each: Experiment, folder: Path, say: Say) -> Begun | None:
    """What a run goes on from; None where it had not finished a round. Another configuration is refused."""
    if (folder / EXPERIMENT).exists():
        before = deployed_experiment(tomllib.loads((folder / EXPERIMENT).read_text(encoding="utf-8")))
        refuse_others(differences(before.tables(), each.tables()), f"the run in {folder}")
    require(
        completed_run(folder) is None or bool(run_checkpoints(each, folder).rounds()),
        f"the run in {folder} has completed, and its checkpoints were cleaned; begin another one with another name",
    )
    begun = next(iter(newest_common([run_checkpoints(each, folder)], each.run.torch_device, say)), None)
    say(f"going on after round {begun[0].round}" if begun else "no round had been finished: the run begins again")
    return begun


def standing_in(each: Experiment, names: list[str], cards: Mapping[str, Card], cache: DataCache) -> Adaptation:
    """The adaptation as a server sees it: a row of the right shape stands in for those at a site.

    The server keeps the sums of each site's updates, so that a site whose disk was lost gets its state back; where it
    sees masked sums alone, it has none to keep.
    """
    run, device = each.run, each.run.torch_device
    for client in run.client_weights:
        if client not in names:
            raise unknown("client in run.client_weights", client, names)
    pair = each.partition.seen(cache.pair(each, device))
    require_nothing_learnt(each.terms, pair.input)
    clients = [_stand_in(name, cards[name], run.client_weights.get(name, 1.0)) for name in names]
    network = _network(each, pair)
    require(
        network.batch_norm != "local",
        "batch_norm = 'local' keeps statistics at the sites, so that the server's model cannot predict; use 'averaged' "
        "or 'frozen' in a federation of sites",
    )
    adaptation = Adaptation(
        clients,
        network,
        each.objective,
        each.algorithm,
        run.rounds,
        validation=tested_rows(pair) or None,
        source_validation=pair.source_validation,
        probe_rows=run.probe_rows,
        batch_size=run.batch_size,
        seed=run.seed,
        device=device,
        dtype=run.torch_dtype,
        view=pair.view,
        terms=replace(each.terms, restore=not each.terms.secure_sum),
        guard=each.guard,
        best_by=run.best_by,
        stopping=run.stopping,
        input_mean=mean_input(cards),
        batches={name: cards[name].batch for name in names},
        held_back={name: _row(cards[name], labelled=True) for name in names if cards[name].validation},
    )
    if adaptation.account:  # sites are told the seed, and who takes part follows from it
        adaptation.account = replace(adaptation.account, secret_sample=False)
    return adaptation


def expected_cards(each: Experiment, domains: Mapping[str, str], cache: DataCache) -> Expected:
    """What sites may say of themselves in an experiment. domains: what they hold, where it is said."""
    pair = each.partition.seen(cache.pair(each, each.run.torch_device))
    row = pair.source.x
    centred = _network(each, pair).centre == "train_mean"
    return Expected(tuple(row.shape[1:]), row.dtype == torch.uint8, each.run.batch_size, centred, domains)


def _network(each: Experiment, pair: DomainPair) -> Network:
    return each.model.build(pair.view.shape(tuple(pair.source.x.shape[1:])), pair.classes, each.run.seed)


def usual_bound(each: Experiment) -> bool:
    """Whether updates that are far longer than usual are refused: where the experiment has no bound of its own."""
    terms = each.terms
    return not (terms.trusts_server or terms.secure_sum or terms.max_update_norm or terms.max_update_ratio)


def told_bound(each: Experiment) -> str:
    """What bounds the length of an update in this run, in words."""
    terms = each.terms
    if isinstance(terms.transmission, GaussianUpdate) and terms.trusts_server:
        clip = f"norm_min = {terms.transmission.norm_min:g}, norm_max = {terms.transmission.norm_max:g}"
        allowed = "noise is shared (trust = 'server'), so no update is refused for its length"
        return f"{allowed}: the clip that sites apply themselves is the bound ({clip})"
    if terms.secure_sum:
        return "updates are masked, and their sum alone is seen: no update is refused for its length"
    if usual_bound(each):
        usual = f"an update more than {TIMES:g} times as long as is usual among the other sites is refused"
        return f"{usual}; max_update_norm in [run] sets another bound"
    own = f"max_update_norm = {terms.max_update_norm:g}, max_update_ratio = {terms.max_update_ratio:g}"
    return f"the experiment bounds the length of updates: {own}"


def mean_input(cards: Mapping[str, Card]) -> float:
    """The mean of all sites' inputs, from their sums; 0 where the network needs none."""
    count = sum(card.input_count for card in cards.values())
    return sum(cards[name].input_sum for name in sorted(cards)) / count if count else 0.0


def _stand_in(name: str, card: Card, weight: float) -> Client:
    source = _row(card, labelled=True) if card.source else None
    return Client(source, _row(card, labelled=False) if card.target else None, name, weight)


def _row(card: Card, *, labelled: bool) -> TensorRows:
    row = torch.zeros(1, *card.shape, dtype=torch.uint8 if card.bytes else torch.float32)
    return TensorRows(row, torch.zeros(1, dtype=torch.int64) if labelled else None)


@dataclass
class _Engines:
    """Flower engines by algorithm: a guard that goes on with calmer steps tells the sites of them.

    The last one that was made also asks the sites to measure the server's model on their own rows.
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
        asked = {name: own for name, own in asked_for(adaptation.probes).items() if name not in self.sites.late}
        panel = Panel(asked, adaptation.function.classes, self.experiment.run.probe_rows)
        self._measures = SiteMeasures(adaptation.problem, panel, self._ask, self.say)

    def measured(self, state: FederatedState) -> dict[str, torch.Tensor]:
        """What sites measure on rows of their own; what could not be measured is left out."""
        return self._measures(state)

    @property
    def timings(self) -> Mapping[str, About]:
        """What the sites said of their time in the last round."""
        return self._last.strategy.timings if self._last else {}

    def _ask(self, kind: str, questions: Mapping[str, Packed]) -> Mapping[str, Packed]:
        assert self._last is not None
        return self._last.ask(kind, questions)

    def __call__(self, algorithm: Algorithm) -> FlowerEngine:
        adaptation = self.adaptation
        bounded = usual_bound(self.experiment)
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
        """What each site has to know beside the experiment; nothing of what another one holds."""
        shared: dict[str, Any] = {
            "algorithm": as_table(algorithm),
            "clients": [client.name for client in self.adaptation.problem.clients],
            "listed": list(self.adaptation.problem.listed),
            "input_mean": mean_input(self.sites.cards),
            "odds": self.adaptation.odds,
            **self.columns,
        }
        alphas = {holding.name: holding.alpha for holding in self.adaptation.holdings}
        return {
            name: {**self.told, "plan": json.dumps({**shared, "alpha": alphas.get(name, 1.0)})}
            for name in self.adaptation.problem.listed
        }


def _run(
    each: Experiment,
    known: Experiment,
    adaptation: Adaptation,
    folder: Path,
    cache: DataCache,
    engines: _Engines,
    begun: Begun | None,
    say: Say,
) -> None:
    best = adaptation.chooser()
    checkpoints = run_checkpoints(each, folder, best, in_parts=True)
    if begun:
        checkpoints.go_on(begun[0].round, each.run.torch_device)
    status = StatusFile(folder, engines.roster, each.run.rounds, begun[0].round if begun else 0)
    engines.roster.on_change = status.write
    with (
        RunFolder(folder, each.tables(), begun[1] if begun else ()) as files,
        Tracks(each, folder, begun[0].round if begun else 0) as tracks,
    ):

        def after_round(row: Row) -> None:
            files.append(row)
            tracks.row(row)
            status.after_round(int(row["round"] or 0), engines.timings)

        def keep(state: FederatedState, history: History) -> None:
            files.refuse(state.round, history.refusals.get(state.round, ()))
            checkpoints.after_round(state, history)

        adapted, error = adaptation.run(
            evaluate_every=each.run.evaluate_every,
            on_round=after_round,
            chosen=each.run.precision,
            begun=begun,
            keep=keep,
            engines=engines,
            best=best,
        )
        checkpoints.close(adapted.state, adapted.history)
        summary = finish_run(files, known, adaptation, adapted, cache, {"name": "flower"})
        held = {holding.name: {"holds": holding.domains} for holding in adaptation.holdings}
        files.summarise({**summary, "clients": held})  # how many rows they hold, only the sites know
        tracks.finish(summary)
    if each.run.best_by and not (summary.get("best") or summary.get("oracle_best")):
        say(f"no model is kept as the best: {each.run.best_by} could not be measured in any round")
    say(f"{summary['status']} after round {summary['rounds']}; target accuracy {summary['target_accuracy']}")
    if error:
        raise error
