"""A site that answers packed questions: what an engine in another process asks of it."""

from __future__ import annotations

import time
from collections.abc import Callable

from fedmm.core.layout import Layout
from fedmm.engines.messages import Invitation, Update
from fedmm.remote.messaging import Site
from fedmm.remote.packed import Packed
from fedmm.remote.packing import pack_update, read_invitation

Mask = Callable[[Invitation, Update], Update]


def answered(site: Site, layout: Layout, question: Packed, mask: Mask | None = None) -> Packed:
    """A site's answer to an invitation, with the seconds it took and, unless updates are hidden, its dual's norm.

    mask: hides its update among the others of the round.
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
