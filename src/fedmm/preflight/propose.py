"""An experiment for data that was found somewhere: what it is, what is asked for, and settings to begin with."""

from __future__ import annotations

import importlib.util
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch

from fedmm.config.sites import ELSEWHERE, experiment_anywhere
from fedmm.config.toml import write_toml
from fedmm.core.errors import FedmmError, require
from fedmm.core.paths import data_folder
from fedmm.data.readers.arrays import layout_of, read_arrays, rows_of
from fedmm.data.readers.images import ClassFolders, folders_of_sites, found_in, read_picture, refuse_bad
from fedmm.data.readers.table_formats import TABLES, TableFormat
from fedmm.data.sources import read_file
from fedmm.models.mobilenet import BLOCKS
from fedmm.preflight.table_columns import Columns, columns_of, site_names, whereabouts

_ARRAYS = (".npz", ".npy")
_LARGE, _MEDIUM, _PICTURES_MEASURED = 160, 72, 15
_BATCH, _FEWEST = 64, 8
_SLOW_BACKBONE = {"features.backbone": 0.001, "*": 0.01}
_SHOWN = 8
_MOBILENET = "mobilenetv2"
"""The folder of its weights in the data folder."""


class Line(NamedTuple):
    """A key of a section, its value, and what is said of it; ``off`` lines are there to be switched on."""

    key: str
    value: Any
    comment: str = ""
    off: bool = False


@dataclass(frozen=True)
class Found:
    """Data: which row of DATASETS takes it, and the lines of its section.

    shape: of a row; smallest: the rows of the smallest client; by_site: whether the data says who holds what;
    said: sentences on what was found.
    """

    kind: str
    data: tuple[Line, ...]
    shape: tuple[int, ...]
    smallest: int
    by_site: bool
    said: tuple[str, ...] = field(default=())


class TableOptions(NamedTuple):
    """The user's word on tables: which columns hold classes and sites, whether there is a header, and other names."""

    label: str = ""
    site: str = ""
    header: bool | None = None
    columns: tuple[str, ...] = ()
    sheet: str = ""


def propose(
    paths: Sequence[Path], target: Path | None, *, target_sites: Sequence[str], table: TableOptions | None = None
) -> Found:
    """Look at what a path is, and at that of the target where it is another; several paths are tables of sites."""
    table = table or TableOptions()
    for each in (*paths, target):
        try:
            there = each is None or ("\0" not in str(each) and each.exists())
        except OSError as problem:
            raise FedmmError(f"{each} cannot be read: {problem.strerror}") from problem
        require(there, f"there is no file or folder {each}")
    path = paths[0]
    files = _tables_in(paths)
    for option, given in zip(("--label", "--site", "--header", "--columns", "--sheet"), table, strict=True):
        require(
            given in ("", None, ()) or bool(files),
            f"{option} is for tables ({', '.join(TABLES)}), not for {path}",
        )
    if files:
        require(
            target is None,
            "a table holds both domains in one file; join the two, with a column that says which is which, or give "
            "both files and say --target-site",
        )
        return _table(files, table, target_sites)
    require(len(paths) == 1, f"several paths must be tables ({', '.join(TABLES)}), one of each site")
    if path.is_dir():
        return _folders(path, target, target_sites)
    if path.name.lower().endswith(_ARRAYS):
        require(not target_sites, "--target-site is for tables and folders of sites; an archive says target_x itself")
        return _arrays(path, target)
    raise FedmmError(
        f"{path} is neither a folder of pictures, nor a .npz archive, nor a table ({', '.join(TABLES)})",
    )


def _tables_in(paths: Sequence[Path]) -> dict[str, Path]:
    """Tables by site, of several files or of a folder that holds nothing else; none where that is not what they are."""
    found = list(paths)
    if len(paths) == 1 and paths[0].is_dir():
        inside = sorted(each for each in paths[0].iterdir() if not each.name.startswith("."))
        found = [each for each in inside if each.is_file() and each.name.lower().endswith(TABLES)]
        if any(each.is_dir() for each in inside):
            return {}
    if not found or not all(each.is_file() and each.name.lower().endswith(TABLES) for each in found):
        return {}
    return site_names(found)


