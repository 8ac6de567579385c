from __future__ import annotations

import io
import re
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from fabricated import office_files, originals, picture, read, source, stored, write
from serving import Fault, Site, serving

from fedmm.core.errors import FedmmError
from fedmm.data.download import DownloadPlan, fetch, mirror, plans
from fedmm.data.http import Retries
from fedmm.data.sources import Edition, Source

HURRIED = Retries(attempts=2, pause=0.0, timeout=60.0)
LETTERS = {f"deep/{letter}.txt": letter.encode() * 50 for letter in "abcdefghijkl"}
OFFICE = office_files(("amazon", "webcam"))


@pytest.fixture
def site() -> Iterator[Site]:
    with serving() as running:
        yield running


def fetched(wanted: Source, folder: Path, **options: str) -> list[DownloadPlan]:
    todo = plans(wanted, folder, **options)
    for plan in todo:
        fetch(plan, retries=HURRIED)
    return todo


def tgz(files: Mapping[str, bytes], *more: tarfile.TarInfo) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as archive:
        for path, content in files.items():
            member = tarfile.TarInfo(path)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
        for member in more:
            archive.addfile(member)
    return stream.getvalue()


# Single files ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def letters(site: Site) -> Source:
    site.files |= LETTERS
    return source("letters", LETTERS, site.address)


def test_everything_comes_into_the_source_s_folder(letters: Source, tmp_path: Path) -> None:
    (plan,) = fetched(letters, tmp_path)
    assert plan.bytes == sum(map(len, LETTERS.values()))
    assert read(tmp_path) == {f"letters/{path}": content for path, content in LETTERS.items()}
    assert plans(letters, tmp_path) == []


def test_only_what_is_missing_truncated_or_corrupt_is_fetched(letters: Source, site: Site, tmp_path: Path) -> None:
    write(tmp_path / "letters", LETTERS | {"deep/b.txt": b"b" * 49, "deep/c.txt": b"x" * 50})
    (tmp_path / "letters/deep/a.txt").unlink()
    fetched(letters, tmp_path)
    assert sorted(path for path, _ in site.requests) == ["deep/a.txt", "deep/b.txt", "deep/c.txt"]
    assert plans(letters, tmp_path) == []


def test_the_first_failure_ends_it_and_what_is_done_stays(letters: Source, site: Site, tmp_path: Path) -> None:
    del site.files["deep/f.txt"]
    with pytest.raises(FedmmError, match=r"f\.txt could not be fetched .*404"):
        fetched(letters, tmp_path)
    named = {path: content for path, content in read(tmp_path / "letters").items() if not path.endswith(".partial")}
    assert named.items() <= LETTERS.items()
    site.files |= LETTERS
    fetched(letters, tmp_path)
    assert plans(letters, tmp_path) == []


def test_a_mirror_serves_the_data_folder(site: Site, tmp_path: Path) -> None:
    files = {"a b/ü.txt": b"umlaut"}
    site.files |= {f"some where/odd/{path}": content for path, content in files.items()}
    fetched(source("odd", files, "http://nowhere.invalid"), tmp_path, mirror=f"{site.address}/some%20where")
    assert read(tmp_path / "odd") == files


def test_the_mirror_is_named_by_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FEDMM_MIRROR", raising=False)
    assert mirror() == ""
    monkeypatch.setenv("FEDMM_MIRROR", "https://data.example/fedmm/")
    assert mirror() == "https://data.example/fedmm"
    monkeypatch.setenv("FEDMM_MIRROR", "ftp://data.example")
    with pytest.raises(FedmmError, match="FEDMM_MIRROR must start with http:// or https://"):
        mirror()


# Editions -------------------------------------------------------------------------------------------------------------


def weights(address: str) -> Source:
    return source(
        "weights", {"a.bin": b"mirrored"}, more=(Edition("public", stored({"b.bin": b"published"}, address)),)
    )


def test_without_a_mirror_the_first_public_edition_is_fetched(site: Site, tmp_path: Path) -> None:
    site.files |= {"b.bin": b"published", "weights/a.bin": b"mirrored"}
    fetched(weights(site.address), tmp_path)
    assert read(tmp_path) == {"weights/b.bin": b"published"}
    fetched(weights(site.address), tmp_path, mirror=site.address)
    assert read(tmp_path) == {"weights/b.bin": b"published"}, "what is there will do"


def test_a_mirror_has_the_first_edition(site: Site, tmp_path: Path) -> None:
    site.files["weights/a.bin"] = b"mirrored"
    fetched(weights(site.address), tmp_path, mirror=site.address)
    assert read(tmp_path) == {"weights/a.bin": b"mirrored"}


def test_an_edition_can_be_asked_for(site: Site, tmp_path: Path) -> None:
    site.files |= {"b.bin": b"published"}
    write(tmp_path / "weights", {"a.bin": b"mirrored"})
    fetched(weights(site.address), tmp_path, edition="public")
    assert read(tmp_path / "weights") == {"a.bin": b"mirrored", "b.bin": b"published"}
    with pytest.raises(FedmmError, match="unknown edition of weights 'pulbic'; did you mean 'public'"):
        plans(weights(site.address), tmp_path, edition="pulbic")
    (tmp_path / "weights/a.bin").unlink()
    with pytest.raises(FedmmError, match=r"a\.bin has no public address; name another edition, or a mirror"):
        fetched(weights(site.address), tmp_path, edition="main")


