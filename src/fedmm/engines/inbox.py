"""Checks on the updates of a round: which ones a server accepts, and why it refuses the others."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch
from torch import Tensor

from fedmm.core.algorithm import Algorithm, Coefficients, State
from fedmm.core.compression import decode_upload
from fedmm.core.engine import Norms, Refusal
from fedmm.core.errors import Diverged
from fedmm.core.federation import Terms
from fedmm.core.layout import Layout
from fedmm.core.problem import Statistics
from fedmm.engines.messages import Invitation, Update


class Reports(NamedTuple):
    """The numbers that every update must report.

    unsent: the vectors that are not sent, in a round whose updates hold only numbers. dtype: of the vectors.
    """

    names: tuple[str, ...] = ()
    unsent: tuple[str, ...] = ()
    dtype: torch.dtype = torch.float32


def too_large(dtype: torch.dtype) -> float:
    """Return the magnitude from which a reported number is refused, because its square would overflow."""
    return math.sqrt(torch.finfo(dtype).max)


class Inbox:
    """Collects the updates of one round as they arrive; each is accepted once, or refused with a reason.

    invitations: the round's invitations by client. like, statistics: templates of an upload as sent and of running
    statistics (empty if these are not sent), with the expected names, shapes and dtypes. groups: each client's group,
    for ``max_update_ratio``. usual: the bound on unusually large norms. norms: by client, the norms of accepted
    updates, set by ``close`` if ``usual`` is given. reports: the numbers that updates report; in a round of reports
    alone, a client's point is taken to be the one it was sent.
    """

    def __init__(
        self,
        invitations: Mapping[str, Invitation],
        like: State,
        statistics: Statistics,
        terms: Terms,
        groups: Mapping[str, str],
        usual: UsualNorms | None = None,
        reports: Reports = Reports(),  # noqa: B008 - it is immutable
    ) -> None:
        self._invitations = invitations
        self._like = like
        self._reports = reports
        self._statistics = statistics
        self._terms = terms
        self._groups = groups
        self._usual = usual
        self.norms: dict[str, Norms] = {}
        self._norms: dict[str, Tensor] = {}
        self.accepted: dict[str, Update] = {}
        self.refused: list[Refusal] = []

    @property
    def private(self) -> bool:
        """Whether noise or masks hide updates."""
        return self._terms.hides_updates

    def put(self, update: Update) -> None:
        """Accept or refuse an update; raise ``Diverged`` if it is not finite and the terms say to stop."""
        reason = self._addressed(update) or self._malformed(update)
        if not reason:
            sent = self._invitations[update.client].sent
            if self._reports.unsent:
                update = replace(update, vectors=dict.fromkeys(self._reports.unsent, sent["z"]))
            else:
                update = replace(update, vectors=decode_upload(self._terms.uploads, update.vectors, sent))
            reason = self._unusable(update)
            if reason and self._terms.on_bad_update == "stop":
                raise Diverged(update.client, update.round + 1)
        if not reason and "z" in update.vectors:
            norm = self._norm(update)
            bound = self._terms.max_update_norm
            if bound and float(norm) > bound:
                reason = f"its update has norm {float(norm):.4g}, above the bound {bound:g}"
            self._norms[update.client] = norm
        if reason:
            self.refused.append(Refusal(str(update.client), reason))
        else:
            self.accepted[update.client] = update

    def close(self) -> None:
        """End the round: refuse updates whose norm is unusually large in their group or among all clients."""
        self._compare_within_groups()
        if self._usual and not self._reports.unsent:
            norms = {client: self._all_norms(self.accepted[client]) for client in sorted(self.accepted)}
            for client, reason in self._usual.refusals(norms).items():
                self.refused.append(Refusal(client, reason))
                del self.accepted[client]
            self.norms = {client: norms[client] for client in self.accepted}

    def _all_norms(self, update: Update) -> Norms:
        invitation = self._invitations[update.client]
        return update_norms(update.vectors, update.statistics, invitation.sent, invitation.statistics)

    def _compare_within_groups(self) -> None:
        ratio = self._terms.max_update_ratio
        if not ratio:
            return
        groups: dict[str, list[str]] = defaultdict(list)
        for client in sorted(self.accepted):
            groups[self._groups.get(client, "")].append(client)
        for members in groups.values():
            median = torch.stack([self._norms[client] for client in members]).quantile(0.5)
            for client in members:
                norm = self._norms[client]
                if bool(norm > ratio * median):
                    usual = f"{ratio:g} times the median {float(median):.4g} of its group"
                    self.refused.append(Refusal(client, f"its update has norm {float(norm):.4g}, above {usual}"))
                    del self.accepted[client]

    def sent_point(self, default: Tensor) -> Tensor:
        """Return the point that the round's clients start from; the default if nobody was invited."""
        return next((invitation.sent["z"] for invitation in self._invitations.values()), default)

    def _addressed(self, update: Update) -> str:
        """Return why this update does not answer an invitation of this round; empty if it does."""
        invitation = self._invitations.get(update.client)
        if invitation is None:
            return "it was not asked to take part"
        if update.round != invitation.round:
            return f"its update is for round {update.round + 1}, and this is round {invitation.round + 1}"
        if update.session != invitation.session:
            return "its update answers an invitation from before the server restarted"
        if update.lost:
            return f"it has lost {_state(invitation.counted)}"
        if update.base != invitation.counted:
            return f"it continued from {_state(update.base)}, not from {_state(invitation.counted)}"
        if update.client in self.accepted:
            return "it has already sent an update in this round"
        return ""

    def _malformed(self, update: Update) -> str:
        return (
            _unlike(update.vectors, {} if self._reports.unsent else self._like, "vector")
            or _unlike(update.statistics, self._statistics, "running statistic")
            or _find_misnamed(update.scalars, self._reports.names)
        )

    def _unusable(self, update: Update) -> str:
        """Return which value is not finite or too large; an overflowing norm counts only if bad updates are skipped."""
        for name, tensor in {**update.vectors, **update.statistics}.items():
            if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
                return f"its {name!r} is not finite"
        for name, number in update.scalars.items():
            if not abs(number) < too_large(self._reports.dtype):
                return (
                    f"its {name!r} is {number:.4g}, which is too large"
                    if math.isfinite(number)
                    else (f"its {name!r} is not finite")
                )
        if self._terms.on_bad_update == "skip":
            for name, vector in update.vectors.items():
                if not bool(vector.norm().isfinite()):
                    return f"its {name!r} is too large for its norm to be finite"
        return ""

    def _norm(self, update: Update) -> Tensor:
        difference = update.vectors["z"] - self._invitations[update.client].sent["z"]
        norm: Tensor = torch.linalg.vector_norm(difference)
        return norm


