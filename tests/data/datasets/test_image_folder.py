from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from fabricated import picture, write

from fedmm.core.errors import FedmmError
from fedmm.core.problem import WholeRows
from fedmm.data.datasets.image_folder import ImageFolder
from fedmm.data.domains import DomainPair
from fedmm.data.labels import UNLABELLED
from fedmm.data.transforms import CropAndFlip


def pictures(seed: int, **counts: int) -> dict[str, bytes]:
    return {f"{name}/{n}.png": picture(seed + n, 20, 16) for name, count in counts.items() for n in range(count)}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(tmp_path / "here", pictures(0, cat=4, dog=6))
    write(tmp_path / "there", pictures(50, cat=3, dog=2))
    return tmp_path


def load(folder: Path, **options: Any) -> DomainPair:
    small = {"image_size": 12, "stored_size": 16, "held_out": 0.25}
    return ImageFolder(**{"source": str(folder / "here"), "target": str(folder / "there")} | small | options).load()


def test_two_folders_of_class_folders(folder: Path) -> None:
    pair = load(folder)
    assert pair.class_names == ("cat", "dog")
    assert pair.source.y.tolist() == [0] * 3 + [1] * 4
    assert pair.source_test.y.tolist() == [0, 1, 1]
    assert pair.source_validation is pair.source_test
    assert pair.target.y.tolist() == [0, 0, 0, 1, 1]
    assert pair.target_test is pair.target
    assert pair.source.x.shape == (7, 3, 16, 16)
    assert pair.source.x.dtype == torch.uint8
    assert pair.view == CropAndFlip(12)


def test_without_augmentation_the_centre_is_all_there_is(folder: Path) -> None:
    plain, whole = load(folder, augment=False), load(folder)
    assert plain.view == WholeRows()
    assert torch.equal(plain.target.x, whole.view.evaluate(whole.target.x))
    assert plain.target.x.shape == (5, 3, 12, 12)


def test_hidden_files_and_files_beside_the_classes_are_skipped(folder: Path) -> None:
    before = load(folder)
    write(folder / "here", {".DS_Store": b"x", "cat/.hidden.png": b"x", ".git/config": b"x", "LICENSE.txt": b"free"})
    assert torch.equal(load(folder).source.x, before.source.x)


def test_a_target_of_unknown_classes_may_have_a_labelled_test(folder: Path) -> None:
    loose = {f"{number}.JPG": picture(number, kind="JPEG") for number in range(4)}
    write(folder / "loose", loose)
    options = {"target": str(folder / "loose")}
    assert load(folder, **options).target_test is None
    with pytest.raises(FedmmError, match=r"loose has no class folders, so there is nothing to test on; sort"):
        load(folder, target_test=str(folder / "loose"))
    pair = load(folder, **options, target_test=str(folder / "there"))
    assert pair.target.y.tolist() == [UNLABELLED] * 4
    assert pair.target.x.shape == (4, 3, 16, 16)
    assert pair.target_test.y.tolist() == [0, 0, 0, 1, 1]


def test_a_test_folder_of_its_own(folder: Path) -> None:
    write(folder / "test", pictures(90, cat=1, dog=1))
    pair = load(folder, target_test=str(folder / "test"))
    assert (len(pair.target.y), len(pair.target_test.y)) == (5, 2)


def refused(folder: Path, message: str, **options: Any) -> None:
    with pytest.raises(FedmmError, match=re.escape(message)):
        load(folder, **options)


def test_classes_that_differ_are_named(folder: Path) -> None:
    write(folder / "there", pictures(0, emu=1))
    refused(folder, "target has a class 'emu' that source lacks; both must have the same class folders")
    write(folder / "here", pictures(0, emu=1, fox=1))
    refused(folder, "source has a class 'fox' that target lacks")
    write(folder / "there", pictures(0, fox=1))
    write(folder / "test", pictures(0, cat=1, dog=1, fox=1))
    refused(folder, "source has a class 'emu' that target_test lacks", target_test=str(folder / "test"))


