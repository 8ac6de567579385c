"""A site's file: what it may say, and how it is refused."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from fedmm import FedmmError
from fedmm.sites.config import read_site

GOOD = """
[site]
name = "clinic-a"
state = "kept"

[data]
kind = "npz"
path = "rows.npz"
domain = "source"
labels = [0, 2]

[superlink]
address = "link.example.org:9092"
certificate = "ca.crt"
key = "keys/clinic-a"
coordinator = "coordinator.pub"
"""


def test_paths_are_relative_to_the_file(tmp_path: Path) -> None:
    site = read_site(write(tmp_path, GOOD))
    assert site.state == tmp_path / "kept"
    assert site.path(site.superlink.key) == tmp_path / "keys" / "clinic-a"
    assert (site.data.labels, site.site.depth) == ((0, 2), 2)


def write(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "site.toml"
    file.write_text(text)
    return file


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('name = "clinic-a"\n', "", "site.name is missing"),
        ('name = "clinic-a"', 'name = " "', "site.name must not be empty"),
        ('name = "clinic-a"', "name = 3", "site.name must be text, not 3"),
        ("[site]", "[sight]", "unknown section of .* 'sight'; did you mean 'site'"),
        ("kind", "kin", r"unknown key in \[data\] 'kin'; did you mean 'kind'"),
        ('kind = "npz"', 'kind = "csv"', "data.kind must be one of share, npz, images, table, not 'csv'"),
        ("labels = [0, 2]", 'label = "num"', "data.label is for data.kind = 'table'"),
        ("labels = [0, 2]", 'classes = { 0 = "ill" }', "data.classes is for data.kind = 'table'"),
        ("labels = [0, 2]", "classes = { 0 = 1 }", "data.classes must be a table of words"),
        ("labels = [0, 2]", 'features = "age"', "data.features must be a list of words"),
        ('kind = "npz"', 'kind = "table"', "data.features must list the columns of the table that may be learnt from"),
        ('kind = "npz"', 'kind = "table"\nfeatures = ["a"]', "data.label must name the column of classes"),
        ('kind = "npz"', 'kind = "table"\nfeatures = ["a"]\nlabel = "a"', "data.features names the label column"),
        ('state = "kept"', "descriptions = -1", "site.descriptions must be 0 or more"),
        ('path = "rows.npz"\n', "", "data.path must say where the npz rows are"),
        ('domain = "source"', 'domain = "sauce"', "data.domain must be one of source, target, both, not 'sauce'"),
        ("labels = [0, 2]", 'labels = ["a"]', "data.labels must be a list of whole numbers"),
        ("labels = [0, 2]", "stored_size = 0", "data.stored_size must be at least 1, not 0"),
        ('state = "kept"', "depth = 1", "site.depth must be at least 2, not 1"),
        ('"link.example.org:9092"', '"link.example.org"', "superlink.address must be host:port"),
        ('certificate = "ca.crt"\n', "", "superlink.certificate, superlink.key and .*must name files"),
        ('"link.example.org:9092"', '"link.example.org:99999"', "superlink.address must be host:port"),
        ('certificate = "ca.crt"', "insecure = true", "plain text .* is only for this machine .* 'link.example.org'"),
        ('key = "keys/clinic-a"', "key = true", "superlink.key must be text, not True"),
        ('state = "kept"', "min_rows = 0", "policy.min_rows must be at least 1, not 0"),
        ("[data]", "[policy]\nmin_batch_size = 0\n[data]", "policy.min_batch_size must be at least 1, not 0"),
        ("[data]", "[policy]\nmax_rounds = -1\n[data]", "policy.max_rounds must be 0 or more, not -1"),
        ("[data]", "[policy]\nmax_rounds = 1.5\n[data]", "policy.max_rounds must be a whole number, not 1.5"),
        ("[data]", "[policy]\nmax_epsilon = 0\n[data]", "policy.max_epsilon must be above 0, not 0"),
        ("[data]", "[policy]\nmax_epsilon = nan\n[data]", "policy.max_epsilon must be above 0, not nan"),
        ("[data]", "[policy]\ndelta = 1\n[data]", "policy.delta must be between 0 and 1, not 1"),
        ("[data]", '[policy]\nallow_paths = "/a"\n[data]', "policy.allow_paths must be a list of words, not '/a'"),
        ("[data]", '[policy]\nallow_imports = ["a b"]\n[data]', "policy.allow_imports takes a module such as .*'a b'"),
        ("[data]", "[policy]\nrequire_aproval = true\n[data]", "'require_aproval'; did you mean 'require_approval'"),
    ],
)
def test_what_is_wrong_is_said_in_one_sentence(tmp_path: Path, old: str, new: str, words: str) -> None:
    assert old in GOOD
    with pytest.raises(FedmmError, match=words):
        read_site(write(tmp_path, GOOD.replace(old, new)))


def test_min_rows_has_an_older_name(tmp_path: Path) -> None:
    older = GOOD.replace('state = "kept"', "min_rows = 7")
    assert read_site(write(tmp_path, older)).policy.min_rows == 7
    assert read_site(write(tmp_path, f"{older}\n[policy]\nmin_rows = 7\n")).policy.min_rows == 7
    with pytest.raises(FedmmError, match=r"site.min_rows = 7 is the old name of policy.min_rows, which is 8"):
        read_site(write(tmp_path, f"{older}\n[policy]\nmin_rows = 8\n"))


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]", "127.8.9.1"])
def test_plain_text_is_for_this_machine(tmp_path: Path, host: str) -> None:
    text = GOOD.replace('certificate = "ca.crt"', "insecure = true").replace("link.example.org", host)
    assert read_site(write(tmp_path, text)).superlink.insecure


@pytest.mark.parametrize("text", ["[site", "\x00", ""])
def test_what_is_no_toml_or_empty_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(FedmmError, match=r"is not valid TOML|cannot be read|name is missing"):
        read_site(write(tmp_path, text))
    with pytest.raises(FedmmError, match="there is no file"):
        read_site(tmp_path / "nowhere.toml")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            GOOD.replace('state = "kept"', 'state = "kept"\nworker = "resident"'),
            r"site\.worker is no longer used: a site works in a single process; remove the line",
        ),
        (
            GOOD + "runtime_port = 9094\n",
            r"superlink\.runtime_port is no longer used: a site opens no port; remove the line",
        ),
    ],
)
def test_keys_of_older_versions_are_refused_with_what_to_do(tmp_path: Path, text: str, sentence: str) -> None:
    with pytest.raises(FedmmError, match=sentence):
        read_site(write(tmp_path, text))


def test_a_mistake_in_a_sites_file_is_told_before_torch_is_loaded() -> None:
    program = (
        "import sys; import fedmm.cli\n"
        "sys.argv = ['fedmm', 'deploy', 'site', 'nowhere.toml']\n"
        "try:\n    fedmm.cli.main()\n"
        "except SystemExit as ended:\n    print(ended.code, {'torch', 'sklearn', 'scipy'} & {*sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "2 set()"
    assert done.stderr == "error: there is no file nowhere.toml\n"
