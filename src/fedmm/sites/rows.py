"""A site's rows: read once from their source, and afterwards memory-mapped from the site's own copy."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedmm.config.dataclass_io import as_table
from fedmm.config.schema import Experiment
from fedmm.config.sites import RowsElsewhere
from fedmm.core.errors import FedmmError, Say, require
from fedmm.core.problem import View
from fedmm.core.seeding import key, permutation
from fedmm.data.labels import UNLABELLED
from fedmm.data.readers.images import ClassFolders, ReadFolders, found_in, read_folders
from fedmm.data.rows import TensorRows, as_rows
from fedmm.data.transforms import view_from, view_table
from fedmm.sites.config import DataSection, SiteConfig
from fedmm.sites.tables import encode_table

_LOG = logging.getLogger(__name__)
_ABOUT = "about.json"
_PARTS = ("source_x", "source_y", "target_x")
_GROUPS = "source_groups"
_NOT_OF_ROWS = ("sites", "domains", "image_size")
"""Keys of ``[data]`` that do not affect a site's rows."""


@dataclass(frozen=True)
class SiteRows:
    """A site's rows. view: how they are shown; classes: the total number of classes.

    validation: labelled rows kept from training. groups: of the labelled rows, int64; rows of one group are all kept
    from training, or none.
    """

    source: TensorRows | None
    target: TensorRows | None
    view: View
    classes: int
    validation: TensorRows | None = None
    groups: Tensor | None = None

    @property
    def labels(self) -> list[int]:
        """The classes of its labelled rows."""
        return [] if self.source is None or self.source.y is None else sorted(set(self.source.y.tolist()))


def site_rows(config: SiteConfig, experiment: Experiment, encoding: str = "", say: Say = _LOG.info) -> SiteRows:
    """Return the site's rows for an experiment. encoding: how columns of tables become numbers, as the server says."""
    tables = isinstance(experiment.data, RowsElsewhere) and bool(experiment.data.features)
    require(
        tables == (config.data.kind == "table"),
        "the experiment is for tables, but this site's data is not a table"
        if tables
        else "this site's data is a table, but the experiment names no columns of tables (data.features)",
    )
    folder = config.state / "rows" / _key(config, experiment, encoding)
    if not (folder / _ABOUT).exists():
        parts = encode_table(config, experiment, encoding, say) if tables else _read_rows(config, experiment)
        _write_rows(folder, parts, experiment)
    with suppress(OSError):
        os.utime(folder / _ABOUT)  # `fedmm deploy clean` checks when a copy was last used
    rows = _map_rows(folder)
    if isinstance(experiment.data, RowsElsewhere):
        rows = replace(rows, view=experiment.data.view)
    _check_rows(config, rows)
    return _hold_back(rows, config.data.validation_rows, config.site.name, experiment.run.seed)


def _hold_back(rows: SiteRows, count: int, name: str, seed: int) -> SiteRows:
    """Keep ``count`` labelled rows from training, chosen by the run's seed and the site's name."""
    source = rows.source
    if not count or source is None:
        return rows
    require(
        count < len(source), f"data.validation_rows must be below {len(source)}, the site's labelled rows, not {count}"
    )
    if rows.groups is None:
        order = permutation(key(seed, "set aside", name), len(source))
    else:
        order, count = _order_groups(rows.groups, count, key(seed, "set aside", name))
        require(
            count < len(source),
            "data.validation_rows leaves no row to train on, since the rows of one data.id are kept together",
        )
    kept, trained = (replace(source, index=part.sort().values) for part in (order[:count], order[count:]))
    return replace(rows, source=trained, validation=kept)


def _order_groups(groups: Tensor, count: int, seed: int) -> tuple[Tensor, int]:
    """Return the rows ordered by group, and how many rows the first groups with ``count`` or more together have."""
    group = torch.from_numpy(np.unique(groups.numpy(), return_inverse=True)[1])
    place = torch.empty(int(group.max()) + 1, dtype=torch.int64)
    place[permutation(seed, len(place))] = torch.arange(len(place))
    order = place[group].argsort(stable=True)
    ends = place[group].bincount().cumsum(0)
    return order, int(ends[ends >= count][0])


