"""Rounds over a Flower grid: absent sites are waited for, and asked again when they return."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

from flwr.app import Message
from flwr.serverapp import Grid

from fedmm.core.engine import FederatedState, Refusal, RoundRecord
from fedmm.core.errors import Say, require
from fedmm.engines.masking import Opening, require_all
from fedmm.engines.messages import Update
from fedmm.remote.flower.strategy import MinimaxStrategy, Refused
from fedmm.remote.packed import CONFIRM, MEASURE, OPEN, PROBLEM, About, Packed
from fedmm.remote.packing import pack_sum_question, read_opening, read_word

_MOST_OF, _LESS_OFTEN = 0.6, 3.0
"""When to poll for answers: after this share of the last answers' time, then at pauses of this many times a poll."""

T = TypeVar("T")
Send = Callable[[Iterable[str]], list[tuple[str, Message]]]
"""Returns messages for those of the given sites that are connected."""


@dataclass
class Patience:
    """How long a round waits.

    seconds: for the answers of invited sites, connected or not; the round closes without those that are later.
    tries: how often a site that fails to answer is asked per round. pause: least seconds between polls for answers.
    meeting: seconds between polls for new and returning sites. retry_after: seconds until a site is asked again.
    """

    seconds: float = 600.0
    tries: int = 3
    pause: float = 0.05
    meeting: float = 2.0
    retry_after: float = 2.0


