"""A site's gate: every question passes it before any work, and every answer before it leaves."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedmm.core.errors import FedmmError
from fedmm.remote.packed import CONFIRM, MEASURE, OPEN, TRAIN, TUNING_QUESTIONS, TUNING_ROUNDS, Packed, one_line
from fedmm.sites.config import SiteConfig
from fedmm.sites.owner import ledger as events
from fedmm.sites.owner.audit import AuditLog
from fedmm.sites.owner.ledger import Ledger, RefusalCounts, permit
from fedmm.sites.owner.policy import (
    LONGEST,
    Asked,
    RunPlan,
    count_own_steps,
    policy_table,
    read_asked,
    read_plan,
    require_allowed,
    require_budget,
    require_room,
    require_run_name,
    require_steps,
)

_LONGEST_TEXT, _MOST_ARRAYS = 10_000, 1000
_TIMES = ("prepared", "trained", "handled")
"""The times that an answer reports: the only part that may differ if it is given again."""


@dataclass(frozen=True)
class Admitted:
    """A question that may be worked on. digest: of everything in it. plan: None if it needs none."""

    kind: str
    run: str
    asked: Asked
    plan: RunPlan | None
    digest: str


class Gate:
    """Applies the site's policy, and logs everything that arrives and leaves before anything leaves."""

    def __init__(self, config: SiteConfig) -> None:
        self.policy = config.policy
        self.ledger = Ledger()
        self._name = config.site.name
        self._log = AuditLog(config.audit, self.ledger.take)
        self._refusals = RefusalCounts(self.ledger)
        self._last: tuple[object, Asked] | None = None
        self._pending: list[tuple[str, dict[str, Any]]] = []
        self._begun: int | None = None

    def admit(self, kind: str, question: Packed) -> Admitted:
        """Read a question; raise NotAllowed if the policy does not allow it.

        It is logged before any work or, on a day with too many refusals, when it is answered.
        """
        self._pending, self._begun = [], None
        about = question.about
        run = about.get("run")
        require_run_name(run)
        asked, plan = self._asked(about.get("experiment")), about.get("plan")
        digest = _digest(kind, question._replace(about={**about, "experiment": asked.digest}))
        with self._log.alone():  # also reads what the owner approved meanwhile
            self._begun = self._log.size
            self._pending = self._note_question(kind, question, asked, digest)
            require_room(self.policy, self.ledger, about.get(TUNING_ROUNDS), about.get(TUNING_QUESTIONS))
            read = self._judge(kind, asked, plan, digest)
            if not self._refusals.exhausted:
                self._write_pending()
        return Admitted(kind, str(run), asked, read, digest)

    def _judge(self, kind: str, asked: Asked, plan: object, digest: str) -> RunPlan | None:
        require_allowed(self.policy, kind, asked.experiment, self._name)
        read = read_plan(plan, asked.experiment, self._name) if kind in (TRAIN, MEASURE, CONFIRM, OPEN) else None
        if read:
            require_steps(self.policy, count_own_steps(read, self._name))
        permit(
            not self.policy.require_approval or asked.digest in self.ledger.approved,
            f"the experiment {asked.digest[:16]} waits for the approval of this site's owner (fedmm deploy approve)",
        )
        again = digest in self.ledger.answers
        require_budget(self.policy, self.ledger, int(kind == TRAIN and not again))
        return read

    def require_epsilon(self, admitted: Admitted, precision: float) -> None:
        """Raise NotAllowed, before any work, for a round with too little noise.

        A round that was answered before is judged by its answer.
        """
        if admitted.digest not in self.ledger.answers:
            require_budget(self.policy, self.ledger, 1, precision)

    def release(self, admitted: Admitted, answer: Packed, precision: float) -> None:
        """Log what is about to leave; when this returns, the entry is on disk.

        precision: of the noise in the answer, infinite without noise. An answer that left before to the same question,
        bit for bit, reveals nothing new and does not count as another round.
        """
        digest = _digest("answer", answer._replace(about=_drop_times(answer.about)))
        with self._log.alone():
            again = self.ledger.was_sent(admitted.digest, digest)
            rounds = int(admitted.kind == TRAIN and bool(answer.arrays) and not again)
            precision = 0.0 if again else precision
            require_budget(self.policy, self.ledger, rounds, precision)
            self._write_pending()
            self._log.add(
                events.ANSWER,
                kind=one_line(admitted.kind, 40),
                run=admitted.run,
                experiment=admitted.asked.digest,
                question=admitted.digest,
                answer=digest,
                rounds=rounds,
                precision=_plain(precision),
                leaves=describe_arrays(answer.arrays),
                values={name: _plain(value) for name, value in {**answer.about, **answer.metrics}.items()},
            )

    def refuse(self, kind: str, question: Packed | None, sentence: str) -> None:
        """Log a refusal, if the disk allows it. question: None if it could not be read as the server's.

        Repeated ones are counted, see :class:`~fedmm.sites.owner.ledger.RefusalCounts`.
        """
        pending, self._pending = self._pending, []
        with suppress(FedmmError), self._log.alone():
            begun = self._log.size if question is None or self._begun is None else self._begun
            counted = self._refusals.count(kind, sentence, self._log.size - begun)
            if counted is None:
                return
            fields: dict[str, Any] = {}
            if question is not None and counted.details:
                fields = {"run": one_line(question.about.get("run")), **self._named(question.about.get("experiment"))}
                self._pending = pending
                self._write_pending()
                fields["bytes"] = self._log.size - begun + self._refusals.take_unwritten()
            self._log.add(
                events.REFUSAL, sync=False, kind=counted.kind, sentence=counted.sentence, times=counted.times, **fields
            )

    def _named(self, text: object) -> dict[str, str]:
        """Identify a refused experiment by its digest, or by the beginning of a text that is not one."""
        if self._last is not None and self._last[0] == text:
            return {"experiment": self._last[1].digest}
        return {"text": text[:_LONGEST_TEXT]} if isinstance(text, str) else {}

    def _asked(self, text: object) -> Asked:
        if self._last is None or self._last[0] != text:
            self._last = None
            self._last = (text, read_asked(text))
        return self._last[1]

    def _note_question(
        self, kind: str, question: Packed, asked: Asked, digest: str
    ) -> list[tuple[str, dict[str, Any]]]:
        """Return the log entries for a question: new parts in full, known ones by digest."""
        about, table = question.about, policy_table(self.policy)
        plan = about.get("plan")
        plan_digest, found = _plan_digest(plan), list[tuple[str, dict[str, Any]]]()
        if self.ledger.policy != table:
            found.append((events.POLICY, {"policy": table}))
        if asked.digest not in self.ledger.experiments:
            found.append((events.EXPERIMENT, {"experiment": asked.digest, "text": asked.text}))
        if plan_digest and plan_digest not in self.ledger.plans:
            found.append((events.PLAN, {"plan": plan_digest, "text": str(plan)[:LONGEST]}))
        fields = {
            "kind": one_line(kind, 40),
            "run": about.get("run"),
            "experiment": asked.digest,
            "plan": plan_digest,
            "round": _plain(about.get("round")),
            "session": _plain(about.get("session")),
            "question": digest,
            "came": _bound(describe_arrays(question.arrays)),
        }
        return [*found, (events.QUESTION, fields)]

    def _write_pending(self) -> None:
        pending, self._pending = self._pending, []
        for event, fields in pending:
            self._log.add(event, sync=False, **fields)