def _key(config: SiteConfig, experiment: Experiment, encoding: str) -> str:
    """Hash everything that affects the rows, and nothing else: a new site in the experiment must copy no rows again."""
    data = {name: value for name, value in as_table(experiment.data).items() if name not in _NOT_OF_ROWS}
    made_of: dict[str, Any] = {"site": config.site.name, "kind": config.data.kind, "data": data}
    if config.data.kind == "share":
        made_of |= {"partition": as_table(experiment.partition), "seed": experiment.run.seed}
    else:
        path = config.path(config.data.path)
        made_of |= {"path": str(path), "stamps": _stamps(path), "domain": config.data.domain}
        made_of |= {"size": config.data.stored_size, "skip_bad": config.data.skip_bad}
    if config.data.kind == "table":
        made_of |= {"table": asdict(config.data), "encoding": encoding}
    return hashlib.sha256(json.dumps(made_of, sort_keys=True).encode()).hexdigest()[:24]


def _stamps(path: Path) -> list[object]:
    """Return what changes whenever the files do."""
    try:
        files = sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]
        return [[str(file), file.stat().st_mtime_ns, file.stat().st_size] for file in files]
    except OSError as problem:
        raise FedmmError(f"data.path {path} cannot be read: {problem.strerror}") from problem


def _read_rows(config: SiteConfig, experiment: Experiment) -> dict[str, Any]:
    if config.data.kind == "share":
        return _share(config.site.name, experiment)
    path = config.path(config.data.path)
    return _arrays(path, config.data) if config.data.kind == "npz" else _pictures(path, config.data, experiment)


def _share(name: str, experiment: Experiment) -> dict[str, Any]:
    require(
        not isinstance(experiment.data, RowsElsewhere),
        "data.kind = 'share' needs an experiment with a built-in data set; otherwise say where this site's rows are",
    )
    pair = experiment.partition.seen(experiment.data.load())
    shares = {share.name: share for share in experiment.partition.split(pair, experiment.run.seed)}
    require(name in shares, f"site.name {name!r} has no share; the partition has shares of {', '.join(shares)}")
    source, target = shares[name].source, shares[name].target
    parts: dict[str, Any] = {"view": pair.view, "classes": pair.classes}
    if len(source):
        parts |= {"source_x": pair.source.x[source].numpy(), "source_y": pair.source.y[source].numpy()}
    if len(target):
        parts |= {"target_x": pair.target.x[target].numpy()}
    return parts


def _arrays(path: Path, data: DataSection) -> dict[str, Any]:
    wanted = {"source": _PARTS[:2], "target": _PARTS[2:], "both": _PARTS}[data.domain]
    try:
        with np.load(path, allow_pickle=False) as file:
            missing = [name for name in wanted if name not in file.files]
            require(not missing, f"{path} lacks the array {missing[0] if missing else ''!r}, which domain = "
                    f"{data.domain!r} needs")  # fmt: skip
            return {name: np.ascontiguousarray(file[name]) for name in wanted}
    except (OSError, ValueError) as problem:
        if isinstance(problem, FedmmError):
            raise
        raise FedmmError(f"{path} cannot be read as an npz file of arrays: {problem}") from problem


def _pictures(path: Path, data: DataSection, experiment: Experiment) -> dict[str, Any]:
    folders = found_in(path)
    if data.domain == "target":
        return {"target_x": _squares(folders, data).x.numpy()}
    classes = experiment.data.classes if isinstance(experiment.data, RowsElsewhere) else ()
    require(bool(classes), "a folder of labelled pictures needs an experiment with [data] name = 'sites' and classes")
    for name in folders.class_names:
        require(
            name in classes, f"{path} has a class folder {name!r}; the experiment's classes are {', '.join(classes)}"
        )
    rows = _squares(folders, data)
    labels = rows.folders.labels(classes)
    require(bool((labels != UNLABELLED).all()), f"{path} holds pictures without a class; sort them into class folders")
    return {"source_x": rows.x.numpy(), "source_y": labels.numpy()}


