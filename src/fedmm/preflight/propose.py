"""Detect what data a path holds, and propose the data section of an experiment for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from fedmm.core.errors import FedmmError, require
from fedmm.core.signals.validators import METRICS
from fedmm.core.validation import one_of
from fedmm.data.readers.arrays import ARRAYS, layout_of, read_arrays, rows_of
from fedmm.data.readers.images import ClassFolders, folders_of_sites, found_in, read_picture, refuse_bad
from fedmm.data.readers.table_formats import TABLES, TableFormat
from fedmm.data.readers.tables import name_files
from fedmm.data.sources import read_file
from fedmm.preflight.table_checks import list_some
from fedmm.preflight.table_columns import Columns, TableOptions, find_columns, name_sites
from fedmm.preflight.write_experiment import LARGE, DetectedData, KeyLine, list_missing, require_metric, suited_metric

_LARGER, _PICTURES_MEASURED = 160, 15
_HELD_OUT, _VALIDATION = 0.2, 0.2
"""Shares of a table without a target: to test on, and to choose by."""


def propose(
    paths: Sequence[Path],
    target: Path | None,
    *,
    target_sites: Sequence[str],
    table: TableOptions | None = None,
    metric: str = "",
) -> DetectedData:
    """Detect the data at a path, and at the target's if it is separate; several paths are the tables of sites.

    metric: one of METRICS, for a table without a target; empty if there is one.
    """
    if metric:
        one_of("--metric", metric, tuple(METRICS))
    table = table or TableOptions()
    for named in (*paths, target):
        try:
            exists = named is None or ("\0" not in str(named) and named.exists())
        except OSError as problem:
            raise FedmmError(f"{named} cannot be read: {problem.strerror}") from problem
        require(exists, f"there is no file or folder {named}")
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
            "both files and pass --target-site",
        )
        return _table(files, table, target_sites, metric)
    require(not metric, f"--metric is for tables ({', '.join(TABLES)}), not for {path}")
    require(len(paths) == 1, f"several paths must be tables ({', '.join(TABLES)}), one of each site")
    if path.is_dir():
        return _folders(path, target, target_sites)
    if path.name.lower().endswith(ARRAYS):
        require(not target_sites, "--target-site is for tables and folders of sites; an archive says target_x itself")
        return _arrays(path, target)
    raise FedmmError(
        f"{path} is neither a folder of pictures, nor a .npz archive, nor a table ({', '.join(TABLES)})",
    )


def _tables_in(paths: Sequence[Path]) -> dict[str, Path]:
    """Return tables by site, given as files or as a folder without subfolders; empty for other data."""
    found = list(paths)
    if len(paths) == 1 and paths[0].is_dir():
        inside = sorted(path for path in paths[0].iterdir() if not path.name.startswith("."))
        found = [path for path in inside if path.is_file() and path.name.lower().endswith(TABLES)]
        if any(path.is_dir() for path in inside):
            return {}
    if not found or not all(path.is_file() and path.name.lower().endswith(TABLES) for path in found):
        return {}
    return name_sites(found)


# Pictures -------------------------------------------------------------------------------------------------------------


def _folders(path: Path, target: Path | None, target_sites: Sequence[str]) -> DetectedData:
    if target is not None:
        require(target.is_dir(), f"{path} is a folder, and so must --target be, not {target}")
        return _two_folders(path, target, None)
    inside = sorted(folder for folder in path.iterdir() if folder.is_dir() and not folder.name.startswith("."))
    require(
        bool(inside), f"{path} holds no folders; it must hold class folders, and --target must name the other domain"
    )
    names = {each.name.lower(): each for each in inside}
    if {"source", "target"} <= names.keys():
        return _two_folders(names["source"], names["target"], names.get("target_test"))
    deep = [
        folder for folder in inside if any(one.is_dir() and not one.name.startswith(".") for one in folder.iterdir())
    ]
    require(
        bool(deep),
        f"{path} holds {len(inside)} folders of pictures: if they are the classes of the source, name the target's "
        "folder with --target; if they are sites, each must hold class folders",
    )
    return _sites(path, target_sites)


def _two_folders(source: Path, target: Path, test: Path | None) -> DetectedData:
    source_folders, target_folders = found_in(source), found_in(target)
    require(
        bool(source_folders.class_names),
        f"{source} must hold a folder of pictures for each class; is {target} the one with labels? then swap the two",
    )
    size = _sizes([source_folders, target_folders])
    labelled = "class folders too, to test by" if target_folders.class_names else "not sorted by class, as is usual"
    lines = [
        KeyLine(
            "source",
            str(source),
            f"{len(source_folders.class_names)} classes, {len(source_folders.files)} pictures, with labels",
        ),
        KeyLine("target", str(target), f"{len(target_folders.files)} pictures, {labelled}"),
    ]
    if test is not None:
        lines.append(KeyLine("target_test", str(test), "pictures in class folders to test on"))
    elif not target_folders.class_names:
        lines.append(
            KeyLine("target_test", "sorted-target", "a folder with class folders to test on, if you have one", True)
        )
    sorted_files, others = len(source_folders.files), len(target_folders.files)
    said = [f"two folders of pictures: {sorted_files} with labels in {source}, {others} in {target}"]
    smallest = min(sorted_files, others)
    return DetectedData("image_folder", (*lines, *size.lines), size.shape, smallest, False, (*said, *size.notes))


def _sites(path: Path, target_sites: Sequence[str]) -> DetectedData:
    sites = folders_of_sites(path)
    for name in target_sites:
        require(name in sites, f"{path} has no site {name!r} for --target-site; it has {list_some(sites)}")
    unsorted = [name for name, site in sites.items() if not site.class_names]
    require(
        bool(target_sites or unsorted),
        f"every site in {path} has class folders; name the target with --target-site: {list_some(sites)}",
    )
    size = _sizes(list(sites.values()))
    counted = [f"{name} ({len(site.files)})" for name, site in sites.items()]
    lines = [KeyLine("sites", str(path), f"a folder for each site: {list_some(counted)}")]
    if target_sites:
        lines.append(KeyLine("target_sites", list(target_sites), "their labels are used only for testing"))
    said = [f"a folder of {len(sites)} sites with pictures; the target: {', '.join([*target_sites, *unsorted])}"]
    smallest = min(len(site.files) for site in sites.values())
    return DetectedData("image_folder", (*lines, *size.lines), size.shape, smallest, True, (*said, *size.notes))


class _Size(NamedTuple):
    lines: tuple[KeyLine, ...]
    shape: tuple[int, ...]
    notes: tuple[str, ...]


def _sizes(folders: Sequence[ClassFolders]) -> _Size:
    """Choose the side of pictures in pixels from a few of them; note those that cannot be read."""
    shorter, bad = list[int](), list[str]()
    for folder in folders:
        step = max(1, len(folder.files) * len(folders) // _PICTURES_MEASURED)
        for file in folder.files[::step]:
            try:
                shorter.append(min(read_picture(read_file(folder.folder, file), str(folder.folder / file.path)).size))
            except FedmmError as problem:
                bad.append(str(problem))
    if not shorter:
        refuse_bad(bad)
    middle = sorted(shorter)[len(shorter) // 2]
    if middle >= _LARGER:
        stored, shown = 256, 224
    elif middle >= LARGE:
        stored, shown = 72, 64
    else:
        stored, shown = middle, max(1, middle - middle // 8)
    if shown > LARGE:
        said = f"pixels of a side, whose middle image_size the network sees; yours have about {middle}"
        augment = KeyLine("augment", False, "so frozen layers see every picture only once")
        notes = list_missing()
    else:
        said = f"pixels of a side, of which training cuts out image_size at random; yours have about {middle}"
        augment = KeyLine("augment", False, "switch on for what must not be mirrored, such as letters", True)
        notes = ()
    skip = KeyLine("skip_bad", True, "files that cannot be read as pictures are left out", not bad)
    if bad:
        notes += (f"{len(bad)} of {len(bad) + len(shorter)} pictures that were looked at are bad: {list_some(bad)}",)
    lines = (KeyLine("stored_size", stored, said), KeyLine("image_size", shown), augment, skip)
    return _Size(lines, (3, shown, shown), notes)


# Arrays and tables ----------------------------------------------------------------------------------------------------


def _arrays(path: Path, target: Path | None) -> DetectedData:
    arrays = read_arrays(path)
    if target is None:
        for name in ("source_x", "source_y", "target_x"):
            require(
                name in arrays,
                f"{path} has no array {name!r} (it has {list_some(arrays)}); an archive of one domain, with x and y, "
                "needs the other's as --target",
            )
        x, target_x = arrays["source_x"], arrays["target_x"]
        known = [name for name in ("target_y", "target_test_x", "source_site", "class_names") if name in arrays]
        held = f"source_x, source_y, target_x{''.join(f', {name}' for name in known)}"
        lines = [KeyLine("file", str(path), f"holds {held}")]
    else:
        require(target.suffix.lower() in ARRAYS, f"{path} is an archive, and so must --target be, not {target}")
        for name in ("x", "y"):
            require(name in arrays, f"{path} must hold arrays x and y; it has {list_some(arrays)}")
        other = read_arrays(target)
        require("x" in other, f"{target} must hold an array x; it has {list_some(other)}")
        x, target_x = arrays["x"], other["x"]
        lines = [
            KeyLine("source", str(path), f"{len(x)} rows with labels"),
            KeyLine("target", str(target), f"{len(target_x)} rows{', with labels to test by' if 'y' in other else ''}"),
        ]
    shape = tuple(rows_of(x[:1], layout_of(x, "auto", str(path)), str(path)).shape[1:])
    said = f"an archive: {len(x)} source and {len(target_x)} target rows of shape {list(shape)}"
    return DetectedData("arrays", tuple(lines), shape, min(len(x), len(target_x)), "source_site" in arrays, (said,))


def _table(files: Mapping[str, Path], given: TableOptions, target_sites: Sequence[str], metric: str) -> DetectedData:
    found = find_columns(files, given)
    joined, where = len(files) > 1, name_files(files)
    require(
        not target_sites or bool(found.sites),
        f"--target-site needs a column that says who holds a row; name it with --site, of {where}",
    )
    for name in target_sites:
        place = f"column {found.site!r} of {where}" if found.site else where
        require(name in found.sites, f"{place} has no {name!r}; it has {list_some(found.sites)}")
    require(
        len(found.labels) > 1,
        f"every labelled row of {where} is of one class, {list_some(list(map(repr, found.labels)))} in column "
        f"{found.label!r}; a model needs rows of two classes or more",
    )
    held = list_some([f"{name} ({rows})" for name, rows in found.sites.items()])
    if joined:
        named = {site: str(path) for site, path in files.items()}
        lines = [KeyLine("files", named, f"a table for each site: {held}")]
    else:
        lines = [KeyLine("file", where, f"{found.rows} rows")]
    if metric:
        require(
            not (target_sites or found.domain),
            f"--metric is for a table without a target; {_why_target(found, target_sites)}",
        )
        require_metric(metric, found, where)
        require(
            metric != "worst_site" or len(found.sites) > 1,
            f"--metric worst_site needs rows of several sites, and those of {where} are all of one"
            if found.sites
            else f"--metric worst_site needs a column that says who holds a row; name it with --site, of {where}",
        )
    lines += [*format_lines(found), *_label_lines(found, rare_last=bool(metric) and len(found.labels) == 2)]
    if metric:
        lines.append(KeyLine("labelled_only", True, "every row is trained on with its label, except those held out"))
        lines.append(KeyLine("held_out", _HELD_OUT, "share of every class to test on"))
        lines.append(KeyLine("validation_share", _VALIDATION, "share of every class to choose by"))
    elif found.domain:
        lines.append(KeyLine("domain", found.domain, "says source or target"))
    elif not target_sites and not found.unlabelled:
        raise FedmmError(
            f"every row of {where} has a label, so nothing says which rows are the target; pass "
            + (f"--target-site with one of: {list_some(found.sites)}" if found.sites else "--site and --target-site")
            + f"; without a target at all, {suited_metric(found)}"
        )
    if found.site:
        lines.append(KeyLine("site", found.site, f"who holds a row: {held}"))
    if target_sites:
        lines.append(KeyLine("target_sites", list(target_sites), "their labels are used only for testing"))
    lines += _column_lines(found)
    target = found.domain or ", ".join(target_sites) or ("none" if metric else "the rows without label")
    said = f"a table of {found.rows} rows: label {found.label!r}" + (f", site {found.site!r}" if found.site else "")
    if joined:
        said = f"{len(files)} tables, one of each site, of {found.rows} rows: label {found.label!r}, sites {held}"
    counted = list_some([f"{name} ({rows} rows)" for name, rows in found.labels.items()])
    classes = f"{len(found.labels)} classes: {counted}" + (
        f"; {found.unlabelled} without label" if found.unlabelled else ""
    )
    return DetectedData(
        "table",
        tuple(lines),
        (1,),
        max(1, round(found.smallest * (1 - _HELD_OUT - _VALIDATION))) if metric else found.smallest,
        bool(found.sites),
        (f"{said}; the target: {target}", classes, *found.said),
        metric,
        len(found.sites),
    )


def _why_target(found: Columns, target_sites: Sequence[str]) -> str:
    return "leave out --target-site" if target_sites else f"its column {found.domain!r} says which rows are the target"


def _label_lines(found: Columns, *, rare_last: bool = False) -> list[KeyLine]:
    """Return lines on the label; rare_last: make the rarer of two classes the second one, which is looked for."""
    empty = f"empty in {found.unlabelled} rows" if found.unlabelled else "known for every row"
    lines = [KeyLine("label", found.label, f"the classes; {empty}")]
    first, *others = found.labels
    if rare_last and found.labels[first] < found.labels[others[0]]:
        spelt = found.classes or {name: name for name in found.labels}
        ordered = sorted(spelt.items(), key=lambda entry: -found.labels[entry[1]])
        lines.append(KeyLine("classes", dict(ordered), "the class of each label; the last is looked for"))
    elif found.classes:
        lines.append(KeyLine("classes", dict(found.classes), "some labels were spelt in two ways"))
    elif len(found.labels) > 2 and all(name.isdecimal() for name in found.labels):
        first, second, *_, last = found.labels
        grouped = {name: first if name == first else f"{second} to {last}" for name in found.labels}
        lines.append(KeyLine("classes", grouped, "switch on to make fewer classes of these labels", True))
    return lines


def _column_lines(found: Columns) -> list[KeyLine]:
    lines = []
    if found.id:
        lines.append(KeyLine("id", found.id, "names the rows; it is not an input"))
    if found.drop:
        lines.append(KeyLine("drop", list(found.drop), "; ".join(f"{name}: {why}" for name, why in found.drop.items())))
    if found.dates:
        lines.append(KeyLine("dates", dict(found.dates), "become days since 1970, and then as other numbers"))
    return lines


def format_lines(found: Columns) -> list[KeyLine]:
    """Return lines for the keys in which the files' format differs from the default."""
    format, usual = found.format, TableFormat()
    lines = [
        KeyLine(key, getattr(format, key), said)
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
        lines.append(KeyLine("columns", list(format.names)))
    if format.missing:
        lines.append(KeyLine("missing", list(format.missing), "mean missing, in every column"))
    return lines
