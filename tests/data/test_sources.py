from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedmm.core.errors import FedmmError
from fedmm.data.datasets.office31 import DOMAINS
from fedmm.data.sources import NEEDED, StoredFile, read_checksums, sources, sources_of

digests = st.text("0123456789abcdef", min_size=64, max_size=64)
parts = st.text(st.characters(exclude_characters="/\\", exclude_categories=["C", "Z"]), min_size=1, max_size=8)
paths = st.lists(parts.filter(lambda part: part not in (".", "..")), min_size=1, max_size=3).map("/".join)
listed = st.lists(
    st.builds(StoredFile, paths, st.integers(0, 10**15 - 1), digests), unique_by=lambda file: file.path, max_size=5
)


@given(listed)
def test_a_list_of_checksums_is_read_as_it_was_written(files: list[StoredFile]) -> None:
    text = "".join(f"{file.sha256} {file.size} {file.path}\n" for file in files)
    assert read_checksums(text) == files


@given(st.text(max_size=200))
def test_any_other_text_is_refused_in_one_sentence(text: str) -> None:
    try:
        read_checksums(text)
    except FedmmError as refused:
        assert "must be 'sha256 size path' with a new path below the folder" in str(refused)  # noqa: PT017 - or it is read


@pytest.mark.parametrize("path", ["../a", "a/../b", "/a", "a//b", "a/", "./a", "a\\b", ""])
def test_a_path_that_leads_elsewhere_is_refused(path: str) -> None:
    with pytest.raises(FedmmError, match=r"x\.sha256, line 2, must be"):
        read_checksums(f"{'0' * 64} 1 fine\n{'0' * 64} 1 {path}\n", what="x.sha256")


def test_a_path_is_listed_once() -> None:
    with pytest.raises(FedmmError, match="line 2"):
        read_checksums(f"{'0' * 64} 1 a\n{'1' * 64} 1 a\n")


def test_addresses_end_with_the_name() -> None:
    (file,) = read_checksums(f"{'0' * 64} 1 deep/a.jpg", ["http://one/", "http://two/x/"])
    assert file.addresses == ("http://one/a.jpg", "http://two/x/a.jpg")


# The catalogue --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "files", "size"),
    [
        ("mnist", 4, 11_594_722),
        ("usps", 1, 2_913_522),
        ("bsds500", 200, 14_551_204),
        ("office31", 4110, 44_629_986),
        ("mobilenetv2", 1, 14_186_752),
    ],
)
def test_the_first_edition_has_a_size_and_a_checksum_for_every_file(name: str, files: int, size: int) -> None:
    first = sources()[name].editions[0]
    assert len(first.files) == files
    assert sum(file.size or 0 for file in first.files) == size
    assert all(len(file.sha256) == 64 for file in first.files)


def test_every_source_can_be_had_from_the_public() -> None:
    for source in sources().values():
        assert any(edition.public for edition in source.editions), source.name
        for edition in source.editions:
            for holder in (*edition.files, *edition.archives):
                assert all(address.startswith("https://") for address in holder.addresses)


def test_office31_has_31_classes_in_each_domain() -> None:
    office = sources()["office31"]
    assert office.parts == DOMAINS
    found = {domain: {file.path.split("/")[1] for file in office.editions[0].below(domain).files} for domain in DOMAINS}
    assert all(len(classes) == 31 and classes == found["amazon"] for classes in found.values())
    counts = [len(office.editions[1].below(domain).files) for domain in DOMAINS]
    assert counts == [2817, 498, 795]


def test_a_data_set_stands_for_its_sources() -> None:
    assert [source.name for source in sources_of("mnist_m")] == ["mnist", "bsds500"]
    assert [source.name for source in sources_of("usps")] == ["mnist", "usps"]
    assert [source.name for source in sources_of("office31")] == ["office31"]
    assert all(set(needed) <= set(sources()) for needed in NEEDED.values())
    with pytest.raises(FedmmError, match="unknown data 'office'; did you mean 'office31'"):
        sources_of("office")