def _squares(folders: ClassFolders, data: DataSection) -> ReadFolders:
    (rows,), notes = read_folders([folders], data.stored_size, skip_bad=data.skip_bad)
    for note in notes:
        _LOG.warning("%s", note)
    return rows


def _write_rows(folder: Path, parts: dict[str, Any], experiment: Experiment) -> None:
    """Write the site's own copy, completely or not at all; raise FedmmError for values that cannot be trained on."""
    if isinstance(experiment.data, RowsElsewhere):
        parts |= {"view": experiment.data.view, "classes": len(experiment.data.classes)}
    if "source_x" in parts:
        rows = as_rows((parts["source_x"], parts["source_y"]), "source", labelled=True)
        assert isinstance(rows, TensorRows)
        assert rows.y is not None
        parts["source_y"] = rows.y.numpy()
        highest = int(rows.y.max())
        require(highest < parts["classes"], f"source holds label {highest}, but there are {parts['classes']} classes")
    if "target_x" in parts:
        as_rows(parts["target_x"], "target", labelled=False)
    _require_shapes(parts, experiment)
    partial = folder.with_name(f"{folder.name}.{os.getpid()}.partial")
    try:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        for name in (*_PARTS, _GROUPS):
            if name in parts:
                np.save(partial / f"{name}.npy", parts[name], allow_pickle=False)
        about = {"view": view_table(parts["view"]), "classes": parts["classes"]}
        (partial / _ABOUT).write_text(json.dumps(about), encoding="utf-8")
        if not folder.exists():
            partial.rename(folder)
    except OSError as problem:
        raise FedmmError(f"the site's rows cannot be kept in {folder}: {problem.strerror}") from problem
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _require_shapes(parts: dict[str, Any], experiment: Experiment) -> None:
    if not isinstance(experiment.data, RowsElsewhere) or experiment.data.features:
        return
    for name in ("source_x", "target_x"):
        if name in parts:
            shape, kind = parts[name].shape[1:], parts[name].dtype
            require(
                shape == experiment.data.shape and (kind == np.uint8) == experiment.data.bytes,
                f"{name} holds {kind} rows of shape {list(shape)}; the experiment has "
                f"{'bytes' if experiment.data.bytes else 'numbers'} of shape {list(experiment.data.shape)}",
            )


def _map_rows(folder: Path) -> SiteRows:
    try:
        about = json.loads((folder / _ABOUT).read_text(encoding="utf-8"))
        parts = {
            name: torch.from_numpy(np.load(path, mmap_mode="c"))
            for name in (*_PARTS, _GROUPS)
            if (path := folder / f"{name}.npy").exists()
        }
    except (OSError, ValueError) as problem:
        raise FedmmError(f"the site's copy of its rows in {folder} cannot be read; remove the folder") from problem
    source = TensorRows(parts["source_x"], parts["source_y"], "source") if "source_x" in parts else None
    target = TensorRows(parts["target_x"], None, "target") if "target_x" in parts else None
    return SiteRows(source, target, view_from(about["view"]), about["classes"], groups=parts.get(_GROUPS))


def _check_rows(config: SiteConfig, rows: SiteRows) -> None:
    """Raise FedmmError if the rows are not what the site's file says."""
    domains = {"source": rows.source is not None, "target": rows.target is not None}
    for domain, present in domains.items():
        if config.data.domain not in (domain, "both") and present:
            raise FedmmError(f"data.domain is {config.data.domain!r}, but the site also holds {domain} rows")
        if config.data.domain in (domain, "both") and not present:
            raise FedmmError(f"data.domain is {config.data.domain!r}, but the site holds no {domain} rows")
    if config.data.labels and rows.source is not None:
        others = sorted(set(rows.labels) - set(config.data.labels))
        require(not others, f"data.labels does not list the label {others[0] if others else ''}, which the site holds")