def _unlike(given: Mapping[str, object], like: Mapping[str, Tensor], what: str) -> str:
    """Return how the tensors differ from the template in names, shapes or dtypes; empty if they match."""
    for name in sorted(like.keys() - given.keys()):
        return f"its update lacks the {what} {name!r}"
    for name in sorted(map(str, given.keys() - like.keys())):
        return f"its update holds an unknown {what} {name!r}"
    for name, right in like.items():
        got = given[name]
        if not isinstance(got, Tensor):
            return f"its {name!r} is not a tensor but {type(got).__name__}"
        if got.shape != right.shape:
            return f"its {name!r} has shape {tuple(got.shape)}, not {tuple(right.shape)}"
        if got.dtype != right.dtype:
            return f"its {name!r} has dtype {got.dtype}, not {right.dtype}"
    return ""


def _find_misnamed(given: Mapping[str, float], names: tuple[str, ...]) -> str:
    """Return which reported number is missing or unknown; empty if the names match."""
    for name in sorted(set(names) - given.keys()):
        return f"its update lacks the number {name!r}"
    for name in sorted(map(str, given.keys() - set(names))):
        return f"its update holds an unknown number {name!r:.60}"
    return ""


def _state(counted: int) -> str:
    return f"its state after round {counted + 1}" if counted >= 0 else "its first state"


