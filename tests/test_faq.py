"""The errors that docs/faq.md quotes are what the program says."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fedmm
from fedmm.cli import main
from fedmm.core.errors import FedmmError
from fedmm.data.datasets.office31 import Office31
from fedmm.data.datasets.table import Table
from fedmm.data.sources import StoredFile, read_file
from fedmm.models import Backbone
from fedmm.runs.run_folder import RunFolder
from fedmm.sites.config import SuperLinkSection

PAGE = (Path(__file__).parents[1] / "docs" / "faq.md").read_text(encoding="utf-8")
QUOTED = re.findall(r"^error: (.+)$", PAGE, re.MULTILINE)
SMALL = """
[run]
rounds = 2
[data]
name = "moons"
rows = 20
test_rows = 10
[model]
name = "mlp"
hidden = [4]
[algorithm]
name = "fedmm"
"""


def is_quoted(message: str) -> bool:
    """Whether the page has the sentence; three dots on the page stand for anything."""
    patterns = (re.escape(quoted).replace(re.escape("..."), ".*") for quoted in QUOTED)
    return any(re.fullmatch(pattern, message) for pattern in patterns)


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


# From Python ----------------------------------------------------------------------------------------------------------

X, Y = torch.arange(48.0).reshape(12, 4) / 48, torch.arange(12) % 2
CLINIC, HOSPITAL = fedmm.Client(source=(X, Y), name="clinic"), fedmm.Client(target=X, name="hospital")


class DropsItself(nn.Linear):
    def forward(self, rows: Tensor) -> Tensor:
        return nn.functional.dropout(super().forward(rows), 0.5)


def adapt(*clients: fedmm.Client, features: nn.Module | None = None, **options: Any) -> None:
    network = fedmm.Network(features or nn.Linear(4, 8), classes=2)
    fedmm.adapt(clients or (CLINIC, HOSPITAL), network, rounds=1, progress=False, **options)


def truncated() -> None:
    Path("images.gz").write_bytes(b"not the file")
    read_file(Path(), StoredFile("images.gz", sha256="8d" * 32, size=1648877))


def another_label() -> None:
    Path("patients.csv").write_text("hospital,marker_a,marker_b,smoker,sick\nOslo,1,2,yes,0\n")
    Table(file="patients.csv", label="ill").load()


def full_disk() -> None:
    if not Path("/dev/full").is_char_device():
        pytest.skip("needs a device that is always full")
    Path("runs/mine").mkdir(parents=True)
    Path("runs/mine/rounds.jsonl").symlink_to("/dev/full")
    with RunFolder(Path("runs/mine"), {}) as files:
        files.append({"round": 1})


PROVOKED: dict[str, Callable[[], object]] = {
    "penalty 0": lambda: fedmm.FedMM(penalty_min=0),
    "an oracle without labels": lambda: adapt(best_by="oracle_target_accuracy"),
    "not finite rows": lambda: adapt(fedmm.Client(source=(X * float("nan"), Y), name="clinic"), HOSPITAL),
    "labels from 1": lambda: adapt(fedmm.Client(source=(X, Y + 1), name="clinic"), HOSPITAL),
    "no source": lambda: adapt(HOSPITAL),
    "another width": lambda: adapt(features=nn.Linear(3, 8)),
    "random numbers of its own": lambda: adapt(features=DropsItself(4, 8)),
    "batch normalisation of one row": lambda: adapt(features=nn.BatchNorm1d(4), batch_size=1),
    "a module that is not allowed": lambda: Backbone(backbone="my_net:tower").build((4,), 2, 0),
    "no data": lambda: Office31().load(),
    "a truncated file": truncated,
    "no such column": another_label,
    "plain text": lambda: SuperLinkSection("192.168.0.5:9092", insecure=True),
    "no certificate": lambda: SuperLinkSection("192.168.0.5:9092"),
    "a full disk": full_disk,
}


@pytest.mark.parametrize("what", PROVOKED)
def test_the_page_quotes_an_error_truly(what: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FEDMM_DATA", str(tmp_path))
    with pytest.raises(FedmmError) as raised:
        PROVOKED[what]()
    assert is_quoted(str(raised.value)), raised.value


def test_the_page_quotes_a_missing_extra_truly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(FedmmError) as raised:
        another_label()
    assert is_quoted(str(raised.value)), raised.value


# From the command line ------------------------------------------------------------------------------------------------


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """What ``fedmm run small.toml`` with some arguments says on standard error."""
    Path("small.toml").write_text(SMALL)

    def run(*arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", ["fedmm", "run", "small.toml", *arguments])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code in (0, 2)
        return capsys.readouterr().err.strip().removeprefix("error: ")

    return run


@pytest.mark.parametrize(
    "setting",
    ["algorithm.penalty=2", "objective.name=dan", "run.rounds=abc", "run.best_by=target_accuracy"],
)
def test_the_page_quotes_a_refused_setting_truly(told: Callable[..., str], setting: str) -> None:
    message = told("--set", setting, "--out", "runs/mine")
    assert is_quoted(message), message


def test_the_page_quotes_a_divergence_truly(told: Callable[..., str]) -> None:
    message = told("--set", "algorithm.lr_min=1e30", "--set", "algorithm.lr_max=1e30", "--out", "runs/hot")
    assert is_quoted(message), message


def test_the_page_quotes_truly_what_is_said_of_a_folder_in_use(told: Callable[..., str]) -> None:
    assert told("--out", "runs/mine") == ""
    for message in (told("--out", "runs/mine"), told("--out", "runs/mine", "--set", "run.seed=7", "--resume")):
        assert is_quoted(message), message


def test_every_quoted_error_is_provoked_here() -> None:
    """Four by settings, one by a divergence, two by a folder in use, one by a missing extra."""
    assert len(QUOTED) == len(PROVOKED) + 4 + 1 + 2 + 1