# Pictures -------------------------------------------------------------------------------------------------------------


def _folders(path: Path, target: Path | None, target_sites: Sequence[str]) -> Found:
    if target is not None:
        require(target.is_dir(), f"{path} is a folder, and so must --target be, not {target}")
        return _two_folders(path, target, None)
    inside = sorted(each for each in path.iterdir() if each.is_dir() and not each.name.startswith("."))
    require(
        bool(inside), f"{path} holds no folders; it must hold class folders, and --target must name the other domain"
    )
    names = {each.name.lower(): each for each in inside}
    if {"source", "target"} <= names.keys():
        return _two_folders(names["source"], names["target"], names.get("target_test"))
    deep = [each for each in inside if any(one.is_dir() and not one.name.startswith(".") for one in each.iterdir())]
    require(
        bool(deep),
        f"{path} holds {len(inside)} folders of pictures: if they are the classes of the source, name the target's "
        "folder with --target; if they are sites, each must hold class folders",
    )
    return _sites(path, target_sites)


def _two_folders(source: Path, target: Path, test: Path | None) -> Found:
    here, there = found_in(source), found_in(target)
    require(
        bool(here.class_names),
        f"{source} must hold a folder of pictures for each class; is {target} the one with labels? then swap the two",
    )
    size = _sizes([here, there])
    labelled = "class folders too, to test by" if there.class_names else "not sorted by class, as is usual"
    lines = [
        Line("source", str(source), f"{len(here.class_names)} classes, {len(here.files)} pictures, with labels"),
        Line("target", str(target), f"{len(there.files)} pictures, {labelled}"),
    ]
    if test is not None:
        lines.append(Line("target_test", str(test), "pictures in class folders to test on"))
    elif not there.class_names:
        lines.append(
            Line("target_test", "sorted-target", "a folder with class folders to test on, if you have one", True)
        )
    said = [f"two folders of pictures: {len(here.files)} with labels in {source}, {len(there.files)} in {target}"]
    smallest = min(len(here.files), len(there.files))
    return Found("image_folder", (*lines, *size.lines), size.shape, smallest, False, (*said, *size.notes))


def _sites(path: Path, target_sites: Sequence[str]) -> Found:
    sites = folders_of_sites(path)
    for name in target_sites:
        require(name in sites, f"{path} has no site {name!r} for --target-site; it has {_some(list(sites))}")
    unsorted = [name for name, found in sites.items() if not found.class_names]
    require(
        bool(target_sites or unsorted),
        f"every site in {path} has class folders; say which are the target with --target-site: {_some(list(sites))}",
    )
    size = _sizes(list(sites.values()))
    counted = [f"{name} ({len(found.files)})" for name, found in sites.items()]
    lines = [Line("sites", str(path), f"a folder for each site: {_some(counted)}")]
    if target_sites:
        lines.append(Line("target_sites", list(target_sites), "their labels are for testing alone"))
    said = [f"a folder of {len(sites)} sites with pictures; the target: {', '.join([*target_sites, *unsorted])}"]
    smallest = min(len(found.files) for found in sites.values())
    return Found("image_folder", (*lines, *size.lines), size.shape, smallest, True, (*said, *size.notes))


class _Size(NamedTuple):
    lines: tuple[Line, ...]
    shape: tuple[int, ...]
    notes: tuple[str, ...]


