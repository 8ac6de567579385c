"""The size of the messages that a stack's clients would exchange with their servers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from fedmm.core.compression import vector_bytes
from fedmm.core.federation import Terms
from fedmm.core.layout import Layout
from fedmm.engines.batched.bands import Band
from fedmm.engines.batched.clients import Replica
from fedmm.engines.batched.tensors import StackTensors


class _Bytes(NamedTuple):
    """Bytes of a client's messages: its upload's vectors as encoded, the rest of it, and an uncompressed broadcast."""

    vectors_up: int
    others_up: int
    down: int


class Traffic:
    """Counts the bytes that a stack's replicas would send up and down.

    taking_part: how many clients of each replica take part. shares_statistics: whether running statistics are sent.
    """

    def __init__(
        self,
        replicas: Sequence[Replica],
        now: StackTensors,
        layout: Layout,
        terms: Terms,
        taking_part: Sequence[int],
        *,
        shares_statistics: bool,
    ) -> None:
        self._replicas = replicas
        self._now = now
        self._layout = layout
        self._terms = terms
        self._taking_part = taking_part
        shared = sum(v[0].numel() * v.element_size() for v in now.statistics.values()) if shares_statistics else 0
        self._bytes = [own for band in now.bands for own in [self._of_a_client(band, shared)] * len(band.algorithms)]

    def _of_a_client(self, band: Band, shared: int) -> _Bytes:
        size, dtype = self._layout.size, self._layout.dtype
        point, z = (vector_bytes(encoding, size, dtype) for encoding in ("exact", self._terms.uploads))
        band.set_round(0, [replica.rounds for replica in self._replicas[band.replicas]])
        first = slice(0, 1)
        at, sent, c = self._now.z[band.replicas, first], band.sent(), band.local(first)
        upload, _ = band.rule.finish(at, sent, band.rule.begin(at, sent, band.working(first), c), c)
        numbers, weight = len(band.rule.reports) * dtype.itemsize, dtype.itemsize if band.weighs else 0
        return _Bytes(z + (len(upload) - 1) * point, shared + numbers, len(sent) * point + shared + weight)

    def in_round(self, replica: int, t: int, in_step: int) -> tuple[int, int]:
        """Return a replica's bytes up and down in round t. in_step: how many clients know the previous broadcast."""
        algorithm, each = self._replicas[replica].algorithm, self._bytes[replica]
        working = in_step if algorithm.ends_pair(t) else self._taking_part[replica]
        vectors = 0 if algorithm.reports_only(t) else each.vectors_up
        up, down = working * (vectors + each.others_up), working * each.down
        if self._terms.broadcasts != "exact":
            band = self._now.bands[self._now.place(replica)[0]]
            size, dtype = self._layout.size, self._layout.dtype
            saved = vector_bytes("exact", size, dtype) - vector_bytes(self._terms.broadcasts, size, dtype)
            down -= in_step * len(band.coded_sent) * saved
        return up, down
