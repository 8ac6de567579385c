"""The server's side of a deployed run: sites introduce themselves, rounds run, and every round is on disk."""

from __future__ import annotations

import json
import secrets
import sys
import time
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from fedmm.core.algorithm import Algorithm
from fedmm.core.engine import FederatedState
from fedmm.core.errors import FedmmError, require, unknown
from fedmm.data.holdings import TensorRows
from fedmm.deploy.cards import Card, card_from, read_card
from fedmm.deploy.driving import driving
from fedmm.deploy.experiments import deployed_experiment, site_names
from fedmm.deploy.keys import public_keys, signer
from fedmm.deploy.layout import Federation
from fedmm.deploy.versions import difference, versions
from fedmm.engines.flower.engine import FlowerEngine, Patience
from fedmm.engines.flower.envelope import Sealer
from fedmm.engines.flower.roster import Roster, introduced
from fedmm.engines.flower.server import Grid, run_number
from fedmm.engines.flower.strategy import MinimaxStrategy
from fedmm.engines.measuring import Panel, SiteMeasures
from fedmm.engines.packed import About, Malformed, Packed, one_line
from fedmm.engines.server import Server
from fedmm.experiment.adapt import Adaptation
from fedmm.experiment.adaptation import Client
from fedmm.experiment.build import DataCache, tested_rows
from fedmm.experiment.checkpoints import newest_common
from fedmm.experiment.config import Experiment
from fedmm.experiment.folder import EXPERIMENT, RunFolder, write_json
from fedmm.experiment.history import History, Row
from fedmm.experiment.privacy import require_nothing_learnt
from fedmm.experiment.resuming import differences, refuse_others, run_checkpoints
from fedmm.experiment.run import finish_run
from fedmm.experiment.site_sums import asked_for
from fedmm.experiment.tables import as_table
from fedmm.experiment.tracking import Tracks
from fedmm.experiment.training import Begun

SITES, LOG = "sites.json", "server.log"
_LONGER = 10.0
"""Seconds for which an invitation holds after its round's patience: so the round ends first, and says who was late."""
Say = Callable[[str], None]


@dataclass(frozen=True)
class Served:
    """A run. federation: the server's folder. name: of the run. experiment: as TOML. resume: go on with it.

    patience: seconds that a round waits for its sites. enrol_seconds: that the run waits for them at its beginning.
    """

    federation: Path
    name: str
    experiment: str
    resume: bool = False
    patience: float = 600.0
    enrol_seconds: float = 600.0


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
    each = every_round_kept(deployed_experiment(tomllib.loads(served.experiment)))
    if each.run.threads:
        torch.set_num_threads(each.run.threads)
    begun = _begun(each, folder, say) if served.resume else None
    names = site_names(each)
    plain_text = _plain_text(federation)
    signed = federation.coordinator.exists() and not plain_text
    write = Sealer(run_number(grid), signer(federation.coordinator) if signed else None)
    roster = Roster(names, {} if plain_text else public_keys(federation.keys), say=say, write=write)
    told: About = {"run": served.name, "experiment": served.experiment}
    introduction = Packed({}, {**told, "versions": json.dumps(versions())}, {})
    cards = _cards(grid, roster, introduction, served, folder if begun else None, say)
    cache = DataCache()
    adaptation = standing_in(each, names, cards, cache)
    write_json(folder / SITES, {name: asdict(card) for name, card in cards.items()})
    engines = _Engines(grid, roster, each, adaptation, introduction, told, mean_input(cards), served.patience, say)
    _run(each, adaptation, folder, cache, engines, begun, say)


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
    begun = next(iter(newest_common([run_checkpoints(each, folder)], each.run.torch_device, say)), None)
    say(f"going on after round {begun[0].round}" if begun else "no round had been finished: the run begins again")
    return begun


def _cards(
    grid: Grid, roster: Roster, introduction: Packed, served: Served, known: Path | None, say: Say
) -> dict[str, Card]:
    """What the sites hold, as they say; those that were part of the run already need not be there for it to go on."""
    kept: dict[str, Card] = {}
    if known is not None and (known / SITES).exists():
        table = json.loads((known / SITES).read_text(encoding="utf-8"))
        kept = {name: card_from(card) for name, card in table.items()}
    patience = 0.0 if kept.keys() >= set(roster.names) else served.enrol_seconds
    missing = introduced(grid, roster, introduction, timeout=patience, say=say)
    for name, packed in roster.cards.items():
        other = difference(packed.about.get("versions"), f"the site {name!r}")
        if other:
            say(other)
    cards = {**kept, **{name: _card(name, packed) for name, packed in roster.cards.items()}}
    absent = [name for name in missing if name not in cards]
    require(not absent, f"{', '.join(absent)} did not come within {served.enrol_seconds:g} seconds; the run needs them")
    return cards


def _card(name: str, packed: Packed) -> Card:
    try:
        return read_card(packed)
    except Malformed as problem:
        raise FedmmError(f"the site {name!r} cannot take part: {one_line(problem)}") from problem


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
    network = each.model.build(pair.view.shape(cards[names[0]].shape), pair.classes, run.seed)
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
    input_mean: float
    patience: float
    say: Say
    _last: FlowerEngine | None = None

    def __post_init__(self) -> None:
        adaptation = self.adaptation
        panel = Panel(asked_for(adaptation.probes), adaptation.function.classes, self.experiment.run.probe_rows)
        self._measures = SiteMeasures(adaptation.problem, panel, self._ask, self.say)

    def measured(self, state: FederatedState) -> dict[str, torch.Tensor]:
        """What sites measure on rows of their own; what could not be measured is left out."""
        return self._measures(state)

    def _ask(self, kind: str, questions: Mapping[str, Packed]) -> Mapping[str, Packed]:
        assert self._last is not None
        return self._last.ask(kind, questions)

    def __call__(self, algorithm: Algorithm) -> FlowerEngine:
        adaptation = self.adaptation
        server = Server(adaptation.problem, algorithm, adaptation.rounds, adaptation.terms)
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
            "input_mean": self.input_mean,
            "odds": self.adaptation.odds,
        }
        alphas = {holding.name: holding.alpha for holding in self.adaptation.holdings}
        return {
            name: {**self.told, "plan": json.dumps({**shared, "alpha": alphas.get(name, 1.0)})}
            for name in self.adaptation.problem.listed
        }


def _run(
    each: Experiment,
    adaptation: Adaptation,
    folder: Path,
    cache: DataCache,
    engines: _Engines,
    begun: Begun | None,
    say: Say,
) -> None:
    best = adaptation.chooser()
    checkpoints = run_checkpoints(each, folder, best)
    if begun:
        checkpoints.go_on(begun[0].round, each.run.torch_device)
    with (
        RunFolder(folder, each.tables(), begun[1] if begun else ()) as files,
        Tracks(each, folder, begun[0].round if begun else 0) as tracks,
    ):

        def after_round(row: Row) -> None:
            files.append(row)
            tracks.row(row)

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
        summary = finish_run(files, each, adaptation, adapted, cache, {"name": "flower"})
        held = {holding.name: {"holds": holding.domains} for holding in adaptation.holdings}
        files.summarise({**summary, "clients": held})  # how many rows they hold, only the sites know
        tracks.finish(summary)
    if each.run.best_by and not (summary.get("best") or summary.get("oracle_best")):
        say(f"no model is kept as the best: {each.run.best_by} could not be measured in any round")
    say(f"{summary['status']} after round {summary['rounds']}; target accuracy {summary['target_accuracy']}")
    if error:
        raise error