def _bound(arrays: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Truncate another machine's description of arrays to more than any model has."""
    named = [{**array, "name": one_line(array["name"])} for array in arrays[:_MOST_ARRAYS]]
    more = sum(array["bytes"] for array in arrays[_MOST_ARRAYS:])
    rest = {"name": f"{len(arrays) - _MOST_ARRAYS} more", "shape": [], "dtype": "", "bytes": more}
    return [*named, rest] if len(arrays) > _MOST_ARRAYS else named


def describe_arrays(arrays: Mapping[str, NDArray[Any]]) -> list[dict[str, Any]]:
    """Return name, shape, dtype and bytes of each array."""
    return [
        {"name": name, "shape": list(array.shape), "dtype": str(array.dtype), "bytes": int(array.nbytes)}
        for name, array in arrays.items()
    ]


def _digest(kind: str, packed: Packed) -> str:
    """Return the digest of everything in a message."""
    whole = hashlib.sha256()
    plain = [kind, *(sorted((name, repr(value)) for name, value in part.items()) for part in packed[1:])]
    whole.update(json.dumps([plain, describe_arrays(dict(sorted(packed.arrays.items())))]).encode())
    for _, array in sorted(packed.arrays.items()):
        whole.update(np.ascontiguousarray(array).tobytes())
    return whole.hexdigest()


def _plan_digest(plan: object) -> str:
    return hashlib.sha256(plan.encode(errors="surrogatepass")).hexdigest() if isinstance(plan, str) else ""


def _drop_times(about: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in about.items() if name not in _TIMES}


def _plain(value: Any) -> Any:
    """Convert a value for JSON: numbers that are not finite to None, text to one line."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    plain = value is None or isinstance(value, float) or (isinstance(value, int) and abs(value) < 1 << 64)
    return value if plain else one_line(value)
