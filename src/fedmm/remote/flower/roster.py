"""Which node each site answers from: Flower's node numbers are random, so sites are known by name."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from fedmm.core.errors import Say
from fedmm.remote.flower.envelope import plain, read
from fedmm.remote.packed import INTRODUCE, MESSAGE_TYPES, NAME, PROBLEM, Malformed, Packed, one_line

Write = Callable[[str, int, Packed], RecordDict]
"""Writes a question of a given kind to a node."""

_MOST_BYTES = 1 << 16
_GRACE = 5.0
"""Seconds to wait for connected sites that were asked, once enough have introduced themselves."""


@dataclass
class Roster:
    """The sites that have introduced themselves.

    names: who may take part; anyone if it is empty.
    keys: the public key of each site's node, if nodes have keys, so that no site can speak for another.
    admit: returns why a site with this introduction cannot take part, worded to follow its name; empty if it can.
    ttl: seconds for which a question is valid. quiet: seconds before a node that was turned away is asked again.
    late: sites that need not be there yet, until they introduce themselves. refused: by site, why it was turned away.
    write: writes the messages. nodes, cards: each site's node, and its introduction.
    since: when each site last came online; a change means that its process is new. connected: the sites online at the
    last poll. on_change: called when these change. turned_away: by node, why it was not admitted.
    """

    names: Sequence[str] = ()
    keys: Mapping[str, bytes] = field(default_factory=dict)
    say: Say = lambda line: None
    ttl: float = 60.0
    write: Write = plain
    quiet: float = 60.0
    admit: Callable[[str, Packed], str] = lambda name, card: ""
    late: set[str] = field(default_factory=set)
    refused: dict[str, str] = field(default_factory=dict)
    nodes: dict[str, int] = field(default_factory=dict)
    cards: dict[str, Packed] = field(default_factory=dict)
    since: dict[str, str] = field(default_factory=dict)
    turned_away: dict[int, str] = field(default_factory=dict)
    connected: frozenset[str] = frozenset()
    on_change: Callable[[], None] = lambda: None
    _asked: dict[str, int] = field(default_factory=dict)
    _silent_until: dict[int, float] = field(default_factory=dict)

    @property
    def missing(self) -> list[str]:
        """The sites that should be there but have not introduced themselves."""
        return [name for name in self.names if name not in self.nodes]

    @property
    def asking(self) -> bool:
        """Whether a node that was asked to introduce itself has not answered yet."""
        return bool(self._asked)

    def site(self, node: int) -> str | None:
        """Return the site of a node; None if it has none."""
        return next((name for name, own in self.nodes.items() if own == node), None)

    def online(self, grid: Grid) -> dict[str, int]:
        """Return the nodes of the connected sites, and update ``since`` and ``connected``."""
        since = {node.node_id: getattr(node, "last_activated_at", "") for node in grid.get_nodes()}
        connected = {name: node for name, node in self.nodes.items() if node in since}
        self.since.update({name: since[node] for name, node in connected.items()})
        before, self.connected = self.connected, frozenset(connected)
        if before != self.connected:
            self.on_change()
        return connected

    def forget(self) -> None:
        """Forget all introductions, so that every site introduces itself again."""
        self.nodes.clear()
        self.cards.clear()

    def ask_strangers(self, grid: Grid, about: Packed) -> None:
        """Ask every connected node without an entry to introduce itself."""
        now = time.monotonic()
        known = {*self.nodes.values(), *self._asked.values()}
        strangers = [
            node for node in grid.get_node_ids() if node not in known and self._silent_until.get(node, 0.0) <= now
        ]
        messages = [
            Message(self.write(INTRODUCE, node, about), node, MESSAGE_TYPES[INTRODUCE], ttl=self.ttl)
            for node in strangers
        ]
        for number, node in zip(grid.push_messages(messages) if messages else (), strangers, strict=True):
            self._asked[number] = node

    def hear_strangers(self, grid: Grid) -> None:
        """Admit the nodes that have answered, or turn them away."""
        if not self._asked:
            return
        keys = {node.node_id: getattr(node, "public_key", b"") for node in grid.get_nodes()}
        for reply in grid.pull_messages(list(self._asked)):
            node = self._asked.pop(reply.metadata.reply_to_message_id)
            reason = self._entered(node, keys.get(node, b""), reply)
            self.turned_away.pop(node, None)
            if reason:
                self.turned_away[node] = reason
                self._silent_until[node] = time.monotonic() + self.quiet
                self.say(f"node {node} is turned away: {reason}")

    def _entered(self, node: int, key: bytes, reply: Message) -> str:
        """Admit a node's site; return why not, or an empty string."""
        if reply.has_error():
            return f"it did not say who it is ({one_line(reply.error.reason)})"
        try:
            card = read(reply.content, _MOST_BYTES)
        except Malformed as problem:
            return one_line(problem)
        name = card.about.get(NAME)
        if PROBLEM in card.about:
            said = str(name) if not self.keys and name in self.names else ""
            owner = next((site for site, own in self.keys.items() if own and own == key), said)
            return self._turned_away(owner, one_line(card.about[PROBLEM]))
        if not isinstance(name, str) or not name:
            return "it did not say which site it is"
        if self.names and name not in self.names:
            return f"the site {one_line(name)!r} is not one of {', '.join(self.names)}"
        if self.keys and self.keys.get(name) != key:
            return self._turned_away(name, f"it calls itself {name!r}, but does not hold that site's key")
        reason = one_line(self.admit(name, card))
        if reason:
            return self._turned_away(name, reason)
        self.refused.pop(name, None)
        self.late.discard(name)
        before = self.nodes.get(name)
        self.nodes[name], self.cards[name] = node, card
        moved = "" if before is None else f", until now at node {before}"
        self.say(f"site {name!r} is at node {node}{moved}")
        return ""

    def _turned_away(self, name: str, reason: str) -> str:
        if name:
            self.refused[name] = reason
        return reason


