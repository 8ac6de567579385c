"""A site that answers packed questions: what an engine in another process asks of it."""

from __future__ import annotations

import time

from fedmm.core.layout import Layout
from fedmm.engines.messaging import Site
from fedmm.engines.packed import Packed
from fedmm.engines.packing import pack_update, read_invitation


def answered(site: Site, layout: Layout, question: Packed) -> Packed:
    """A site's answer to an invitation, with the seconds it took and, unless updates carry noise, its dual's norm."""
    began = time.perf_counter()
    invitation = read_invitation(layout, question.arrays, question.about)
    update = site.answer(invitation)
    packed = pack_update(layout, update)
    kept = site.memory.held.get(invitation.round)
    if kept is not None and "dual" in kept.own and not site.worker.terms.transmission.private:
        packed.about["dual_norm"] = float(kept.own["dual"].norm())
    packed.about["trained"] = round(time.perf_counter() - began, 3)
    return packed
