"""Real files of every kind, damaged: each reader refuses them by name, or gives what was in them."""

from __future__ import annotations

import gzip
import io
import json
import os
import struct
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fabricated import idx, picture, write
from fuzz.hostile import answered, damaged, damaged_text, examples
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from reproduction.small_paper import write_paper
from safetensors.torch import load_file, save_file

from fedmm import FedmmError, load_model
from fedmm.config.schema import experiment
from fedmm.data import ImageFolder
from fedmm.data.datasets.mnist_m import read_idx
from fedmm.data.download import unpack
from fedmm.data.readers.images import read_picture, square_of
from fedmm.data.sources import StoredFile, read_checksums, read_file
from fedmm.data.tensor_files import load_cached
from fedmm.models.backbones import MobileNetV2
from fedmm.models.pretrained import load_weights
from fedmm.reporting import read_comparison, read_run
from fedmm.reproduction.items import read_item, read_items
from fedmm.reproduction.plan import plan_runs
from fedmm.reproduction.results import read_lines, read_results
from fedmm.reproduction.write_results import append_lines
from fedmm.runs.run import run_experiment
from fedmm.training.snapshots import load_snapshot

CPU = torch.device("cpu")
TABLES: dict[str, Any] = {
    "run": {"rounds": 3, "batch_size": 2, "probe_rows": 4, "checkpoint_every": 1, "threads": 1},
    "data": {"name": "moons", "rows": 8, "test_rows": 4},
    "model": {"name": "mlp", "hidden": [3], "adversary_hidden": [3]},
    "algorithm": {"name": "fedmm", "local_steps": 1},
}
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run's folder."""
    folder = tmp_path_factory.mktemp("run") / "run"
    run_experiment(experiment(TABLES), folder, progress=False)
    return folder


def refused_by_name(call: Callable[[], Any], path: Path) -> bool:
    """Whether it was refused, with the file in the sentence."""
    try:
        call()
    except FedmmError as refusal:
        told = str(refusal)
    else:
        return False
    assert told.isprintable()
    assert path.name in told
    return True


def headed(about: dict[str, Any], size: int | None = None, content: bytes = b"") -> bytes:
    """A safetensors file with any header, which may say another length of itself."""
    header = json.dumps(about).encode()
    return struct.pack("<Q", len(header) if size is None else size) + header + content


def tensor(shape: list[int], end: int, dtype: str = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [0, end]}


def deep(text: str) -> dict[str, Any]:
    return {"__metadata__": {"fedmm": text, "sha256": "", "crc32": ""}}


HEADERS = [
    b"",
    headed({}, 2**63),
    headed({}, 2**64 - 1),
    headed({}, 100_000_000),
    headed({"z": tensor([2**62], 2**64)}),
    headed({"z": tensor([2**33, 2**33], 4)}, None, bytes(4)),
    headed({"z": tensor([1], 4, "X9")}, None, bytes(4)),
    headed({"z": tensor([1], 2, "BF16")} | deep("{}"), None, bytes(2)),
    headed(deep("[" * 5000)),
    headed(deep("[]")),
    headed(deep("null")),
    headed(deep('{"format": "fedmm-model-1"}')),
    headed(
        deep('{"format": "fedmm-model-1", "input_shape": [1000000000000], "centre": "train_mean", "dtype": "float32"}')
    ),
    headed(deep('{"format": "fedmm-model-1", "input_shape": "ab", "centre": "train_mean", "dtype": 3}')),
    headed(
        deep('{"format": "fedmm-model-1", "input_shape": [2], "centre": "train_mean", "dtype": "float32", "view": [1]}')
    ),
]


# States and models ----------------------------------------------------------------------------------------------------


def test_a_damaged_state_is_refused_or_what_it_was(run: Path, tmp_path: Path) -> None:
    whole = sorted((run / "checkpoints").glob("round-*.safetensors"))[-1]
    state, history = load_snapshot(whole, CPU)
    path = tmp_path / "state.safetensors"

    @examples(30)
    @given(damaged(whole.read_bytes()))
    def holds(content: bytes) -> None:
        path.write_bytes(content)

        def read() -> None:
            back, rows = load_snapshot(path, CPU)
            assert back.round == state.round
            assert torch.equal(back.server["z"], state.server["z"])
            assert list(rows) == list(history)

        refused_by_name(read, path)

    holds()


