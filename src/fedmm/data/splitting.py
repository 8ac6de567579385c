"""Split users' rows into training, validation and test rows, record which site holds them, and find duplicates."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedmm.core.errors import require
from fedmm.core.seeding import key, permutation
from fedmm.core.validation import within
from fedmm.data.domains import DomainPair, Labelled, Sites
from fedmm.data.labels import UNLABELLED, sort_names


class Split(NamedTuple):
    """Row numbers, int64 and ascending: of the source to train and to test on, and of the target to train on.

    target_test: None if no target row that could be tested on has a label. source_validation: source rows to choose
    hyperparameters by; None if the test rows serve for that too.
    """

    source: Tensor
    source_test: Tensor
    target: Tensor
    target_test: Tensor | None
    source_validation: Tensor | None = None


def require_shares(held_out: float, target_held_out: float, validation_share: float = 0.0) -> None:
    """Raise FedmmError for shares that no split can have."""
    within("held_out", held_out, 0.0, 1.0)
    require(0.0 < held_out < 1.0, f"held_out must be above 0 and below 1, not {held_out:g}")
    within("target_held_out", target_held_out, 0.0, 1.0)
    require(target_held_out < 1.0, f"target_held_out must be below 1, not {target_held_out:g}")
    within("validation_share", validation_share, 0.0, 1.0)
    require(
        held_out + validation_share < 1.0,
        f"held_out and validation_share must sum to less than 1, not to {held_out + validation_share:g}",
    )


def split_rows(
    source_y: Tensor,
    target_y: Tensor,
    *,
    held_out: float,
    target_held_out: float,
    seed: int,
    validation_share: float = 0.0,
    source_sites: Sequence[str] | None = None,
    source_groups: Sequence[str] | None = None,
    target_groups: Sequence[str] | None = None,
    tested_elsewhere: bool = False,
) -> Split:
    """Split rows with labels int64 ``[rows]``; target labels are -1 if unknown.

    held_out: share of every source class to keep from training. target_held_out: the same of the target's labelled
    rows; 0 trains on all of them, without their labels, and tests on them too. validation_share: share of every source
    class to choose hyperparameters by; 0 uses the held-out rows, which do not depend on it. A small class gets its
    first row for training, the second for testing, the third for validation. source_sites: every site keeps a row to
    train on. source_groups, target_groups: rows of a group, such as a patient's, stay together; by default each row is
    its own group. tested_elsewhere: no target row is needed for testing.
    """
    kept = draw_held_out_groups(source_y, held_out, (seed, "held_out"), source_groups)
    if source_sites is not None:
        kept &= ~_with_their_groups(_first_of_emptied(source_sites, kept), source_groups)
    require(
        bool(kept.any()),
        "no row of the source can be held out to test on: every class, or site, has only one; add rows",
    )
    train = torch.ones(len(target_y), dtype=torch.bool)
    labelled = target_y != UNLABELLED
    tested = labelled
    if target_held_out and not tested_elsewhere:
        held = draw_held_out_groups(target_y, target_held_out, (seed, "target_held_out"), target_groups)
        tested = held & labelled
        train = ~(tested if target_groups is None else _with_their_groups(tested, target_groups))
    require(
        bool(train.any()) or not len(target_y),
        "target_held_out leaves no row of the target to train on; use a smaller share",
    )
    none = tested_elsewhere or not bool(tested.any())
    chosen_by = _draw_validation(source_y, kept, held_out, validation_share, seed, source_sites, source_groups)
    left = ~kept if chosen_by is None else ~(kept | chosen_by)
    return Split(
        _numbers(left),
        _numbers(kept),
        _numbers(train),
        None if none else _numbers(tested),
        None if chosen_by is None else _numbers(chosen_by),
    )


def _draw_validation(
    y: Tensor,
    kept: Tensor,
    held_out: float,
    share: float,
    seed: int,
    sites: Sequence[str] | None,
    groups: Sequence[str] | None,
) -> Tensor | None:
    """Draw validation rows from those not kept for testing, bool ``[rows]``; None if ``share`` is 0."""
    if not share:
        return None
    others = _numbers(~kept)
    own_sites, own_groups = (take_names(names, others) for names in (sites, groups))
    chosen = draw_held_out_groups(y[others], share / (1.0 - held_out), (seed, "validation"), own_groups)
    if own_sites is not None:
        chosen &= ~_with_their_groups(_first_of_emptied(own_sites, chosen), own_groups)
    require(
        bool(chosen.any()),
        "validation_share leaves no row to select a model with: every class, or site, has too few; add rows",
    )
    return torch.zeros(len(y), dtype=torch.bool).index_fill(0, others[chosen], True)


def draw_held_out(y: Tensor, share: float, seed: tuple[int | str, ...]) -> Tensor:
    """Draw the rows to hold out, bool ``[rows]``: nearly the same share of every class.

    At least one row of each class is held out and at least one is not; a class's only row is not.
    """
    out = torch.zeros(len(y), dtype=torch.bool)
    for label in sorted(set(y.tolist())):
        members = (y == label).nonzero().squeeze(1)
        count = min(max(1, round(share * len(members))), len(members) - 1)
        out[members[permutation(key(*seed, label), len(members))[:count]]] = True
    return out


def draw_held_out_groups(
    y: Tensor, share: float, seed: tuple[int | str, ...], groups: Sequence[str] | None = None
) -> Tensor:
    """Draw whole groups to hold out, bool ``[rows]``; a group counts for the class in it that the fewest groups have.

    A class that would keep no row gets a group back.
    """
    if groups is None:
        return draw_held_out(y, share, seed)
    held: dict[str, set[int]] = {}
    for group, label in zip(groups, y.tolist(), strict=True):
        held.setdefault(group, set()).add(label)
    holders = Counter(label for labels in held.values() for label in labels)

    def rarity(label: int) -> tuple[bool, int, int]:
        return label == UNLABELLED, holders[label], label

    rarest = torch.tensor([min(labels, key=rarity) for labels in held.values()], dtype=torch.int64)
    drawn = {group for group, out in zip(held, draw_held_out(rarest, share, seed).tolist(), strict=True) if out}
    kept = {label for group, labels in held.items() if group not in drawn for label in labels}
    for label in sorted(holders.keys() - kept):
        if label not in kept:
            stays = next(group for group, labels in held.items() if label in labels)
            drawn.remove(stays)
            kept |= held[stays]
    return torch.tensor([group in drawn for group in groups], dtype=torch.bool)


def _with_their_groups(mask: Tensor, groups: Sequence[str] | None) -> Tensor:
    """Extend the mask to all rows of every group that it touches, bool ``[rows]``."""
    if groups is None:
        return mask
    touched = {group for group, here in zip(groups, mask.tolist(), strict=True) if here}
    return torch.tensor([group in touched for group in groups], dtype=torch.bool)


def _first_of_emptied(sites: Sequence[str], out: Tensor) -> Tensor:
    """Mark the first row of each site that would keep none, bool ``[rows]``."""
    keeping = {site for site, gone in zip(sites, out.tolist(), strict=True) if not gone}
    first = torch.zeros(len(sites), dtype=torch.bool)
    for row, site in enumerate(sites):
        first[row] = site not in keeping
        keeping.add(site)
    return first


def _numbers(mask: Tensor) -> Tensor:
    return mask.nonzero().squeeze(1)


def take_rows(rows: Labelled, index: Tensor) -> Labelled:
    """Return some of the rows, in ascending order; ``rows`` itself if that is all of them."""
    return rows if len(index) == len(rows.y) else Labelled(rows.x[index], rows.y[index])


def take_names(names: Sequence[str] | None, rows: Tensor | None) -> list[str] | None:
    """Return the names of some rows; None if ``names`` or ``rows`` is None."""
    return None if names is None or rows is None else [names[row] for row in rows.tolist()]


def build_pair(
    source: Labelled,
    target: Labelled,
    split: Split,
    class_names: Sequence[str],
    *,
    tested: Labelled | None = None,
    source_sites: Sequence[str] | None = None,
    target_sites: Sequence[str] | None = None,
    **more: Any,
) -> DomainPair:
    """Build the pair of a split; held-out source rows are for testing, and for validation if there are no others.

    tested: target rows for testing only. source_sites, target_sites: the site of every row. more: further fields of the
    pair.
    """
    held_out = take_rows(source, split.source_test)
    validation = held_out if split.source_validation is None else take_rows(source, split.source_validation)
    chosen_by = split.source_test if split.source_validation is None else split.source_validation
    if split.target_test is not None:
        tested = take_rows(target, split.target_test)
    sites = None
    if source_sites is not None and target_sites is not None:
        of_source = [take_names(source_sites, rows) for rows in (split.source, split.source_test, chosen_by)]
        of_target = [take_names(target_sites, rows) for rows in (split.target, split.target_test)]
        sites = sites_of(of_source[0] or (), of_target[0] or (), of_source[1], of_target[1], of_source[2])
    train = take_rows(source, split.source), take_rows(target, split.target)
    return DomainPair(*train, held_out, tested, class_names, validation, sites=sites, **more)


def sites_of(
    source: Sequence[str],
    target: Sequence[str],
    source_test: Sequence[str] | None = None,
    target_test: Sequence[str] | None = None,
    source_validation: Sequence[str] | None = None,
) -> Sites:
    """Build :class:`Sites` from each row's site; for rows not trained on, where it is known."""
    names = sort_names([*source, *target])
    number = {name: number for number, name in enumerate(names)}

    def numbers(part: Sequence[str]) -> Tensor:
        return torch.tensor([number.get(name, -1) for name in part], dtype=torch.int64)

    others = (None if part is None else numbers(part) for part in (source_test, target_test, source_validation))
    return Sites(names, numbers(source), numbers(target), *others)


def fingerprints(x: Tensor) -> list[bytes]:
    """Return a 128-bit hash of each row; equal rows share it, different rows practically never."""
    rows = x.contiguous().flatten(1) if x.dim() > 1 else x.contiguous().unsqueeze(1)
    if rows.is_floating_point():
        rows = rows + 0.0  # turns -0 into 0
    return [hashlib.blake2b(row.data, digest_size=16).digest() for row in rows.numpy()]


def count_shared(one: Sequence[bytes], other: Sequence[bytes]) -> int:
    """Count the rows of ``other`` that also occur in ``one``."""
    known = set(one)
    return sum(row in known for row in other)


def distinct_share(rows: Sequence[bytes]) -> float:
    """Return the share of rows that remain without duplicates."""
    return len(set(rows)) / max(len(rows), 1)
