"""Users' own arrays: rows of both domains in .npz archives."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, get_args

import torch

from fedmm.core.errors import FedmmError, require
from fedmm.core.validation import at_least, flag, one_of
from fedmm.data.columns import Standardiser
from fedmm.data.domains import DomainPair, Labelled
from fedmm.data.inputs import ArrayInput
from fedmm.data.labels import UNLABELLED, sort_names
from fedmm.data.readers.arrays import Array, Layout, layout_of, read_arrays, rows_of, texts_of
from fedmm.data.splitting import build_pair, require_shares, split_rows

_NAMES = "class_names"
_SAME = 1e-7
"""Relative deviation below which float32 numbers count as constant; see :meth:`Standardiser.fit`."""
_KEYS = (
    "source_x", "source_y", "source_site", "target_x", "target_y", "target_site", "target_test_x", "target_test_y",
    _NAMES,
)  # fmt: skip


@dataclass(frozen=True)
class Arrays:
    """Rows of two domains from NumPy archives: uint8 as it is, other numbers as float32.

    file: an archive with ``source_x``, ``source_y`` and ``target_x``; optionally ``target_y``, ``target_test_x`` and
        ``target_test_y``, ``source_site`` and ``target_site``, ``class_names``.
    source, target, target_test: instead of it one archive each, with ``x``, ``y`` and ``site``; the source's may hold
        ``class_names``, and the target's may be a .npy file of rows alone.
    layout: where pictures ``[rows, ., ., .]`` have their channels; ``auto`` finds the side of 1 or 3.
    standardise: rows ``[rows, numbers]`` other than uint8 become (x - mean) / deviation, number by number; as for
        tables, from sums over the training rows.
    held_out: the share of every source class that is kept from training, to choose hyperparameters and test by.
    target_held_out: the share of the target's labelled rows kept for testing; 0 trains on all target rows, without
        their labels, and tests on the labelled ones.
    seed: selects the rows held out.
    """

    name: ClassVar[str] = "arrays"
    summary: ClassVar[str] = "your own NumPy archives: source_x, source_y, target_x, ..."
    paths: ClassVar[tuple[str, ...]] = ("file", "source", "target", "target_test")

    file: str = ""
    source: str = ""
    target: str = ""
    target_test: str = ""
    layout: Layout = "auto"
    standardise: bool = True
    held_out: float = 0.1
    target_held_out: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        one_of("layout", self.layout, get_args(Layout))
        flag("standardise", self.standardise)
        require_shares(self.held_out, self.target_held_out)
        at_least("seed", self.seed, 0)

    def load(self) -> DomainPair:
        arrays, where = self._read()
        kind = self._input(arrays, where)
        source = Labelled(kind.rows(arrays["source_x"], where["source_x"]), _labels(kind, arrays, where, "source"))
        bad = (source.y == UNLABELLED).nonzero()
        require(
            not len(bad),
            f"{where['source_y']} has no label in row {int(bad[0]) if len(bad) else ''}, and every row of the source "
            "needs one",
        )
        target = Labelled(kind.rows(arrays["target_x"], where["target_x"]), _labels(kind, arrays, where, "target"))
        tested = self._tested(kind, arrays, where)
        sites = _sites(arrays, where, len(source.y), len(target.y))
        split = split_rows(
            source.y,
            target.y,
            held_out=self.held_out,
            target_held_out=self.target_held_out,
            seed=self.seed,
            source_sites=sites[0] if sites else None,
            tested_elsewhere=tested is not None,
        )
        if self.standardise and not kind.bytes and len(kind.shape) == 1:
            scale = Standardiser.fit([torch.cat([source.x[split.source], target.x[split.target]])], _SAME)
            kind = replace(kind, mean=tuple(scale.mean[0].tolist()), deviation=tuple(scale.deviation[0].tolist()))
            source = Labelled(kind.scaled(source.x, where["source_x"]), source.y)
            target = Labelled(kind.scaled(target.x, where["target_x"]), target.y)
            if tested is not None:
                tested = Labelled(kind.scaled(tested.x, where["target_test_x"]), tested.y)
        return build_pair(
            source,
            target,
            split,
            kind.class_names,
            tested=tested,
            source_sites=sites and sites[0],
            target_sites=sites and sites[1],
            input=kind,
        )

    def _read(self) -> tuple[dict[str, Array], dict[str, str]]:
        """Return the arrays by their names in a single archive, and each one's name in messages."""
        parts = {"source": self.source, "target": self.target, "target_test": self.target_test}
        require(
            bool(self.file) != any(parts.values()),
            "data.file must name one archive with source_x, source_y and target_x; or, instead of it, data.source and "
            "data.target must name one each",
        )
        arrays, where = dict[str, Array](), dict[str, str]()
        for part, given in parts.items() if not self.file else [("", self.file)]:
            if not given:
                continue
            path = Path(given).expanduser()
            for name, array in read_arrays(path).items():
                full = name if not part or name == _NAMES else f"{part}_{name}"
                if not part and full not in _KEYS:
                    raise FedmmError(f"{path} holds an array {name!r}; known are {', '.join(_KEYS)}")
                if full in _KEYS:
                    arrays[full], where[full] = array, f"{path}: {name}"
        for name in ("source_x", "source_y", "target_x"):
            own = name if self.file else name.rpartition("_")[2]
            given = self.file or parts[name.rpartition("_")[0]] or f"data.{name.rpartition('_')[0]}"
            require(name in arrays, f"{given} must hold an array {own!r}")
        require(
            ("target_test_x" in arrays) == ("target_test_y" in arrays),
            "target_test_x and target_test_y go together: rows to test on, and their labels",
        )
        return arrays, where

    def _input(self, arrays: dict[str, Array], where: dict[str, str]) -> ArrayInput:
        layout = layout_of(arrays["source_x"], self.layout, where["source_x"])
        first = rows_of(arrays["source_x"][:1], layout, where["source_x"])
        labels = texts_of(arrays["source_y"], where["source_y"])
        named = arrays.get(_NAMES)
        names = texts_of(named, where[_NAMES]) if named is not None else sort_names(set(labels) - {"-1", ""})
        require(len(set(names)) == len(names), f"{where.get(_NAMES)} names a class twice")
        require(len(names) >= 2, f"{where['source_y']} must have at least two classes, not {len(names)}")
        return ArrayInput(tuple(names), tuple(first.shape[1:]), first.dtype == torch.uint8, layout, named is not None)

    def _tested(self, kind: ArrayInput, arrays: dict[str, Array], where: dict[str, str]) -> Labelled | None:
        if "target_test_x" not in arrays:
            return None
        rows = Labelled(
            kind.rows(arrays["target_test_x"], where["target_test_x"]), _labels(kind, arrays, where, "target_test")
        )
        require(bool((rows.y != UNLABELLED).all()), f"{where['target_test_y']} must have a label for every row")
        return rows