@pytest.mark.parametrize("content", HEADERS, ids=range(len(HEADERS)))
def test_a_header_that_lies_is_refused_by_every_reader_of_tensors(run: Path, tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "lie.safetensors"
    path.write_bytes(content)
    network = experiment(TABLES).model.build((2,), 2, 0)
    assert refused_by_name(lambda: load_snapshot(path, CPU), path)
    assert refused_by_name(lambda: load_model(path, network), path)
    for name in ("samples", "boundary"):
        copy = copied(run, tmp_path / name)
        (copy / f"{name}.safetensors").write_bytes(content)
        assert refused_by_name(lambda: read_run(copy), copy / f"{name}.safetensors")  # noqa: B023


def test_what_is_no_file_is_no_state_and_no_model(tmp_path: Path) -> None:
    network = experiment(TABLES).model.build((2,), 2, 0)
    for path in (tmp_path, tmp_path / "missing", tmp_path / ("x" * 300)):
        assert refused_by_name(lambda: load_snapshot(path, CPU), path)  # noqa: B023
        assert refused_by_name(lambda: load_model(path, network), path)  # noqa: B023


def test_a_damaged_model_is_refused_or_predicts_the_same(run: Path, tmp_path: Path) -> None:
    whole = run / "model.safetensors"
    network = experiment(TABLES).model.build((2,), 2, 0)
    x = torch.linspace(-1, 1, 8).view(4, 2)
    expected = load_model(whole, network).predict_proba(x)
    path = tmp_path / "model.safetensors"

    @examples(30)
    @given(damaged(whole.read_bytes()))
    def holds(content: bytes) -> None:
        path.write_bytes(content)

        def read() -> None:
            assert torch.equal(load_model(path, network).predict_proba(x), expected)

        refused_by_name(read, path)

    holds()


def test_a_state_of_another_run_is_not_gone_on_from(run: Path, tmp_path: Path) -> None:
    """Files swapped between folders: the run starts again, or is refused; it never goes on from what is not its own."""
    mine = {**TABLES, "model": {"name": "mlp", "hidden": [5], "adversary_hidden": [3]}}
    for number, tables in enumerate([mine, {**TABLES, "partition": {"name": "source_target", "target_clients": 2}}]):
        folder = tmp_path / str(number)
        run_experiment(experiment(tables), folder, progress=False)
        for path in (folder / "checkpoints").iterdir():
            theirs = run / "checkpoints" / path.name
            if theirs.exists():
                path.write_bytes(theirs.read_bytes())
        answered(lambda: run_experiment(experiment(tables), folder, resume=True, progress=False))  # noqa: B023


@pytest.mark.parametrize("name", ["weights.pth", "weights.safetensors"])
def test_damaged_weights_are_refused_by_name(tmp_path: Path, name: str) -> None:
    network = torch.nn.Linear(2, 2)
    path = tmp_path / name
    torch.save(network.state_dict(), tmp_path / "weights.pth")
    save_file(network.state_dict(), tmp_path / "weights.safetensors")
    whole = path.read_bytes()

    @examples(40)
    @given(damaged(whole) | st.sampled_from([b"", b"\x80", b"PK\x03\x04", *HEADERS]))
    def holds(content: bytes) -> None:
        path.write_bytes(content)
        refused_by_name(lambda: load_weights(network, str(path), "half"), path)

    holds()
    assert isinstance(MobileNetV2(weights=str(path)), MobileNetV2)


def test_a_damaged_cache_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDMM_CACHE", str(tmp_path))
    made = {"x": torch.arange(12.0).view(3, 4), "y": torch.arange(3)}
    load_cached("data", (1,), lambda: dict(made))
    (path,) = tmp_path.iterdir()

    @examples(50)
    @given(damaged(path.read_bytes()) | st.sampled_from(HEADERS))
    def holds(content: bytes) -> None:
        path.write_bytes(content)
        found = load_cached("data", (1,), lambda: dict(made))
        assert found.keys() == made.keys()
        assert all(torch.equal(found[name], made[name]) and found[name].dtype == made[name].dtype for name in made)

    holds()
    assert load_file(path).keys() == made.keys()


# Run folders and results ----------------------------------------------------------------------------------------------


def copied(run: Path, folder: Path) -> Path:
    for path in run.rglob("*"):
        if path.is_file() and path.suffix != ".png":
            write(folder, {path.relative_to(run).as_posix(): path.read_bytes()})
    return folder


@pytest.mark.parametrize("name", ["summary.json", "rounds.jsonl", "samples.safetensors", "boundary.safetensors"])
def test_a_run_folder_with_a_damaged_file_is_read_or_refused_by_name(run: Path, tmp_path: Path, name: str) -> None:
    folder = copied(run, tmp_path / "run")
    whole = (run / name).read_bytes()
    hurt = damaged if name.endswith("safetensors") else damaged_text

    @examples(40)
    @given(hurt(whole))
    def holds(content: bytes) -> None:
        (folder / name).write_bytes(content)
        refused_by_name(lambda: read_run(folder), folder / name)

    holds()


@pytest.mark.parametrize("name", ["experiment.toml", "refused.jsonl", "rounds.jsonl", "summary.json"])
def test_a_run_goes_on_or_is_refused_when_its_folder_is_damaged(run: Path, tmp_path: Path, name: str) -> None:
    folder = copied(run, tmp_path / "run")
    whole = b'{"round": 1, "client": "source-1", "reason": "late"}\n' * 3 if name == "refused.jsonl" else None
    content = whole or (run / name).read_bytes()

    @examples(6)
    @given(damaged_text(content) | st.sampled_from([b"", b"\xff\n", b"[]\n", b"{\n", b"null\n", b"[" * 3000 + b"\n"]))
    def holds(content: bytes) -> None:
        (folder / name).write_bytes(content)
        answered(lambda: run_experiment(experiment(TABLES), folder, resume=True, progress=False))

    holds()


@pytest.mark.parametrize("folder", ["../..", "/etc", "a\x00b", "", ".", "x" * 300, "\udcff"])
def test_a_comparison_reads_no_folder_but_its_own(run: Path, tmp_path: Path, folder: str) -> None:
    copied(run, tmp_path / "outside" / "run")
    inside = tmp_path / "outside" / "comparison"
    runs = [{"label": "x", "folder": folder}, {"label": "x", "folder": "../run"}]
    write(inside, {"summary.json": json.dumps({"kind": "comparison", "title": "x", "runs": runs[:1]}).encode()})
    assert refused_by_name(lambda: read_comparison(inside), inside / "summary.json")
    write(inside, {"summary.json": json.dumps({"kind": "comparison", "title": "x", "runs": runs[1:]}).encode()})
    assert refused_by_name(lambda: read_comparison(inside), inside / "summary.json")


def test_damaged_results_are_read_or_refused_by_name(tmp_path: Path) -> None:
    lines = next(path for path in sorted((ROOT / "paper").rglob("results.jsonl")) if path.stat().st_size).read_bytes()
    whole = b"\n".join(lines.split(b"\n")[:3]) + b"\n"
    path = tmp_path / "results.jsonl"

    @examples(30)
    @given(damaged_text(whole))
    def holds(content: bytes) -> None:
        path.write_bytes(content)
        answered(lambda: read_results(path))
        found = answered(lambda: read_lines(path))
        if found:
            append_lines(path, found[:1])
            assert read_lines(path)

    holds()


def test_a_damaged_paper_is_read_or_refused(tmp_path: Path) -> None:
    paper = write_paper(tmp_path / "paper")
    files = {path: path.read_bytes() for path in sorted(paper.rglob("*.toml"))}

    @examples(30)
    @given(st.data())
    def holds(data: st.DataObject) -> None:
        path = data.draw(st.sampled_from(sorted(files)))
        path.write_bytes(data.draw(damaged_text(files[path])))
        answered(lambda: [plan_runs(each) for each in read_items(paper).values()])
        answered(lambda: [read_item(folder) for folder in (paper / "figure_1", paper / "table_1")])
        path.write_bytes(files[path])

    holds()


@pytest.mark.parametrize("panel", ["../../outside", "/etc", "a\x00b", "", ".", "**", "x" * 5000])
def test_a_panel_is_a_folder_of_its_item(tmp_path: Path, panel: str) -> None:
    paper = write_paper(tmp_path / "paper")
    write(tmp_path, {"outside/fedmm.toml": (paper / "figure_1/even/fedmm.toml").read_bytes()})
    text = f"title = 'x'\nform = 'curves'\npanels = [{json.dumps(panel)}]\n"
    (paper / "figure_1/item.toml").write_text(text)
    (paper / "table_1/item.toml").unlink()
    assert answered(lambda: [plan_runs(each) for each in read_items(paper).values()]) is None
    assert not answered(lambda: read_item(paper / "figure_1").expected())


# Data -----------------------------------------------------------------------------------------------------------------


@examples(40)
@given(st.data())
def test_a_damaged_idx_file_is_refused_or_what_it_was(data: st.DataObject) -> None:
    array = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
    plain = gzip.decompress(idx(array))
    packed = data.draw(damaged(idx(array)) | damaged(plain).map(lambda content: gzip.compress(content, mtime=0)))
    read = answered(lambda: read_idx(packed, data.draw(st.sampled_from([1, 3])), "digits.gz"))
    assert read is None or read.dtype == np.uint8


KINDS = ["PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP", "PPM"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_damaged_picture_is_refused_or_a_picture(kind: str) -> None:
    @examples(30)
    @given(damaged(picture(1, 12, 9, kind)))
    def holds(content: bytes) -> None:
        shown = answered(lambda: square_of(read_picture(content, "broken"), 8))
        assert shown is None or (shown.size, shown.mode) == ((8, 8), "RGB")

    holds()


def bomb(width: int, height: int) -> bytes:
    """A picture in few bytes that would be many."""
    stream = io.BytesIO()
    Image.new("1", (width, height)).save(stream, "PNG")
    return stream.getvalue()


@pytest.mark.parametrize("size", [(1, 40000), (40000, 1), (12000, 10000), (20000, 20000)])
def test_a_picture_that_would_fill_the_memory_is_refused(size: tuple[int, int]) -> None:
    content = bomb(*size)
    assert len(content) < 100_000
    assert answered(lambda: square_of(read_picture(content, "bomb.png"), 256)) is None


def test_a_program_is_no_picture() -> None:
    script = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\nshowpage\n"
    assert answered(lambda: read_picture(script, "picture.eps")) is None


def folder_of_pictures(folder: Path, *names: str | bytes) -> ImageFolder:
    for domain in ("source", "target"):
        for name in ("bike", "mug", *names):
            path = os.path.join(os.fsencode(folder), domain.encode(), os.fsencode(name))  # noqa: PTH118 - bytes
            os.makedirs(path, exist_ok=True)  # noqa: PTH103 - bytes
            for number in range(2):
                Path(os.fsdecode(path), f"{number}.png").write_bytes(picture(number, 12, 9))
    return ImageFolder(str(folder / "source"), str(folder / "target"), image_size=8, stored_size=8)


@pytest.mark.parametrize("name", ["-", " ", "é", "\N{GRINNING FACE}", "a\nb", b"\xff", "x" * 255, "CON", "$\\frac{"])
def test_a_class_may_have_any_name_that_a_folder_can(tmp_path: Path, name: str | bytes) -> None:
    pair = folder_of_pictures(tmp_path, name).load()
    assert pair.classes == 3


def _pipe(path: Path) -> None:
    os.mkfifo(path)


UNREADABLE: dict[str, Callable[[Path], Any]] = {
    "pipe": _pipe,
    "link to itself": lambda path: path.symlink_to(path.name),
    "link to nowhere": lambda path: path.symlink_to("nowhere"),
    "link to a file without end": lambda path: path.symlink_to("/dev/zero"),
    "link to a folder": lambda path: path.symlink_to("/"),
    "empty": lambda path: path.write_bytes(b""),
    "program": lambda path: path.write_bytes(b"#!/bin/sh\n"),
}


@pytest.mark.parametrize("make", UNREADABLE.values(), ids=UNREADABLE)
def test_what_is_no_picture_is_refused_by_name(tmp_path: Path, make: Callable[[Path], Any]) -> None:
    pictures = folder_of_pictures(tmp_path)
    odd = tmp_path / "source/mug/odd.png"
    make(odd)
    assert refused_by_name(pictures.load, odd)
    if not odd.is_dir():
        assert refused_by_name(lambda: read_file(odd.parent, StoredFile(odd.name, sha256="0" * 64)), odd)


# Archives and checksums -----------------------------------------------------------------------------------------------

WANTED = (StoredFile("amazon/mug/a.jpg"), StoredFile("amazon/mug/b.jpg"))


def member(name: str, kind: bytes = tarfile.REGTYPE, size: int = 0, link: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.size, info.linkname = kind, size, link
    return info


def archive(*members: tarfile.TarInfo, mode: str = "w:gz", format: int = tarfile.PAX_FORMAT) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode=mode, format=format) as opened:  # type: ignore[call-overload]
        for each in members:
            opened.addfile(each, io.BytesIO(b"x" * each.size) if each.isreg() else None)
    return stream.getvalue()


GOOD = [member("images/mug/a.jpg", size=4), member("images/mug/b.jpg", size=4)]
EVIL = {
    "up": member("../../mug/a.jpg", size=4),
    "up inside": member("images/../../../mug/a.jpg", size=4),
    "absolute": member("/tmp/mug/a.jpg", size=4),
    "link": member("images/mug/a.jpg", tarfile.SYMTYPE, link="/etc/passwd"),
    "link as a folder": member("images/mug", tarfile.SYMTYPE, link="/tmp"),
    "hard link": member("images/mug/a.jpg", tarfile.LNKTYPE, link="../../x"),
    "device": member("images/mug/a.jpg", tarfile.CHRTYPE),
    "pipe": member("images/mug/a.jpg", tarfile.FIFOTYPE),
}


@pytest.mark.parametrize("evil", EVIL.values(), ids=EVIL)
@pytest.mark.parametrize("first", [True, False])
def test_an_archive_writes_nowhere_else(tmp_path: Path, evil: tarfile.TarInfo, first: bool) -> None:
    path = tmp_path / "amazon.tgz"
    path.write_bytes(archive(*([evil, *GOOD] if first else [*GOOD, evil])))
    folder = tmp_path / "deep" / "inside"
    folder.mkdir(parents=True)
    assert refused_by_name(lambda: unpack(path, WANTED, folder), path)
    written = {each for each in tmp_path.rglob("*") if each.is_file()} - {path}
    assert written <= {folder / file.path for file in WANTED}


def test_of_names_that_are_there_twice_the_first_counts(tmp_path: Path) -> None:
    path = tmp_path / "amazon.tgz"
    path.write_bytes(archive(*GOOD, member("other/mug/a.jpg", size=9)))
    unpack(path, WANTED, tmp_path)
    assert (tmp_path / "amazon/mug/a.jpg").stat().st_size == 4


def test_an_archive_that_would_fill_the_disk_is_refused(tmp_path: Path) -> None:
    huge = member("images/mug/a.jpg", size=2**40)
    path = tmp_path / "amazon.tar"
    path.write_bytes(huge.tobuf(tarfile.GNU_FORMAT) + bytes(1024))
    assert refused_by_name(lambda: unpack(path, WANTED, tmp_path), path)
    path.write_bytes(member("elsewhere", size=2**40).tobuf(tarfile.GNU_FORMAT) + bytes(1024))
    assert refused_by_name(lambda: unpack(path, WANTED, tmp_path), path)


@pytest.mark.parametrize("size", [2**40, 2**62, 2**70])
def test_a_header_of_an_archive_that_says_it_is_huge_is_refused(tmp_path: Path, size: int) -> None:
    path = tmp_path / "amazon.tar"
    for kind in (tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME):
        path.write_bytes(member("x", kind, size).tobuf(tarfile.GNU_FORMAT) + bytes(2048))
        assert refused_by_name(lambda: unpack(path, WANTED, tmp_path), path)


@pytest.mark.parametrize("mode", ["w", "w:gz", "w:bz2", "w:xz"])
def test_a_damaged_archive_is_unpacked_or_refused_by_name(tmp_path: Path, mode: str) -> None:
    whole = archive(*GOOD, mode=mode)
    path = tmp_path / "amazon.tgz"
    count = iter(range(10**9))

    @examples(30)
    @given(damaged(whole))
    def holds(content: bytes) -> None:
        path.write_bytes(content)
        folder = tmp_path / str(next(count))
        folder.mkdir()
        refused_by_name(lambda: unpack(path, WANTED, folder), path)
        written = {each.relative_to(folder).as_posix() for each in folder.rglob("*") if each.is_file()}
        assert written <= {file.path for file in WANTED}

    holds()


@examples(40)
@given(damaged_text(f"{'a' * 64} 12 mug/a.jpg\n{'b' * 64} 9 mug/b.jpg\n".encode()))
def test_a_damaged_list_of_checksums_names_no_file_elsewhere(content: bytes) -> None:
    files = answered(lambda: read_checksums(content.decode("utf-8", "replace")))
    for file in files or []:
        assert not file.path.startswith("/")
        assert ".." not in file.path.split("/")