def _sizes(folders: Sequence[ClassFolders]) -> _Size:
    """Pixels of a side, from those of a few pictures."""
    shorter, bad = list[int](), list[str]()
    for found in folders:
        step = max(1, len(found.files) * len(folders) // _PICTURES_MEASURED)
        for file in found.files[::step]:
            try:
                shorter.append(min(read_picture(read_file(found.folder, file), str(found.folder / file.path)).size))
            except FedmmError as problem:
                bad.append(str(problem))
    if not shorter:
        refuse_bad(bad)
    middle = sorted(shorter)[len(shorter) // 2]
    if middle >= _LARGE:
        stored, shown = 256, 224
    elif middle >= _MEDIUM:
        stored, shown = 72, 64
    else:
        stored, shown = middle, max(1, middle - middle // 8)
    if shown > _MEDIUM:
        said = f"pixels of a side, whose middle image_size the network sees; yours have about {middle}"
        augment = Line("augment", False, "so that frozen layers look at every picture once, and no more")
        notes = _what_is_missing()
    else:
        said = f"pixels of a side, of which training cuts out image_size at random; yours have about {middle}"
        augment = Line("augment", False, "switch on for what must not be mirrored, such as letters", True)
        notes = ()
    skip = Line("skip_bad", True, "files that cannot be read as pictures are left out", not bad)
    if bad:
        notes += (f"{len(bad)} of {len(bad) + len(shorter)} pictures that were looked at are bad: {_some(bad)}",)
    lines = (Line("stored_size", stored, said), Line("image_size", shown), augment, skip)
    return _Size(lines, (3, shown, shown), notes)


def _weights() -> tuple[Line, ...]:
    """ImageNet's for MobileNetV2: a file in the data folder, else torchvision's own."""
    folder = data_folder() / _MOBILENET
    try:
        files = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    except OSError:
        files = []
    for name in files:
        keras = name == "mobilenet_v2_imagenet_keras.safetensors"
        if keras or (name.startswith("mobilenet_v2-") and name.endswith(".pth")):
            line = Line("weights", f"{_MOBILENET}/{name}", "ImageNet's, from the data folder")
            return (line, Line("normalise", "half", "as these weights need it")) if keras else (line,)
    return (Line("weights", "imagenet", "torchvision's own, downloaded once"),)


def _what_is_missing() -> tuple[str, ...]:
    """What a pre-trained network needs and is not on this machine, a sentence each."""
    notes = []
    if importlib.util.find_spec("torchvision") is None:
        notes.append("the network needs torchvision, which is not installed: pip install 'fedmm[vision]'")
    kept = Path(torch.hub.get_dir()) / "checkpoints"
    if _weights()[0].value == "imagenet" and not any(kept.glob("mobilenet_v2-*.pth")):
        notes.append(
            "torchvision's ImageNet weights are not on this machine: the first run downloads them (14 MB); without a "
            "network, name a file with model.weights"
        )
    return tuple(notes)


# Arrays and tables ----------------------------------------------------------------------------------------------------


def _arrays(path: Path, target: Path | None) -> Found:
    arrays = read_arrays(path)
    if target is None:
        for name in ("source_x", "source_y", "target_x"):
            require(
                name in arrays,
                f"{path} has no array {name!r} (it has {_some(list(arrays))}); an archive of one domain, with x and y, "
                "needs the other's as --target",
            )
        x, there = arrays["source_x"], arrays["target_x"]
        known = [name for name in ("target_y", "target_test_x", "source_site", "class_names") if name in arrays]
        held = f"source_x, source_y, target_x{''.join(f', {name}' for name in known)}"
        lines = [Line("file", str(path), f"holds {held}")]
    else:
        require(target.suffix.lower() in _ARRAYS, f"{path} is an archive, and so must --target be, not {target}")
        for name in ("x", "y"):
            require(name in arrays, f"{path} must hold arrays x and y; it has {_some(list(arrays))}")
        other = read_arrays(target)
        require("x" in other, f"{target} must hold an array x; it has {_some(list(other))}")
        x, there = arrays["x"], other["x"]
        lines = [
            Line("source", str(path), f"{len(x)} rows with labels"),
            Line("target", str(target), f"{len(there)} rows{', with labels to test by' if 'y' in other else ''}"),
        ]
    shape = tuple(rows_of(x[:1], layout_of(x, "auto", str(path)), str(path)).shape[1:])
    said = f"an archive: {len(x)} source and {len(there)} target rows of shape {list(shape)}"
    return Found("arrays", tuple(lines), shape, min(len(x), len(there)), "source_site" in arrays, (said,))


def _table(files: Mapping[str, Path], given: TableOptions, target_sites: Sequence[str]) -> Found:
    found = columns_of(files, given.label, given.site, header=given.header, names=given.columns, sheet=given.sheet)
    joined, where = len(files) > 1, whereabouts(files)
    require(
        not target_sites or bool(found.sites),
        f"--target-site needs a column that says who holds a row; name it with --site, of {where}",
    )
    for name in target_sites:
        place = f"column {found.site!r} of {where}" if found.site else where
        require(name in found.sites, f"{place} has no {name!r}; it has {_some(list(found.sites))}")
    held = _some([f"{name} ({rows})" for name, rows in found.sites.items()])
    if joined:
        named = {site: str(path) for site, path in files.items()}
        lines = [Line("files", named, f"a table for each site: {held}")]
    else:
        lines = [Line("file", where, f"{found.rows} rows")]
    lines += [*format_lines(found), *_label_lines(found)]
    if found.domain:
        lines.append(Line("domain", found.domain, "says source or target"))
    elif not target_sites and not found.unlabelled:
        raise FedmmError(
            f"every row of {where} has a label, so nothing says which rows are the target; say "
            + (f"--target-site and one of: {_some(list(found.sites))}" if found.sites else "--site and --target-site")
        )
    if found.site:
        lines.append(Line("site", found.site, f"who holds a row: {held}"))
    if target_sites:
        lines.append(Line("target_sites", list(target_sites), "their labels are for testing alone"))
    lines += _column_lines(found)
    target = found.domain or ", ".join(target_sites) or "the rows without label"
    said = f"a table of {found.rows} rows: label {found.label!r}" + (f", site {found.site!r}" if found.site else "")
    if joined:
        said = f"{len(files)} tables, one of each site, of {found.rows} rows: label {found.label!r}, sites {held}"
    counted = _some([f"{name} ({rows} rows)" for name, rows in found.labels.items()])
    classes = f"{len(found.labels)} classes: {counted}" + (
        f"; {found.unlabelled} without label" if found.unlabelled else ""
    )
    return Found(
        "table",
        tuple(lines),
        (1,),
        found.smallest,
        bool(found.sites),
        (f"{said}; the target: {target}", classes, *found.said),
    )


def _label_lines(found: Columns) -> list[Line]:
    empty = f"empty in {found.unlabelled} rows" if found.unlabelled else "known for every row"
    lines = [Line("label", found.label, f"the classes; {empty}")]
    if found.classes:
        lines.append(Line("classes", dict(found.classes), "some labels were spelt in two ways"))
    elif len(found.labels) > 2 and all(name.isdecimal() for name in found.labels):
        first, second, *_, last = found.labels
        grouped = {name: first if name == first else f"{second} to {last}" for name in found.labels}
        lines.append(Line("classes", grouped, "switch on to make fewer classes of these labels", True))
    return lines


def _column_lines(found: Columns) -> list[Line]:
    lines = []
    if found.id:
        lines.append(Line("id", found.id, "names the rows, and is no input"))
    if found.drop:
        lines.append(Line("drop", list(found.drop), "; ".join(f"{name}: {why}" for name, why in found.drop.items())))
    if found.dates:
        lines.append(Line("dates", dict(found.dates), "become days since 1970, and then as other numbers"))
    return lines


def format_lines(found: Columns) -> list[Line]:
    """The keys in which the files are not written as usual."""
    format, usual = found.format, TableFormat()
    lines = [
        Line(key, getattr(format, key), said)
        for key, said in (
            ("separator", ""),
            ("decimal", "1,5 is one and a half"),
            ("encoding", ""),
            ("header", "the first line is data"),
            ("sheet", ""),
        )
        if getattr(format, key) != getattr(usual, key)
    ]
    if format.names:
        lines.append(Line("columns", list(format.names)))
    if format.missing:
        lines.append(Line("missing", list(format.missing), "stand for nothing, in every column"))
    return lines


# The file -------------------------------------------------------------------------------------------------------------


def written(found: Found, source: Path, file: Path) -> str:
    """The commented TOML; it is refused here if the program would refuse it."""
    at_sites = found.kind == ELSEWHERE
    small = _smaller_batch(found.smallest)
    large = len(found.shape) == 3 and min(found.shape[1:]) > _MEDIUM
    batch = min(small, 32) if large else small
    rounds, rate = (100, 0.01) if large else (200, 0.02)
    sections = {
        "run": (
            Line("rounds", rounds, "of communication; stop_by ends earlier"),
            Line("batch_size", batch, f"rows of a local step; the smallest client holds about {found.smallest}"),
            Line("seed", 0, "one seed, one result"),
            Line("device", "auto", "the GPU where there is one"),
            *(() if large else (Line("threads", 1, "such a small network is fastest on one core"),)),
            Line(
                "best_by", "target_information", "the best model is kept by this, which needs no labels of the target"
            ),
            Line("stop_by", "target_information", "end early by the same", True),
            Line("patience", 50, "rounds without a better value", True),
        ),
        "data": (Line("name", found.kind), *found.data),
        "partition": ()
        if at_sites
        else (
            Line("name", "by_site", "a client for each site")
            if found.by_site
            else Line("name", "source_target", "one client with labels, one without"),
        ),
        "model": _network(found.shape),
        "objective": (
            Line("name", "dann", "or cdan, mdd; source_only for what is had without adapting"),
            Line("nu_schedule", "dann_warmup", "classes first, then more and more that domains look alike"),
        ),
        "algorithm": (
            Line("name", "fedmm_smoothed", "or fedmm, fedavg_gda, ...; `fedmm list` shows all"),
            Line("lr_min", rate, "of features and classifier"),
            Line("lr_max", rate, "of the domain classifier"),
            *((Line("lr_min", _SLOW_BACKBONE, "for a backbone that is not all frozen", True),) if large else ()),
        ),
    }
    text = [
        f"# An experiment for {_plain(source.name)}, written by `fedmm init`. Every key may be changed; what is left",
        "# out has its default. Paths are seen from the folder in which the command is given.",
        f"#   fedmm check {_plain(str(file))}    looks at data and settings, and says what the run will need",
        f"#   fedmm run {_plain(str(file))}      trains, and leaves a run folder",
        "",
    ]
    if at_sites:
        text[1:4] = [
            "# out has its default. The coordinator keeps this file; every site has one of its own.",
            f"#   fedmm deploy run {_plain(str(file))}    trains over the federation's sites",
        ]
    content = "\n".join([*text, *written_sections(sections)])
    experiment_anywhere(tomllib.loads(content))
    return content


def written_sections(sections: Mapping[str, Sequence[Line]]) -> list[str]:
    """The lines of commented sections; empty ones are left out."""
    return [line for name, lines in sections.items() if lines for line in (f"[{name}]", *_aligned(lines), "")]


def _network(shape: tuple[int, ...]) -> tuple[Line, ...]:
    """A built-in network for rows of a shape."""
    if len(shape) != 3:
        return (Line("name", "mlp", "fully connected"), Line("hidden", [128, 64]))
    if min(shape[1:]) <= _MEDIUM:
        return (
            Line("name", "small_cnn", "two strided convolutions, for small pictures; paper_cnn is larger"),
            Line("initialisation", "truncated_normal", "torch's own start is too small to learn from in good time"),
        )
    return (
        Line("name", "mobilenet_v2", "needs torchvision; model.name = 'backbone' takes any of timm or torchvision"),
        *_weights(),
        Line("frozen_blocks", BLOCKS, "all of the backbone; with thousands of pictures fewer, and augment = true"),
    )


def _smaller_batch(rows: int) -> int:
    """The largest power of two that goes four times into the rows, between 8 and 64."""
    batch = _BATCH
    while batch > max(rows // 4, _FEWEST):
        batch //= 2
    return batch


def _aligned(lines: Sequence[Line]) -> list[str]:
    """``key = value  # comment``, with comments below each other."""
    pairs = [("# " if line.off else "") + write_toml({"x": {line.key: line.value}}).splitlines()[1] for line in lines]
    width = max((len(pair) for pair in pairs if len(pair) <= 44), default=0)
    return [
        f"{pair:{width}}  # {_plain(line.comment)}" if line.comment else pair
        for pair, line in zip(pairs, lines, strict=True)
    ]


def _plain(comment: str) -> str:
    """On one line, in letters that a TOML comment may hold."""
    return "".join(letter if letter.isprintable() else "?" for letter in comment)


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