def _labels(kind: ArrayInput, arrays: dict[str, Array], where: dict[str, str], part: str) -> torch.Tensor:
    count, name = len(arrays[f"{part}_x"]), f"{part}_y"
    if name not in arrays:
        return torch.full((count,), UNLABELLED)
    y, strange = kind.labels(arrays[name], count, where[name])
    require(
        not strange,
        f"{where[name]} has a label {strange[0] if strange else ''!r}, which is not one of the classes "
        f"{', '.join(kind.class_names):.200}",
    )
    return y


def _sites(
    arrays: dict[str, Array], where: dict[str, str], source: int, target: int
) -> tuple[list[str], list[str]] | None:
    """Return the site of every source and target row; None if the arrays do not name sites."""
    wanted = {"source_site": source, "target_site": target}
    given = [name for name in wanted if name in arrays]
    if not given:
        return None
    require(len(given) == 2, f"{where[given[0]]} is given without the other; source_site and target_site go together")
    found = {name: texts_of(arrays[name], where[name]) for name in wanted}
    for name, rows in wanted.items():
        require(len(found[name]) == rows, f"{where[name]} has {len(found[name])} values, but there are {rows} rows")
        require("" not in found[name], f"{where[name]} has an empty value; every row needs the name of its site")
    return found["source_site"], found["target_site"]