@dataclass
class FlowerEngine:
    """Runs a strategy's rounds over a grid.

    A site whose node died or reconnected is asked again in the same round: it starts from the state that the server
    names, so a repeated answer is the same, and it counts once.
    """

    strategy: MinimaxStrategy
    grid: Grid
    patience: Patience = field(default_factory=Patience)
    say: Say = lambda line: None
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    _next_meeting: float = 0.0
    _usual: float = 0.0
    _look: float = 0.0

    def start(self) -> FederatedState:
        return self.strategy.server.start()

    def run_round(self, state: FederatedState) -> tuple[FederatedState, RoundRecord]:
        strategy = self.strategy
        strategy.state = state
        number = state.round + 1
        invited = [name for name in strategy.open() if name not in strategy.roster.late]
        updates, refusals, sending = self._gather(
            invited, lambda names: strategy.invite(number, {}, self.grid, names), strategy.read
        )
        strategy.close(updates, refusals, self._open if strategy.server.terms.secure_sum else None)
        assert strategy.record is not None
        self.say(self._breakdown(strategy.record, sending))
        return strategy.state, strategy.record

    def ask(self, kind: str, questions: Mapping[str, Packed]) -> dict[str, Packed]:
        """Return the connected sites' answers to a question, a ``PROBLEM`` in place of one that fails or is late."""
        require(kind == MEASURE, f"sites are asked to measure, not to {kind}")
        online = self.strategy.roster.online(self.grid)
        answers, refusals = self._answers(
            kind, {name: question for name, question in questions.items() if name in online}
        )
        silent = {refusal.client: Packed({}, {PROBLEM: refusal.reason}, {}) for refusal in refusals}
        return {**silent, **answers}

    def _answers(self, kind: str, questions: Mapping[str, Packed]) -> tuple[dict[str, Packed], list[Refusal]]:
        strategy, number = self.strategy, self.strategy.state.round
        answers, refusals, _ = self._gather(
            list(questions),
            lambda names: strategy.ask(number, questions, self.grid, names, kind),
            lambda reply, name: (name, strategy.answer(reply, name)),
        )
        return {name: answer for name, answer in answers if name is not None}, refusals

    def _open(self, updates: Mapping[str, Update]) -> dict[str, Opening]:
        """Return the senders' openings of the sum of these updates, after they have confirmed whose it is."""
        usual, state = self._usual, next(iter(updates.values()))

        def asked(kind: str, words: Mapping[str, bytes] | None, read: Callable[[Packed], T | None]) -> dict[str, T]:
            question = pack_sum_question(state.session, state.round, updates, words)
            answers, refusals = self._answers(kind, dict.fromkeys(updates, question))
            for refusal in refusals:
                self.say(f"{refusal.client} does not help to open the sum: {refusal.reason}")
            given = {name: read(answer) for name, answer in answers.items()}
            return {name: value for name, value in given.items() if value is not None}

        words = asked(CONFIRM, None, read_word)
        require_all(words, updates)
        openings = asked(OPEN, words, read_opening)
        self._usual = usual
        return openings

    def _gather(
        self, invited: list[str], send: Send, read: Callable[[Message, str | None], T]
    ) -> tuple[list[T], list[Refusal], float]:
        """Collect answers until all are there or time is up; return them, the refusals and the seconds of transfer."""
        began = self.clock()
        waiting: dict[str, _Asked] = {name: _Asked() for name in invited}
        arrived: list[T] = []
        refusals: list[Refusal] = []
        sending = 0.0
        while True:
            if self.clock() >= self._next_meeting:
                self._meet()
                self._next_meeting = self.clock() + self.patience.meeting
            self._forget_restarted(waiting)
            sending += self._ask(waiting, send)
            sending += self._hear(waiting, arrived, refusals, read)
            late = self.clock() - began >= self.patience.seconds
            if late or all(asked.done for asked in waiting.values()):
                break
            self.sleep(self._until_next_look(began))
        self._usual = self.clock() - began
        refusals += [
            Refusal(name, asked.reason or f"it did not answer within {self.patience.seconds:g} seconds")
            for name, asked in waiting.items()
            if not asked.done or asked.ended
        ]
        return arrived, refusals, sending

    def _until_next_look(self, began: float) -> float:
        """Return the pause before the next poll; polls slow the SuperLink, so the first comes late."""
        rest = min(_MOST_OF * self._usual - (self.clock() - began), self.patience.meeting)
        return max(rest, self.patience.pause, _LESS_OFTEN * self._look)

    def _forget_restarted(self, waiting: dict[str, _Asked]) -> None:
        """Ask sites again that came online since they were asked: their former process lost the question."""
        for name, asked in waiting.items():
            if asked.message and self.strategy.roster.since.get(name, asked.since) != asked.since:
                asked.message, asked.next_try = None, 0.0
                asked.failures += 1
                asked.reason = "its process ended while it worked"
                asked.done = asked.ended = asked.failures >= self.patience.tries
                self.say(f"{name}: {asked.reason}; it is {'left out' if asked.done else 'asked again'}")

    def _meet(self) -> None:
        self.strategy.roster.online(self.grid)
        self.strategy.roster.ask_strangers(self.grid, self.strategy.introduction)
        self.strategy.roster.hear_strangers(self.grid)

    def _ask(self, waiting: dict[str, _Asked], send: Send) -> float:
        now = self.clock()
        due = [
            name for name, asked in waiting.items() if not asked.done and not asked.message and asked.next_try <= now
        ]
        for name in due:
            waiting[name].next_try = now + self.patience.retry_after  # in case it is not connected, or sending fails
        messages = send(due) if due else []
        if not messages:
            return 0.0
        numbers = self.grid.push_messages([message for _, message in messages])
        for (name, _), message in zip(messages, numbers, strict=False):
            waiting[name].message = message or None
            waiting[name].since = self.strategy.roster.since.get(name, "")
        return self.clock() - now

    def _hear(
        self,
        waiting: dict[str, _Asked],
        arrived: list[T],
        refusals: list[Refusal],
        read: Callable[[Message, str | None], T],
    ) -> float:
        asked = {each.message: name for name, each in waiting.items() if each.message}
        if not asked:
            return 0.0
        now = self.clock()
        replies = list(self.grid.pull_messages(list(asked)))
        took = self.clock() - now
        self._look, took = (self._look, took) if replies else (took, 0.0)
        for reply in replies:
            name = asked.get(reply.metadata.reply_to_message_id)
            question = waiting[name] if name is not None else _Asked()
            question.message = None
            try:
                answer = read(reply, name)
            except Refused as problem:
                question.failures += problem.failed
                if problem.again and question.failures < self.patience.tries:
                    question.reason, question.next_try = problem.refusal.reason, now + self.patience.retry_after
                    self.say(f"{problem.refusal.client}: {problem.refusal.reason}; it is asked again")
                else:
                    question.done = True
                    refusals.append(problem.refusal)
                continue
            question.done = True
            arrived.append(answer)
        return took

    def _breakdown(self, record: RoundRecord, sending: float) -> str:
        """Describe a round's seconds: the slowest site's work, transfer, and the rest, which is Flower's."""
        spent = [(name, Spent.of(about)) for name, about in self.strategy.timings.items()]
        if not spent:
            return f"round {record.round}: {record.seconds:.2f} s, nobody answered"
        name, slowest = max(spent, key=lambda item: item[1].own)
        floor = max(0.0, record.seconds - slowest.own - sending)
        return (
            f"round {record.round}: {record.seconds:.2f} s = Flower {floor:.2f} + start-up {slowest.start_up:.2f} + "
            f"training {slowest.training:.2f} + transfer {sending:.2f}, slowest {name}; {record.clients} counted, "
            f"{record.bytes_down} bytes down, {record.bytes_up} up"
        )


class Spent(NamedTuple):
    """A site's seconds in a round.

    start_up: loading rows and states. training: the local steps, and writing the new state to disk.
    """

    start_up: float
    training: float

    @property
    def own(self) -> float:
        """The seconds not spent in Flower."""
        return self.start_up + self.training

    @classmethod
    def of(cls, about: About) -> Spent:
        """Read the seconds from a site's report."""
        handled, trained = (_number(about.get(what)) for what in ("handled", "trained"))
        return cls(max(0.0, handled - trained), trained)


@dataclass
class _Asked:
    """A site's status in a round."""

    message: str | None = None
    since: str = ""
    failures: int = 0
    next_try: float = 0.0
    reason: str = ""
    done: bool = False
    ended: bool = False


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) else 0.0