# Archives -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def office(site: Site) -> Source:
    """Pictures whose first edition has checksums and no address; the originals are other pictures in archives."""
    larger = originals_of("amazon") | originals_of("webcam")
    for domain in ("amazon", "webcam"):
        inside = {path.replace("/", "/images/", 1): c for path, c in larger.items() if path.startswith(domain)}
        site.files[f"{domain}.tgz"] = tgz(inside | {f"{domain}/._junk": b"junk", f"{domain}/notes/read.me": b"words"})
    return source("office", OFFICE, more=(originals(OFFICE, site.address),))


def originals_of(domain: str) -> dict[str, bytes]:
    return office_files((domain,), side=60)


def test_archives_are_unpacked_under_the_names_that_are_known(office: Source, tmp_path: Path) -> None:
    first, second = fetched(office, tmp_path)
    assert (first.bytes, second.bytes) == (None, None)
    assert read(tmp_path / "office") == originals_of("amazon") | originals_of("webcam")
    assert plans(office, tmp_path) == []


def test_a_part_that_is_right_is_not_fetched(office: Source, site: Site, tmp_path: Path) -> None:
    write(tmp_path / "office", {path: content for path, content in OFFICE.items() if path.startswith("amazon")})
    fetched(office, tmp_path)
    assert [path for path, _ in site.requests] == ["webcam.tgz"]
    assert plans(office, tmp_path) == []


def test_editions_are_not_mixed_within_a_part(office: Source, tmp_path: Path) -> None:
    write(tmp_path / "office", OFFICE)
    (tmp_path / "office/amazon/mug/frame_0001.jpg").unlink()
    fetched(office, tmp_path)
    webcam = {path: content for path, content in OFFICE.items() if path.startswith("webcam")}
    assert read(tmp_path / "office") == originals_of("amazon") | webcam
    assert plans(office, tmp_path) == []


def test_another_edition_can_take_the_place_of_the_one_that_is_there(office: Source, tmp_path: Path) -> None:
    write(tmp_path / "office", OFFICE)
    assert plans(office, tmp_path) == []
    fetched(office, tmp_path, edition="originals")
    assert read(tmp_path / "office") == originals_of("amazon") | originals_of("webcam")


def test_an_archive_from_elsewhere_is_used_and_kept(office: Source, site: Site, tmp_path: Path) -> None:
    write(tmp_path / "office", site.files)
    fetched(office, tmp_path)
    assert site.requests == []
    assert read(tmp_path / "office") == originals_of("amazon") | originals_of("webcam") | site.files


def test_an_archive_whose_download_breaks_off_is_resumed(office: Source, site: Site, tmp_path: Path) -> None:
    site.faults["amazon.tgz"] = [Fault(cut=700)]
    fetched(office, tmp_path)
    assert site.requests[1] == ("amazon.tgz", "bytes=700-")
    assert plans(office, tmp_path) == []


def link(path: str, to: str) -> tarfile.TarInfo:
    member = tarfile.TarInfo(path)
    member.type, member.linkname = tarfile.SYMTYPE, to
    return member


AMAZON = originals_of("amazon")
BAD = {
    "truncated": (tgz(AMAZON)[:-2000], "is truncated or corrupt"),
    "no archive": (b"<html>come back later</html>", "is truncated or corrupt"),
    "a link": (tgz(AMAZON, link("amazon/more", "/etc")), "it holds 'amazon/more', which is a link"),
    "a way out": (tgz({"amazon/../../bike/frame_0001.jpg": b"x"}), "leads out of its folder"),
    "an absolute path": (tgz({"/tmp/bike/frame_0001.jpg": b"x"}), "leads out of its folder"),
    "a missing file": (
        tgz({path: content for path, content in AMAZON.items() if "pen" not in path}),
        "lacks 2 files, the first of them amazon/pen/frame_0001.jpg",
    ),
    "a file that is no picture": (
        tgz(AMAZON | {"amazon/mug/frame_0003.jpg": b"no picture"}),
        "mug/frame_0003.jpg cannot be read as a picture",
    ),
    "a truncated picture": (
        tgz(AMAZON | {"amazon/mug/frame_0003.jpg": picture(1, kind="JPEG")[:-100]}),
        "mug/frame_0003.jpg cannot be read as a picture",
    ),
}


@pytest.mark.parametrize(("archive", "reason"), BAD.values(), ids=BAD)
def test_a_bad_archive_leaves_nothing_behind(
    office: Source, site: Site, tmp_path: Path, archive: bytes, reason: str
) -> None:
    site.files["amazon.tgz"] = archive
    with pytest.raises(FedmmError, match=re.escape(reason)):
        fetched(office, tmp_path)
    assert read(tmp_path) == {}
    assert [path.name for path in (tmp_path / "office").iterdir()] == []
