"""A site's process: nodes of a SuperLink that answer its server's signed questions and do all work here.

Nothing in a message is executed, no other process is started and no port is opened. Several sites may share a process;
they work one at a time.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from fedmm.core.errors import FedmmError, Say, require
from fedmm.core.files import write_text
from fedmm.remote.flower.envelope import Verify, seal, unseal
from fedmm.remote.flower.fleet import BEAT, FleetNode, Question, TurnedAway, Unreachable
from fedmm.remote.packed import FINAL, INTRODUCE, NAME, PROBLEM, TRAIN, Malformed, Packed, contents, one_line
from fedmm.sites.compatibility import clock_problem
from fedmm.sites.config import SiteConfig
from fedmm.sites.credentials.certificates import site_context
from fedmm.sites.credentials.keys import read_node_key, verifier
from fedmm.sites.owner.ledger import NotAllowed

if TYPE_CHECKING:
    from fedmm.sites.work import SiteWork

_NUMBER = "node.id"
_SHORT, _LONG, _LONGEST, _LESS_OFTEN = 0.05, 5.0, 15.0, 4.0
_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 10.0
_UNAUTHORISED = 401

Work = Callable[[str, Packed], Packed]
"""Answers a question of a given kind; see :class:`fedmm.sites.work.SiteWork`."""
Note = Callable[[str, str], None]
"""Logs the kind of a message that is not the coordinator's, and why it was refused."""


