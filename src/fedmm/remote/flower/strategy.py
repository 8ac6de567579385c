"""Any algorithm as a Flower Strategy: it writes and reads a round's records, and the server does the computing."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from fedmm.core.engine import Refusal, RoundRecord
from fedmm.core.errors import Say
from fedmm.engines.messages import Invitation, Update, size_in_bytes
from fedmm.engines.server import OpenSum, Server
from fedmm.remote.engine import DualNorms, Host
from fedmm.remote.flower.envelope import read
from fedmm.remote.flower.roster import Roster, wait_for_sites
from fedmm.remote.packed import FINAL, MEASURE, MESSAGE_TYPES, PROBLEM, TRAIN, About, Malformed, Packed, one_line
from fedmm.remote.packing import OFFER, pack_invitation, pack_offer, read_key, read_update, read_vectors, vector_arrays

_NOTHING = Packed({}, {}, {})
_MOST_VECTORS, _SPARE_BYTES = 4, 1 << 18
_APP_FAILED = (1, 2)
"""Flower's codes for an app that failed to load or raised an error; other codes concern nodes and messages."""


class MinimaxStrategy(Strategy):
    """The server of a federated minimax algorithm behind Flower's Strategy interface.

    server: the algorithm and its terms. roster: where its sites are. told: what each site is sent in every round
    besides the invitation. introduction: what a site is sent when it is asked who it is. session: a new one after each
    restart. ttl: seconds for which an invitation is valid.

    Flower's ``start`` can run it; :class:`~fedmm.remote.flower.engine.FlowerEngine` also waits for sites that come
    back. state: where it continues from, at first the server's start. record: of the last round. timings: what the
    sites reported of their time in it.
    """

    def __init__(
        self,
        server: Server,
        roster: Roster,
        *,
        told: Mapping[str, About] | None = None,
        introduction: Packed = _NOTHING,
        session: int = 0,
        ttl: float = 3600.0,
        say: Say = lambda line: None,
    ) -> None:
        self.server = server
        self.roster = roster
        self.host = Host(server, session)
        self.state = server.start()
        self.record: RoundRecord | None = None
        self.timings: dict[str, About] = {}
        self.introduction = introduction
        self._told = told or {}
        self._ttl = ttl
        self._say = say
        self._invitations: dict[str, Invitation] = {}
        self._shared: About = {}
        self._bytes_down = 0
        self._began = 0.0
        self._dual_norms = DualNorms(server)

    @property
    def arrays(self) -> ArrayRecord:
        """The server's point as one record of ``min.omega`` and ``max.psi``."""
        named = vector_arrays(self.server.problem.layout, {"z": self.state.z})
        return ArrayRecord({name: Array(array) for name, array in named.items()})

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """Return an invitation for each connected site of the round; a new point in ``arrays`` replaces the own one."""
        self.server.terms.require_plain("flower's own loop")
        if self.roster.missing:
            wait_for_sites(grid, self.roster, self.introduction, timeout=self._ttl, say=self._say)
        self._take(arrays)
        return [message for _, message in self.invite(server_round, config, grid, self.open())]

    def open(self) -> list[str]:
        """Begin a round; return the names of the sites to invite."""
        self._began = time.perf_counter()
        self._bytes_down = 0
        self.timings = {}
        self._invitations = self.host.invitations(self.state)
        self._shared = {}
        if self.server.terms.secure_sum:
            keys = {name: read_key(card.about) for name, card in self.roster.cards.items()}
            offer = {name: key for name, key in keys.items() if key is not None and name in self._invitations}
            self._invitations = {name: invitation for name, invitation in self._invitations.items() if name in offer}
            self._shared = {OFFER: pack_offer(offer)}
        return list(self._invitations)

    def invite(
        self, server_round: int, config: Mapping[str, Any], grid: Grid, names: Iterable[str]
    ) -> list[tuple[str, Message]]:
        """Return an invitation for each of these sites that is connected."""
        nodes = self.roster.online(grid)
        messages = []
        for name in names:
            if name in nodes:
                packed = pack_invitation(self.server.problem.layout, self._invitations[name])
                self._bytes_down += self._invitations[name].size_in_bytes
                told = packed._replace(about={**config, **self._told.get(name, {}), **self._shared, **packed.about})
                messages.append((name, self._message(TRAIN, nodes[name], told, server_round)))
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Compute the server's next state from whatever arrived."""
        updates, refusals = [], []
        for reply in replies:
            try:
                updates.append(self.read(reply))
            except Refused as problem:
                refusals.append(problem.refusal)
        self.close(updates, refusals)
        assert self.record is not None
        return self.arrays, MetricRecord(dict(self.record.metrics))

    def read(self, reply: Message, name: str | None = None) -> Update:
        """Return the update in a reply; raise Refused if it has none that is usable. name: who was asked."""
        name = self._who(reply, name)
        packed = self._packed(reply, name)
        try:
            update = read_update(self.server.problem.layout, packed)
        except Malformed as problem:
            raise Refused(name, one_line(problem)) from problem
        if update.client != name:
            raise Refused(name, f"it answers in the name of {one_line(update.client)!r}")
        self.timings[name] = packed.about
        return update

    def close(self, updates: list[Update], refusals: list[Refusal], open_sum: OpenSum | None = None) -> None:
        """End a round with these updates and refusals. open_sum: if updates are masked."""
        after, record = self.host.settle_round(
            self.state, self._invitations, updates, began=self._began, refused=refusals, open_sum=open_sum
        )
        record = replace(record, bytes_down=self._bytes_down)
        self.record = self._dual_norms.add_to(record, self.timings, self.state, after)
        self.state = after
        for refusal in record.refused:
            self._say(f"round {record.round}: {refusal.client} was not counted: {refusal.reason}")

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """Ask nothing, under Flower's own loop; an engine asks sites to evaluate through :meth:`ask`."""
        return []

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Return None, since nothing was asked."""
        return None

    def ask(
        self,
        server_round: int,
        questions: Mapping[str, Packed],
        grid: Grid,
        names: Iterable[str],
        kind: str = MEASURE,
    ) -> list[tuple[str, Message]]:
        """Return a message with another question than an invitation for each of these sites that is connected."""
        nodes = self.roster.online(grid)
        messages = []
        for name in names:
            if name in nodes:
                packed = questions[name]
                told = packed._replace(about={**self._told.get(name, {}), **packed.about})
                messages.append((name, self._message(kind, nodes[name], told, server_round)))
        return messages

    def answer(self, reply: Message, name: str | None = None) -> Packed:
        """Return a site's answer to such a question; raise Refused if it is not usable."""
        return self._packed(reply, self._who(reply, name))

    def _message(self, kind: str, node: int, packed: Packed, server_round: int) -> Message:
        content = self.roster.write(kind, node, packed)
        return Message(content, node, MESSAGE_TYPES[kind], ttl=self._ttl, group_id=str(server_round))

    def _who(self, reply: Message, name: str | None) -> str:
        node = reply.metadata.src_node_id
        return name or self.roster.site(node) or f"node {node}"

    def _packed(self, reply: Message, name: str) -> Packed:
        """Read a reply; raise Refused if it is an error or says that the site cannot answer."""
        if reply.has_error():
            failed = reply.error.code in _APP_FAILED
            raise Refused(name, f"it did not answer: {one_line(reply.error.reason)}", again=True, failed=failed)
        try:
            packed = read(reply.content, self._most_bytes())
        except Malformed as problem:
            raise Refused(name, one_line(problem)) from problem
        if PROBLEM in packed.about:
            again = packed.about.get(FINAL) is not True
            raise Refused(name, one_line(packed.about[PROBLEM]), again=again, failed=True)
        return packed

    def summary(self) -> None:
        """Report what runs."""
        names = ", ".join(self.server.names)
        self._say(f"{self.server.algorithm.name}, {self.server.problem.layout.size} parameters, sites {names}")

    def _take(self, arrays: ArrayRecord) -> None:
        """Continue from another point if a wrapper of this strategy changed what was aggregated."""
        own = self.arrays
        if any(arrays[name].data != array.data for name, array in own.items()):
            layout = self.server.problem.layout
            vectors = read_vectors(layout, {name: array.numpy() for name, array in arrays.items()})
            self.state = replace(self.state, server={**self.state.server, "z": vectors["z"].to(layout.dtype)})
            self.host.went_on(self.state)

    def _most_bytes(self) -> int:
        """Return a size that no answer exceeds: a few vectors and the running statistics."""
        statistics = size_in_bytes(self.server.problem.statistics)
        return _MOST_VECTORS * 8 * self.server.problem.layout.size + 2 * statistics + _SPARE_BYTES


class Refused(Exception):  # noqa: N818 - reads as what happened
    """An answer without a usable update.

    again: asking once more may help. failed: the site tried and failed.
    """

    def __init__(self, name: str, reason: str, *, again: bool = False, failed: bool = False) -> None:
        super().__init__(reason)
        self.refusal = Refusal(name, reason)
        self.again = again
        self.failed = failed
