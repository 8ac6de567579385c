"""``fedmm data``, in this process; downloads come from a server on loopback."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cli.commands import runner
from fabricated import mnist_files, office_files, originals, picture, read, source, stored, usps_file, write
from PIL import Image
from serving import Fault, Site, serving

from fedmm.data.sources import Edition, sources

MNIST = mnist_files()
BSDS = {f"train/{number}.jpg": picture(number, 40, 35, "JPEG") for number in range(3)}
OFFICE = office_files()
USPS = {"usps.h5": usps_file()}
Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def site() -> Iterator[Site]:
    """Serves small files as a mirror would."""
    with serving() as running:
        for name, files in (("mnist", MNIST), ("bsds500", BSDS), ("office31", OFFICE), ("usps", USPS)):
            running.files |= {f"{name}/{path}": content for path, content in files.items()}
        yield running


@pytest.fixture
def command(site: Site, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Command:
    """Runs ``fedmm data`` in an empty folder, with a catalogue of small files and the server as the mirror."""
    monkeypatch.chdir(tmp_path)
    for variable, value in (("FEDMM_DATA", "data"), ("FEDMM_CACHE", "cache"), ("FEDMM_MIRROR", site.address)):
        monkeypatch.setenv(variable, value if "://" in value else str(tmp_path / value))
    monkeypatch.setenv("COLUMNS", "200")
    small = (
        source("mnist", MNIST),
        source("bsds500", BSDS),
        source("usps", USPS),
        source("office31", OFFICE, more=(originals(OFFICE, site.address),)),
    )
    for each in small:
        monkeypatch.setitem(sources(), each.name, each)

    run = runner(monkeypatch, capsys, "data")

    def told(*arguments: str | Path) -> tuple[int, str, str]:
        ended = run(*arguments)
        return ended.code, ended.out, ended.err

    return told


def test_list_says_what_is_there(command: Command) -> None:
    code, out, err = command("list")
    assert (code, err) == (0, "")
    assert "mnist        not there; editions: main (4 files, " in out
    assert "office31     not there; editions: main (51 files, 0.1 MB), originals (51 files)" in out
    assert "licence: none" in out
    assert f"data folder: {Path('data').absolute()}" in out
    command("fetch", "mnist_m")
    Path("data/bsds500/train/1.jpg").unlink()
    _, out, _ = command("list")
    size = sum(map(len, MNIST.values())) / 1e6
    assert f"mnist        complete: 4 files, {size:.1f} MB (main) in {Path('data').absolute()}/mnist" in out
    assert "bsds500      incomplete: 2 of 3 files" in out


def test_a_data_set_is_fetched_checked_and_shown(command: Command) -> None:
    code, out, err = command("fetch", "mnist_m")
    assert (code, err) == (0, "")
    assert "mnist: 4 files fetched into " in out
    assert "all checksums match" in out
    assert read(Path("data")) == {
        **{f"bsds500/{path}": content for path, content in BSDS.items()},
        **{f"mnist/{path}": content for path, content in MNIST.items()},
    }
    code, out, _ = command("check", "mnist_m")
    assert code == 0
    assert out.splitlines()[1].startswith("bsds500: 3 files (main) in ")
    code, out, err = command("show", "mnist_m", "--set", "train_rows=40", "--set", "data.test_rows=30")
    assert (code, err) == (0, "")
    assert "40 source and 40 target rows to train on, 30 to test on, 10 classes; samples are in mnist_m.png" in out
    with Image.open("mnist_m.png") as drawn:
        assert drawn.size[0] == 2000


def test_usps_comes_with_mnist(command: Command) -> None:
    code, out, err = command("fetch", "usps")
    assert (code, err) == (0, "")
    assert "usps: 1 file fetched into " in out
    assert read(Path("data")) == {
        **{f"mnist/{path}": content for path, content in MNIST.items()},
        **{f"usps/{path}": content for path, content in USPS.items()},
    }
    code, out, _ = command("check", "usps")
    assert code == 0
    assert out.splitlines()[1].startswith("usps: 1 file (main) in ")
    assert "usps         is made of mnist and usps" in command("list")[1]
    code, out, err = command("show", "usps", "--set", "train_rows=40")
    assert (code, err) == (0, "")
    assert "40 source and 40 target rows to train on, 20 to test on, 10 classes; samples are in usps.png" in out
    path = Path("data/usps/usps.h5").absolute()
    path.write_bytes(b"?" * path.stat().st_size)
    code, _, err = command("check", "usps")
    assert code == 2
    assert err.startswith(f"error: {path} is truncated or corrupt: ")


def test_what_is_there_is_not_fetched_again(command: Command, site: Site) -> None:
    command("fetch", "mnist")
    site.requests.clear()
    code, out, _ = command("fetch", "mnist")
    assert code == 0
    assert "mnist: complete and correct" in out
    assert site.requests == []


def test_another_data_folder(command: Command) -> None:
    command("fetch", "office31", "--data-dir", "elsewhere")
    assert read(Path("elsewhere/office31")) == OFFICE
    assert not Path("data").exists()
    assert command("check", "office31", "--data-dir", "elsewhere")[0] == 0
    small = ("--set", "image_size=20", "--set", "stored_size=24")
    assert command("show", "office31", *small, "--data-dir", "elsewhere", "--out", "sheet.png")[0] == 0
    assert Path("sheet.png").exists()
    code, _, err = command("show", "office31", *small)
    assert code == 2, "the environment is as before"
    assert "there is no folder" in err


def test_a_bad_file_is_named_with_both_checksums(command: Command) -> None:
    command("fetch", "mnist")
    path = Path("data/mnist/t10k-labels-idx1-ubyte.gz").absolute()
    right = hashlib.sha256(path.read_bytes()).hexdigest()
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    wrong = hashlib.sha256(path.read_bytes()).hexdigest()
    code, out, err = command("check", "mnist")
    assert (code, out) == (2, "")
    assert err.startswith(f"error: {path} is truncated or corrupt: its sha256 is {wrong}, ")
    assert f"its sha256 must be {right}, " in err
    assert command("fetch", "mnist")[0] == 0
    assert command("check", "mnist")[0] == 0


def test_a_corrupt_mirror_is_refused_and_leaves_nothing(command: Command, site: Site) -> None:
    site.faults["bsds500/train/1.jpg"], site.lasting = [Fault(flip=9)], True
    code, _, err = command("fetch", "bsds500")
    assert code == 2
    assert err.startswith("error: ")
    assert "train/1.jpg could not be fetched from " in err
    assert "Traceback" not in err
    assert not any("1.jpg" in path for path in read(Path("data")))


def test_without_a_mirror_public_editions_come_with_a_word_on_their_checksums(
    command: Command, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FEDMM_MIRROR")
    code, _, err = command("fetch", "office31", "--edition", "main")
    assert code == 2
    assert "has no public address; name another edition, or a mirror in FEDMM_MIRROR" in err
    public = Edition("public", stored({"b.bin": b"b"}, site.address), note="only half is known")
    site.files["b.bin"] = b"b"
    monkeypatch.setitem(sources(), "weights", source("weights", {"a.bin": b"a"}, more=(public,)))
    code, out, _ = command("fetch", "weights")
    assert code == 0
    assert "(public); only half is known" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("fetch", "mnits"), "unknown data 'mnits'; did you mean 'mnist'?"),
        (("check", "office"), "unknown data 'office'; did you mean 'office31'?"),
        (("fetch", "mnist_m", "--edition", "main"), "--edition needs the name of a source: mnist, bsds500"),
        (("fetch", "mnist", "--edition", "best"), "unknown edition of mnist 'best'"),
        (("show", "mnist"), "unknown data.name 'mnist'; did you mean 'mnist_m'?"),
        (("show", "moons"), "moons holds no pictures; rows are of shape [2]"),
        (("show", "office31", "--set", "source=webcam"), "data.source and target must differ"),
        (("show", "image_folder"), "source must name a folder of pictures"),
        (("show", "digits", "--out", "/dev/null/where.png"), "/dev/null/where.png cannot be written"),
    ],
)
def test_refusals(command: Command, arguments: tuple[str, ...], message: str) -> None:
    code, _, err = command(*arguments)
    assert code == 2
    assert err.startswith("error: ")
    assert message in err


def test_own_pictures_without_labels_can_be_shown(command: Command) -> None:
    write(Path("here"), {f"{name}/{n}.png": picture(n) for name in ("cat", "dog") for n in range(3)})
    write(Path("loose"), {f"{n}.png": picture(n) for n in range(3)})
    options = ("source=here", "target=loose", "target_test=here", "image_size=16", "stored_size=16")
    code, out, err = command("show", "image_folder", *(word for o in options for word in ("--set", o)))
    assert (code, err) == (0, "")
    assert "4 source and 3 target rows to train on, 6 to test on, 2 classes" in out
