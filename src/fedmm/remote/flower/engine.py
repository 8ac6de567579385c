"""Rounds over a Flower grid: sites that were away are waited for, and asked again when they are back."""

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
"""The share of the time of the last answers after which the next ones are looked for, and how many times as long as a
look takes the pause after it is."""

T = TypeVar("T")
Send = Callable[[Iterable[str]], list[tuple[str, Message]]]
"""Messages for those of some sites that are connected."""


@dataclass
class Patience:
    """How long a round waits.

    seconds: for those who are invited, connected or not; whoever has not answered then is left out of the round.
    tries: how often a site that cannot answer is asked in a round. pause: seconds between two looks for answers.
    meeting: seconds between two looks for sites that are new or back. retry_after: until a site is asked again.
    """

    seconds: float = 600.0
    tries: int = 3
    pause: float = 0.05
    meeting: float = 2.0
    retry_after: float = 2.0


@dataclass
class FlowerEngine:
    """Runs a strategy's rounds over a grid.

    A round is asked of a site again where its node died or came back: since a site goes on from the state that the
    server names, what it computes twice is the same, and counts once.
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
        """The answers to a question, of those sites that are connected and answer in time."""
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
        """What opens the sum of these updates, of those who sent them: first their word on whose it is."""
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
        """What arrives of those who are asked until all have answered or the time is over, and the seconds to send."""
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
        """Looks keep the SuperLink from its work: the first comes when most of the time of the last answers is over."""
        rest = min(_MOST_OF * self._usual - (self.clock() - began), self.patience.meeting)
        return max(rest, self.patience.pause, _LESS_OFTEN * self._look)

    def _forget_restarted(self, waiting: dict[str, _Asked]) -> None:
        """A site that came online again since it was asked has lost the question with its former process."""
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
            waiting[name].next_try = now + self.patience.retry_after  # if it is not connected, or cannot be sent to
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
        """A round's seconds: what the slowest site did, what was sent, and what is left for Flower itself."""
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

    start_up: until work could begin, rows and states loaded. training: the local steps, and the new state on disk.
    """

    start_up: float
    training: float

    @property
    def own(self) -> float:
        """What is not Flower's."""
        return self.start_up + self.training

    @classmethod
    def of(cls, about: About) -> Spent:
        """From what a site says."""
        handled, trained = (_number(about.get(what)) for what in ("handled", "trained"))
        return cls(max(0.0, handled - trained), trained)


@dataclass
class _Asked:
    """Where a site stands in a round."""

    message: str | None = None
    since: str = ""
    failures: int = 0
    next_try: float = 0.0
    reason: str = ""
    done: bool = False
    ended: bool = False


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) else 0.0