class SiteNode:
    """One site's node. work: answers its questions. alone: lock held while it works, shared by the nodes of a process.

    note: logs what is refused before any work.
    """

    def __init__(
        self, config: SiteConfig, work: Work, say: Say, alone: threading.Lock, note: Note = lambda kind, sentence: None
    ) -> None:
        self._config = config
        self._work = work
        self._say = say
        self._alone = alone
        self._note = note
        self._verify = _verifier(config)
        self._ending = threading.Event()
        self._lost = threading.Event()
        self._connection: FleetNode | None = None
        self._told = ""

    def run(self) -> None:
        """Answer questions until :meth:`end`; retry whatever goes wrong between the site and its SuperLink."""
        pause = _FIRST_PAUSE
        while not self._ending.is_set():
            try:
                self._serve(self._connect())
            except Unreachable as problem:
                self._tell(f"the SuperLink at {self._config.superlink.address} cannot be reached ({problem}); retrying")
            except TurnedAway as problem:
                self._tell(f"the SuperLink turns this site away: {_reason(problem)}; retrying")
            except Exception:
                self._say(f"the node failed and restarts:\n{traceback.format_exc()}")
            else:
                pause = _FIRST_PAUSE
            finally:
                self._disconnect()
            self._ending.wait(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    def beat(self) -> None:
        """Send the SuperLink a heartbeat, also while the site works."""
        connection = self._connection
        if connection is None or not connection.number:
            return
        with suppress(Unreachable, TurnedAway):
            if not connection.beat():
                self._lost.set()

    def end(self) -> None:
        """Make :meth:`run` return."""
        self._ending.set()

    def _connect(self) -> FleetNode:
        config, link = self._config, self._config.superlink
        self._lost.clear()
        context = None if link.insecure else site_context(config)
        key = None if link.insecure else read_node_key(config.path(link.key), "superlink.key")
        connection = FleetNode(link.address, context, key)
        try:
            number = connection.activate(_former(config.state) if key is not None else 0)
        except BaseException:
            connection.close()
            raise
        write_text(config.state / _NUMBER, f"{number}\n")
        self._connection, self._told = connection, ""
        self._say(f"site {config.site.name} is node {number} of {link.address}")
        return connection

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _serve(self, connection: FleetNode) -> None:
        """Answer questions while the SuperLink knows the node; wait if it cannot be reached."""
        wait = _Polling()
        while not self._ending.is_set() and not self._lost.is_set():
            began = time.perf_counter()
            try:
                question = connection.receive()
                self._told = ""
            except Unreachable as problem:
                self._tell(f"the SuperLink cannot be reached ({problem}); retrying")
                self._ending.wait(2.0)
                continue
            except Malformed as problem:
                self._say(f"refused: {one_line(problem, 1000)}")
                self._note("", str(problem))
                continue
            if question is None:
                self._ending.wait(wait.next(time.perf_counter() - began))
                continue
            wait.asked()
            began = time.perf_counter()
            answer = self.answer(question, connection.number)
            if question.kind == TRAIN:
                answer.about["handled"] = round(time.perf_counter() - began, 3)
            self._reply(connection, question, answer, time.perf_counter() - began)
            wait.answered()

    def answer(self, question: Question, number: int) -> Packed:
        """Return the site's answer, or the reason why there is none. number: of this node."""
        kind = question.kind
        try:
            envelope = unseal(question.records)
            if self._verify is not None:
                envelope.require_signed(kind, number, question.run, self._verify)
            self._say(f"{kind}: came {contents(envelope.packed.arrays)}")
            with self._alone:
                answer = self._work(kind, envelope.packed)
        except Malformed as problem:
            self._say(f"{kind}: refused: {one_line(problem, 1000)}")
            self._note(kind, str(problem))
            return Packed({}, {PROBLEM: str(problem)}, {})
        except FedmmError as problem:  # already reported and logged by the site
            final = {FINAL: True} if isinstance(problem, NotAllowed) else {}
            named = {NAME: self._config.site.name} if kind == INTRODUCE else {}
            return Packed({}, {PROBLEM: str(problem), **named, **final}, {})
        except Exception as problem:
            self._say(f"{kind}: failed:\n{traceback.format_exc()}")
            return Packed({}, {PROBLEM: f"it failed with {type(problem).__name__}; see the site's own log"}, {})
        self._say(f"{kind}: leaves {contents(answer.arrays)}; {_values(answer)}")
        return answer

    def _reply(self, connection: FleetNode, question: Question, answer: Packed, seconds: float) -> None:
        """Send an answer; drop it if it cannot be delivered, since the server asks again."""
        try:
            connection.reply(question, seal(answer), seconds)
        except (Unreachable, TurnedAway) as problem:
            self._say(f"{question.kind}: the answer was not delivered: {problem}")

    def _tell(self, line: str) -> None:
        """Report a line unless it repeats the last one."""
        if line != self._told:
            self._told = line
            self._say(line)


class _Polling:
    """When to poll for the next question: after 60 % of the last wait for one, then ever less often.

    Polls take time from a SuperLink that it needs for messages: a hundred sites that polled once a second would use it
    up. So the longer the last poll took, the less often a node polls.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._since = clock()
        self._gap = 1.0

    def asked(self) -> None:
        """Note that a question has arrived."""
        self._gap = min(self._clock() - self._since, 60.0)

    def answered(self) -> None:
        """Note that its answer was sent."""
        self._since = self._clock()

    def next(self, took: float = 0.0) -> float:
        """Return the seconds until the next poll. took: seconds that the last one took."""
        passed = self._clock() - self._since
        due = 0.6 * self._gap - passed if passed < 0.5 * self._gap else 0.1 * passed
        return min(max(min(due, _LONG), _SHORT, _LESS_OFTEN * took), _LONGEST)


def run_sites(configs: Sequence[SiteConfig], say: Callable[[str, str], None]) -> None:
    """Run these sites in this process until it is told to end (SIGTERM, Ctrl-C, a closed terminal).

    say: called with a site's name and a line. Anything that could never work is refused at the start.
    """
    for config in configs:
        _require_ready(config)
    names = [config.site.name for config in configs]
    require(len(set(names)) == len(names), f"two of these files have the same site.name: {', '.join(sorted(names))}")
    with ExitStack() as held:
        for config in configs:
            held.enter_context(config.lock())
        from fedmm.sites.work import SiteWork  # noqa: PLC0415 - torch

        alone = threading.Lock()
        nodes = [_node(config, SiteWork, say, alone) for config in configs]
        _run(nodes)
        for name in names:
            say(name, f"site {name} has stopped")


def _node(config: SiteConfig, work: type[SiteWork], say: Callable[[str, str], None], alone: threading.Lock) -> SiteNode:
    def told(line: str) -> None:
        say(config.site.name, line)

    site = work(config, told)
    return SiteNode(config, site, told, alone, site.note_refusal)


def _run(nodes: Sequence[SiteNode]) -> None:
    ending = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ending.set())
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # as nohup has it
        signal.signal(signal.SIGHUP, lambda *_: ending.set())
    threads = [threading.Thread(target=node.run, daemon=True) for node in nodes]
    for thread in threads:
        thread.start()
    while not ending.wait(BEAT / 2):
        for node in nodes:
            node.beat()
    for node in nodes:
        node.end()
    deadline = time.monotonic() + 10.0
    for thread in threads:  # one that still works is left: its state is on disk
        thread.join(max(0.0, deadline - time.monotonic()))


def _require_ready(config: SiteConfig) -> None:
    """Raise FedmmError for what no retry could fix."""
    link = config.superlink
    if not link.insecure:
        read_node_key(config.path(link.key), "superlink.key")
        site_context(config)
    _verifier(config)
    try:
        config.state.mkdir(parents=True, exist_ok=True)
        config.state.chmod(0o700)
        config.lock_file.touch(mode=0o600)
    except OSError as problem:
        raise FedmmError(f"nothing can be written to site.state, {config.state}: {problem.strerror}") from problem


def _verifier(config: SiteConfig) -> Verify | None:
    link = config.superlink
    return verifier(config.path(link.coordinator), "superlink.coordinator") if link.coordinator else None


def _former(state: Path) -> int:
    """Return the node number of an earlier process; 0 if there is none."""
    try:
        return int((state / _NUMBER).read_text(encoding="ascii"))
    except (OSError, ValueError):
        return 0


def _reason(problem: TurnedAway) -> str:
    return (clock_problem(problem.date) if problem.status == _UNAUTHORISED else "") or str(problem)


def _values(answer: Packed) -> str:
    values = ", ".join(f"{name} = {value!r:.300}" for name, value in {**answer.about, **answer.metrics}.items())
    return f"values {values}"


def say_to_stderr(name: str, line: str) -> None:
    """Write a site's line to the log of its process."""
    sys.stderr.write(f"{time.strftime('%H:%M:%S')} {name}: {line}\n")
    sys.stderr.flush()
