"""A site's file: what it may say, and how it is refused."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from fedmm import FedmmError
from fedmm.deploy.site_config import read_site

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
"""


def test_paths_are_relative_to_the_file(tmp_path: Path) -> None:
    site = read_site(write(tmp_path, GOOD))
    assert site.state == tmp_path / "kept"
    assert site.path(site.superlink.key) == tmp_path / "keys" / "clinic-a"
    assert (site.data.labels, site.site.depth, site.site.worker) == ((0, 2), 2, "resident")


def write(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "site.toml"
    file.write_text(text)
    return file


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('name = "clinic-a"\n', "", "site.name is missing"),
        ('name = "clinic-a"', 'name = " "', "site.name must say what the site is called"),
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
        ('kind = "npz"', 'kind = "table"\nfeatures = ["a"]\nlabel = "a"', "data.features names the column of labels"),
        ('state = "kept"', "descriptions = -1", "site.descriptions must be 0 or more"),
        ('path = "rows.npz"\n', "", "data.path must say where the npz rows are"),
        ('domain = "source"', 'domain = "sauce"', "data.domain must be one of source, target, both, not 'sauce'"),
        ("labels = [0, 2]", 'labels = ["a"]', "data.labels must be a list of whole numbers"),
        ("labels = [0, 2]", "stored_size = 0", "data.stored_size must be at least 1, not 0"),
        ('state = "kept"', "depth = 1", "site.depth must be at least 2, not 1"),
        ('state = "kept"', 'worker = "none"', "site.worker must be one of resident, each-message, not 'none'"),
        ('"link.example.org:9092"', '"link.example.org"', "superlink.address must be host:port"),
        ('certificate = "ca.crt"\n', "", "superlink.certificate and superlink.key must name files"),
        ('"link.example.org:9092"', '"link.example.org:99999"', "superlink.address must be host:port"),
        ('certificate = "ca.crt"', "insecure = true", "plain text .* is for this machine alone .* 'link.example.org'"),
        ('key = "keys/clinic-a"', "key = true", "superlink.key must be text, not True"),
    ],
)
def test_what_is_wrong_is_said_in_one_sentence(tmp_path: Path, old: str, new: str, words: str) -> None:
    assert old in GOOD
    with pytest.raises(FedmmError, match=words):
        read_site(write(tmp_path, GOOD.replace(old, new)))


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]", "127.8.9.1"])
def test_plain_text_is_for_this_machine(tmp_path: Path, host: str) -> None:
    text = GOOD.replace('certificate = "ca.crt"', "insecure = true").replace("link.example.org", host)
    assert read_site(write(tmp_path, text)).superlink.insecure


@pytest.mark.parametrize("text", ["[site", "\x00", ""])
def test_what_is_no_toml_or_empty_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(FedmmError, match=r"cannot be read as TOML|name is missing"):
        read_site(write(tmp_path, text))
    with pytest.raises(FedmmError, match="there is no file"):
        read_site(tmp_path / "nowhere.toml")


def test_the_app_that_flower_starts_for_each_message_loads_no_torch() -> None:
    program = "import fedmm.deploy.site_app, sys; print([m for m in ('torch', 'sklearn', 'scipy') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_sites_supervisor_which_lives_for_months_loads_no_torch() -> None:
    program = (
        "import sys; import fedmm.cli; import fedmm.deploy.supervisor\n"
        "sys.argv = ['fedmm', 'deploy', 'site', 'nowhere.toml']\n"
        "try:\n    fedmm.cli.main()\n"
        "except SystemExit as ended:\n    print(ended.code, {'torch', 'sklearn', 'scipy'} & {*sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "2 set()"
    assert done.stderr == "error: there is no file nowhere.toml\n"