TIMES = 10.0
"""How many times the usual norm an update may have; chosen by benchmarks/norm_bound.py."""


@dataclass(frozen=True)
class UsualNorms:
    """Refuses an update whose norm exceeds ``times`` the median norm of the *other* clients' updates.

    An update is never compared with itself, so one client among two or three cannot raise its own bound.

    harmless: norms that are never refused, so that a client that sends almost nothing cannot have the others refused.
        If there is no other client to compare with, the bound is ``times`` this norm.
    known: by client, the norms of its last counted update, which stand in for clients that send nothing this round.
    steps: by client, its local steps per round; one that takes n times as many as another may go n times as far.
    """

    harmless: Norms
    known: Mapping[str, Norms] = field(default_factory=dict)
    times: float = TIMES
    steps: Mapping[str, int] = field(default_factory=dict)

    def refusals(self, norms: Mapping[str, Norms]) -> dict[str, str]:
        """Return, by client, why its update is refused, worded to follow the client's name. norms: of this round."""
        compared = {**self.known, **norms}
        found = {}
        for client, own in norms.items():
            for part, norm in own.items():
                others = self.others(client, part, compared)
                limit = self.limit(part, others)
                if not norm <= limit:
                    found[client] = f"its {_word(part)} has norm {norm:.4g}, above {limit:.4g}, {self._told(others)}"
                    break
        return found

    def others(self, client: str, part: str, compared: Mapping[str, Norms]) -> list[float]:
        """Return the other clients' norms of a part, sorted; those of clients with fewer local steps are scaled up."""
        return sorted(
            norms[part] * max(1.0, self.steps.get(client, 1) / self.steps.get(other, 1))
            for other, norms in compared.items()
            if other != client and part in norms
        )

    def _told(self, others: list[float]) -> str:
        if not others:
            return f"{self.times:g} times the norm of the initial model; {_ADVICE}"
        usual = f"{self.times:g} times the other clients' median ({others[len(others) // 2]:.4g})"
        return f"the larger of {usual} and the norm of the initial model; {_ADVICE}"

    def limit(self, part: str, others: list[float]) -> float:
        """Return the largest norm that a part of an update may have. others: the other clients' norms, sorted."""
        harmless = self.harmless.get(part, 0.0)
        return max(harmless, self.times * others[len(others) // 2]) if others else self.times * harmless


def update_norms(vectors: State, statistics: Statistics, sent: State, shared: Statistics) -> Norms:
    """Return the norms of what a client sends, relative to the point and statistics (``shared``) it was sent."""
    norms = {name: _norm(vector - sent["z"] if name == "z" else vector) for name, vector in vectors.items()}
    changes = [own.double() - shared[name].double() for name, own in statistics.items() if own.is_floating_point()]
    if changes:
        norms[_STATISTICS] = math.hypot(*map(_norm, changes))
    return norms


def harmless_norms(algorithm: Algorithm, layout: Layout, start: Tensor, statistics: Statistics, steps: int) -> Norms:
    """Return the norms of an update as long as the initial model; running statistics change by their initial norm."""
    c = Coefficients(algorithm.coefficients(layout, 0, 1), steps=layout.scalar(steps))
    sent = algorithm.broadcast(algorithm.init_server(start))
    own = algorithm.begin(start, sent, algorithm.init_client(start), c)
    if not algorithm.plain:
        along = -start / (steps * layout.join(algorithm.lr_min, algorithm.lr_max))  # moves by start in these steps
        _, own = algorithm.step(start, sent, own, along, along, c)
    upload, _ = algorithm.finish(2 * start, sent, own, c)
    began = {name: torch.zeros_like(each) for name, each in statistics.items()}
    return update_norms(upload, statistics, sent, began)


_ADVICE = (
    "a run that diverges looks the same: lower its step sizes, or set max_update_norm in [run] to a bound of your own"
)
_STATISTICS = "running statistics"


def _norm(vector: Tensor) -> float:
    return float(torch.linalg.vector_norm(vector, dtype=torch.float64))


def _word(part: str) -> str:
    return {"z": "update"}.get(part, part if part == _STATISTICS else f"{part!r}")
