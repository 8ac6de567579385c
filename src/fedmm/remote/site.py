"""A site that answers packed questions from an engine in another process."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from fedmm.core.compression import readable
from fedmm.core.layout import Layout
from fedmm.core.problem import Statistics
from fedmm.engines.messages import NEVER, Invitation, Update
from fedmm.engines.worker import ClientMemory, Kept, Worker
from fedmm.remote.packed import Packed
from fedmm.remote.packing import pack_update, read_invitation


@dataclass(frozen=True)
class Site:
    """A client that runs elsewhere: it answers invitations, and its memory survives whatever happens to an answer.

    statistics: the running statistics to start from.
    """

    worker: Worker
    memory: ClientMemory
    statistics: Statistics = field(default_factory=dict)

    def answer(self, invitation: Invitation) -> Update:
        """Work, and store the new state beside the one that the server counted, before anything is sent."""
        kept = self.memory.state_for(invitation.counted) or self._begun(invitation)
        if kept is None or not readable(invitation.travelling, kept.own):
            return Update(invitation.round, self.worker.name, {}, session=invitation.session, lost=True)
        worked = self.worker.run(
            invitation.round,
            invitation.travelling,
            kept.own,
            invitation.statistics or kept.statistics,
            invitation.session,
            invitation.importance,
        )
        self.memory.remember(invitation.round, worked.kept)
        return worked.answer(self.worker.name, invitation)

    def _begun(self, invitation: Invitation) -> Kept | None:
        """Create the state of a site that has none for this invitation, new or restored from the server's sums."""
        algorithm, sent = self.worker.algorithm, invitation.travelling
        if "z" not in sent:  # codes, which mean nothing without the point they refer to
            return None
        if invitation.counted == NEVER:
            own = algorithm.init_client(sent["z"])
        elif invitation.totals is not None or not algorithm.accumulates:
            own = algorithm.restored_client(sent, invitation.totals or {}, self.worker.coefficients(invitation.round))
        else:
            return None
        kept = Kept(own, self.statistics)
        self.memory.remember(invitation.counted, kept)
        return kept


Mask = Callable[[Invitation, Update], Update]


def answer_question(site: Site, layout: Layout, question: Packed, mask: Mask | None = None) -> Packed:
    """Answer an invitation, with the seconds it took and, unless updates are hidden, the norm of the dual.

    mask: hides the update among the others of the round.
    """
    began = time.perf_counter()
    invitation = read_invitation(layout, question.arrays, question.about)
    update = site.answer(invitation)
    if mask is not None:
        update = mask(invitation, update)
    packed = pack_update(layout, update)
    kept = site.memory.held.get(invitation.round)
    if kept is not None and "dual" in kept.own and not site.worker.terms.hides_updates:
        packed.about["dual_norm"] = float(kept.own["dual"].norm())
    packed.about["trained"] = round(time.perf_counter() - began, 3)
    return packed