def wait_for_sites(
    grid: Grid,
    roster: Roster,
    about: Packed,
    *,
    timeout: float,
    say: Say = lambda line: None,
    enough: int | None = None,
) -> list[str]:
    """Wait until all sites have introduced themselves or time is up; return those that are missing.

    enough: this many sites suffice; any asked by then get a few more seconds to answer.
    """
    deadline, told, quorum = time.monotonic() + timeout, "", False
    while True:
        roster.ask_strangers(grid, about)
        roster.hear_strangers(grid)
        missing, now = roster.missing, time.monotonic()
        if enough is not None and not quorum and len(roster.nodes) >= enough:
            deadline, quorum = min(deadline, now + _GRACE), True
        if not missing or now >= deadline or (quorum and not roster.asking):
            return missing
        waiting = f"waiting for {', '.join(missing)}"
        if waiting != told:
            say(waiting)
            told = waiting
        time.sleep(0.5)


# Questions before training: each site is asked once, and again if Flower reports an error -----------------------------

_TRIES = 3


def ask_sites(
    grid: Grid,
    roster: Roster,
    kind: str,
    questions: Mapping[str, Packed],
    *,
    seconds: float,
    most_bytes: int,
) -> dict[str, Packed]:
    """Return the answers by site, with the reason under ``PROBLEM`` in place of one that is missing or unreadable.

    seconds: how long to wait for answers. most_bytes: of an answer's arrays.
    """
    deadline = time.monotonic() + seconds
    answers = {name: _problem(f"it did not answer within {seconds:g} seconds") for name in questions}
    waiting, asked = dict.fromkeys(questions, _TRIES), dict[str, str]()
    while True:
        nodes = roster.online(grid)
        due = [name for name in waiting if name in nodes and name not in asked.values()]
        messages = [
            Message(
                roster.write(kind, nodes[name], questions[name]), nodes[name], MESSAGE_TYPES[kind], ttl=seconds + 1.0
            )
            for name in due
        ]
        for number, name in zip(grid.push_messages(messages) if messages else (), due, strict=False):
            if number:
                asked[number] = name
        for reply in grid.pull_messages(list(asked)) if asked else ():
            name = asked.pop(reply.metadata.reply_to_message_id)
            waiting[name] -= 1
            answers[name] = _read(reply, most_bytes)
            if not reply.has_error() or not waiting[name]:
                del waiting[name]
        if not waiting or time.monotonic() >= deadline:
            return answers
        time.sleep(0.2)


def _read(reply: Message, most_bytes: int) -> Packed:
    if reply.has_error():
        return _problem(f"it did not answer: {one_line(reply.error.reason)}")
    try:
        packed = read(reply.content, most_bytes)
    except Malformed as problem:
        return _problem(one_line(problem))
    return _problem(one_line(packed.about[PROBLEM])) if PROBLEM in packed.about else packed


def _problem(reason: str) -> Packed:
    return Packed({}, {PROBLEM: reason}, {})
