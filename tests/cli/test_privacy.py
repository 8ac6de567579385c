"""``fedmm privacy`` tells what noise is worth, and trains nothing."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedmm.cli.app import app
from fedmm.core.errors import FedmmError

FILE = """
[run]
rounds = 30
probe_rows = 0
[data]
name = "moons"
rows = 60
test_rows = 10
[partition]
name = "source_target"
source_clients = 2
target_clients = 2
[model]
name = "mlp"
centre = "none"
[transmission]
name = "gaussian"
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "noisy.toml"
    path.write_text(FILE)
    return path


def told(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["privacy", *arguments], catch_exceptions=False)
    assert result.exit_code == 0
    return result.stdout


def test_epsilon_and_the_noise_for_another_are_told(file: Path, tmp_path: Path) -> None:
    text = told(str(file), "--epsilon", "8")
    assert "4 clients, 4 in a round, 30 rounds; a client is hidden from the server and all others" in text
    assert re.search(r"epsilon \d+\.?\d* with delta 1e-05 after the last", text)
    noise = re.search(r"noise_min = transmission.noise_max = (\S+)", text)
    assert noise
    settings = [f"--set=transmission.{each}={noise[1]}" for each in ("noise_min", "noise_max")]
    reached = re.search(r"epsilon (\S+) ", told(str(file), *settings))
    assert reached
    assert float(reached[1]) == pytest.approx(8.0, rel=1e-2)
    assert list(tmp_path.iterdir()) == [file]


def test_a_trusted_server_is_for_algorithms_whose_clients_keep_nothing(file: Path) -> None:
    trusted = [str(file), "--set", "transmission.trust=server"]
    with pytest.raises(FedmmError, match=r"those of fedmm_restrained keep 'dual', .* such as fedavg_gda"):
        told(*trusted)
    trusted += ["--set", "algorithm.name=fedavg_gda"]
    assert "hidden from all others" in told(*trusted)
    assert "learn who takes part" not in told(*trusted)
    settings = (
        "partition.source_clients=58",
        "run.participation=0.05",
        "transmission.noise_min=9",
        "transmission.noise_max=9",
    )
    few = told(*trusted, *(f"--set={each}" for each in settings))
    secret, known = (float(each) for each in re.findall(r"epsilon (\S+) ", few))
    assert secret < known
    assert "if others learn who takes part, as the sites of a deployment do" in few


def test_there_is_nothing_to_tell_without_noise(file: Path) -> None:
    with pytest.raises(FedmmError, match=r"set transmission\.name to 'gaussian'"):
        told(str(file), "--set", "transmission.name=exact")