def test_what_cannot_be_used_is_named(folder: Path) -> None:
    refused(folder, "source must name a folder of pictures", source="")
    refused(folder, "target must name a folder of pictures", target="")
    refused(folder, "nowhere cannot be read as a folder of pictures: No such file", source=str(folder / "nowhere"))
    write(folder, {"file": b"x", "loose/a.png": picture(0), "hidden/.a.png": picture(0)})
    refused(folder, "file cannot be read as a folder of pictures: Not a directory", target=str(folder / "file"))
    refused(folder, "loose has no class folders; sort its pictures into one", source=str(folder / "loose"))
    refused(folder, "hidden holds neither class folders nor pictures", source=str(folder / "hidden"))
    (folder / "here/empty").mkdir()
    refused(folder, f"the class folder {folder}/here/empty is empty")
    (folder / "here/empty").rmdir()
    write(folder / "there", {"cat/more/a.png": picture(0)})
    refused(folder, "there/cat/more is a folder inside a class's folder, which must hold only pictures")


def test_a_picture_beside_the_classes_is_named(folder: Path) -> None:
    write(folder / "there", {"stray.jpg": picture(0)})
    refused(folder, f"{folder}/there/stray.jpg is beside the class folders; move it into one of them")


def test_a_file_that_is_no_picture_is_named(folder: Path) -> None:
    write(folder / "there", {"dog/notes.txt": b"a good dog"})
    refused(folder, f"{folder}/there/dog/notes.txt cannot be read as a picture")


def test_options_are_checked() -> None:
    for options, message in (
        ({"augment": "no"}, "augment must be true or false"),
        ({"image_size": 300}, "stored_size must be between image_size = 300 and 4096"),
        ({"held_out": -0.1}, "held_out must be between 0 and 1"),
    ):
        with pytest.raises(FedmmError, match=message):
            ImageFolder(**options)


def test_all_bad_pictures_of_all_folders_are_named_at_once(folder: Path) -> None:
    write(folder, {"here/cat/a.png": b"no picture", "here/dog/b.jpg": b"", "there/dog/c.png": b"no picture"})
    with pytest.raises(FedmmError) as caught:
        load(folder)
    said = str(caught.value)
    assert said.startswith("3 pictures are bad: ")
    unknown = "it is in none of the formats BMP"
    for name, why in (("here/cat/a.png", unknown), ("here/dog/b.jpg", "the file is empty"), ("c.png", "")):
        assert re.search(f"{re.escape(name)} cannot be read as a picture: {why}", said)
    assert said.endswith("or skip them with data.skip_bad = true")
    assert "BytesIO" not in said
    assert "0x" not in said


def test_of_many_bad_pictures_the_first_are_named_and_the_others_counted(folder: Path) -> None:
    write(folder / "there" / "dog", {f"{number:03}.png": b"no picture" for number in range(50)})
    with pytest.raises(FedmmError, match=r"50 pictures are bad: .*019\.png .*; and 30 more"):
        load(folder)


def test_bad_pictures_are_skipped_where_that_is_asked_for(folder: Path) -> None:
    before = load(folder)
    write(folder, {"here/cat/a.png": b"no picture", "there/dog/c.png": b"no picture"})
    pair = load(folder, skip_bad=True)
    assert torch.equal(pair.source.x, before.source.x)
    assert torch.equal(pair.target.y, before.target.y)
    (note,) = pair.notes
    assert note.startswith(f"2 bad pictures were skipped: {folder}/here/cat/a.png cannot be read")
    assert before.notes == ()
    write(folder / "here", {"emu/a.png": b"no picture"})
    write(folder / "there", {"emu/a.png": picture(1, 20, 16)})
    with pytest.raises(FedmmError, match=r"no picture in .*here/emu can be read"):
        load(folder, skip_bad=True)


def test_files_of_file_managers_are_no_pictures(folder: Path) -> None:
    before = load(folder)
    left = ("Thumbs.db", "desktop.ini", ".DS_Store")
    write(folder / "here", {f"{place}{name}": b"x" for place in ("", "cat/") for name in left})
    write(folder / "here", {"__MACOSX/cat/._1.png": b"x"})
    pair = load(folder)
    assert torch.equal(pair.source.x, before.source.x)
    assert pair.class_names == before.class_names


def test_bad_pictures_of_sites_are_skipped(folder: Path) -> None:
    write(folder / "sites", {f"north/{name}": content for name, content in pictures(0, cat=3, dog=3).items()})
    write(folder / "sites", {"south/a.png": picture(1, 20, 16), "south/b.png": b"no picture"})
    options = {"source": "", "target": "", "sites": str(folder / "sites")}
    with pytest.raises(FedmmError, match=r"south/b\.png cannot be read as a picture"):
        load(folder, **options)
    assert len(load(folder, **options, skip_bad=True).target.x) == 1
