"""A Flower grid in one process: messages pass through Flower's records to handlers, with faults on the way."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, cast

from flwr.app import Message, MessageType
from flwr.clientapp import ClientApp
from remote.flower.local_grid import LocalGrid, acting_as, called

from fedmm.core.algorithm import Algorithm
from fedmm.core.engine import FederatedState, RoundRecord
from fedmm.core.federation import Terms
from fedmm.core.problem import FederatedProblem
from fedmm.engines.in_process import workers
from fedmm.engines.messages import NEVER, Update
from fedmm.engines.server import Server
from fedmm.engines.worker import ClientMemory, Kept
from fedmm.remote.flower.apps import client_app
from fedmm.remote.flower.engine import FlowerEngine, Patience
from fedmm.remote.flower.envelope import from_records, to_records
from fedmm.remote.flower.roster import Roster
from fedmm.remote.flower.strategy import MinimaxStrategy
from fedmm.remote.messaging import Exchange
from fedmm.remote.packed import INTRODUCE, NAME, Packed
from fedmm.remote.packing import pack_update, read_invitation, read_update
from fedmm.remote.site import Site, answer_question

FIRST_NODE = 7000
USUAL = Terms()


class LoopbackGrid(LocalGrid):
    """Nodes in this process, each a ClientApp; node numbers are ordered differently from the sites' names."""

    def __init__(
        self, problem: FederatedProblem, sites: dict[str, Site], exchange: Exchange | None = None, mods: Any = ()
    ) -> None:
        super().__init__()
        self.layout = problem.layout
        self.sites = sites
        self.exchange = exchange or Exchange()
        self.nodes = {FIRST_NODE - number: name for number, name in enumerate(sorted(sites))}
        self.apps: dict[int, ClientApp] = {node: self._app(name, mods) for node, name in self.nodes.items()}
        self.connected = set(self.nodes)
        self.asked: list[Message] = []
        self.last_asked: dict[str, Message] = {}
        self.exchanges = 0
        self.about: dict[str, Any] = {}

    def _app(self, name: str, mods: Any) -> ClientApp:
        def handler(kind: str, question: Packed) -> Packed:
            if kind == INTRODUCE:
                return Packed({}, {NAME: name}, {})
            return answer_question(self.sites[name], self.layout, question)

        return client_app(lambda node, run: handler, mods)

    def get_node_ids(self) -> Iterable[int]:
        return sorted(self.connected)

    def answered(self, message: Message) -> list[Message]:
        if message.metadata.message_type == MessageType.QUERY:
            return [self.called(message)]
        self.asked.append(message)
        return []

    def called(self, message: Message) -> Message:
        return called(self.apps[message.metadata.dst_node_id], message, {}, {})

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        if self.asked:
            self._exchange(self.asked)
            self.asked = []
        return super().pull_messages(message_ids)[::-1]

    def _exchange(self, messages: list[Message]) -> None:
        """Deliver a round's messages, as far as the exchange lets them through."""
        by_name = {self.nodes[message.metadata.dst_node_id]: message for message in messages}
        self.last_asked |= by_name
        self.exchanges += 1
        answers, t = [], 0
        others: dict[str, Message] = {}
        for name in sorted(by_name):
            message = by_name[name]
            packed = from_records(message.content)
            invitation = read_invitation(self.layout, packed.arrays, packed.about)
            t = invitation.round
            if self.exchange.invited(name, invitation):
                reply = self.called(message)
                try:
                    packed = from_records(reply.content)
                    answers.append(read_update(self.layout, packed))
                    self.about[name] = packed.about
                except Exception:  # not an update: it arrives unchanged
                    others[name] = reply
        for update in self.exchange.arriving(t, answers):
            self._deliver(self.last_asked[update.client], update)
        for name, reply in others.items():
            self.replies.setdefault(by_name[name].metadata.message_id, []).append(reply)
        self.exchange.between_rounds(t, {name: site.memory for name, site in self.sites.items()})

    def _deliver(self, asked: Message, update: Update) -> None:
        with acting_as(asked.metadata.dst_node_id):
            packed = pack_update(self.layout, update)
            about = {**self.about[update.client], **packed.about}
            reply = Message(to_records(packed._replace(about=about)), reply_to=asked)
        self.replies.setdefault(asked.metadata.message_id, []).append(reply)


class LoopbackEngine(FlowerEngine):
    """An engine whose rounds also count as rounds of the exchange if nobody is invited."""

    def run_round(self, state: FederatedState) -> tuple[FederatedState, RoundRecord]:
        grid = cast(LoopbackGrid, self.grid)
        before = grid.exchanges
        after = super().run_round(state)
        if grid.exchanges == before:
            grid.exchange.arriving(state.round, [])
            grid.exchange.between_rounds(state.round, {name: site.memory for name, site in grid.sites.items()})
        return after


def flower_engine(
    problem: FederatedProblem,
    algorithm: Algorithm,
    rounds: int,
    terms: Terms = USUAL,
    exchange: Exchange | None = None,
    *,
    depth: int = 2,
    mods: Any = (),
) -> FlowerEngine:
    """Return an engine over a loopback grid, for tests that are parametrised by engine."""
    server = Server(problem, algorithm, rounds, terms)
    first = Kept(server.first_own(), problem.statistics)
    sites = {
        name: Site(worker, ClientMemory({NEVER: first}, depth=depth), problem.statistics)
        for name, worker in workers(server).items()
    }
    grid = LoopbackGrid(problem, sites, exchange, mods)
    said: list[str] = []
    strategy = MinimaxStrategy(server, Roster(server.names, say=said.append), say=said.append)
    engine = LoopbackEngine(strategy, grid, patience=Patience(seconds=0.0), say=said.append)
    engine.said = said  # type: ignore[attr-defined]
    return engine


def bare(state: FederatedState) -> FederatedState:
    """Return the state without what a remote server does not have."""
    return replace(state, clients={}, client_statistics={})
