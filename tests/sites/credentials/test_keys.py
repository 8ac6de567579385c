"""Keys that other accounts may read are refused, with what mends it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from fedmm import FedmmError
from fedmm.deploy.federation import start_superlink
from fedmm.deploy.layout import Federation, RunRequest
from fedmm.deploy.runs import follow, submit
from fedmm.deploy.server import serve
from fedmm.sites.credentials.certificates import make_certificates
from fedmm.sites.credentials.files import require_private_keys
from fedmm.sites.credentials.keys import make_node_key, read_node_key

pytestmark = pytest.mark.skipif(os.name != "posix", reason="file modes are POSIX's")


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o620, 0o601])
def test_a_node_key_that_others_may_read_is_refused_with_the_command_that_mends_it(tmp_path: Path, mode: int) -> None:
    key = tmp_path / "clinic"
    make_node_key(key)
    read_node_key(key, "superlink.key")
    key.chmod(mode)
    with pytest.raises(FedmmError, match=rf"superlink\.key may be read or changed .*mode {mode:o}.*chmod 600 {key}"):
        read_node_key(key, "superlink.key")
    key.chmod(0o400)
    read_node_key(key, "superlink.key")


@pytest.mark.parametrize("name", ["server.key", "ca.key", "clinic"])
def test_a_server_refuses_a_folder_with_a_key_that_others_may_read(tmp_path: Path, name: str) -> None:
    there = Federation(tmp_path)
    make_certificates(there.certificates, ["127.0.0.1"])
    make_node_key(there.keys / "clinic")
    require_private_keys(there.certificates, there.keys)
    there.about.write_text(json.dumps({"host": "127.0.0.1", "port": 1, "insecure": False, "sites": []}))
    (there.keys if name == "clinic" else there.certificates).joinpath(name).chmod(0o644)
    words = f"the private key {name} may be read"
    with pytest.raises(FedmmError, match=words):
        start_superlink(there, print)
    with pytest.raises(FedmmError, match=words):
        serve(None, RunRequest(tmp_path, "one", "[run]\nrounds = 1\n"))  # type: ignore[arg-type]
    assert words in (there.run("one") / "server.log").read_text()


def test_an_authority_whose_key_others_may_read_signs_nothing(tmp_path: Path) -> None:
    make_certificates(tmp_path, ["127.0.0.1"])
    (tmp_path / "server.pem").unlink()
    (tmp_path / "ca.key").chmod(0o604)
    with pytest.raises(FedmmError, match=r"the private key ca\.key may be read .*chmod 600"):
        make_certificates(tmp_path, ["127.0.0.1"])


def test_a_superlink_of_a_service_that_is_dead_is_told_apart_from_one_that_up_started(tmp_path: Path) -> None:
    there = Federation(tmp_path)
    there.about.write_text(json.dumps({"host": "127.0.0.1", "port": 1, "insecure": True, "sites": []}))

    def refused() -> str:
        with pytest.raises(FedmmError) as raised:
            submit(RunRequest(there.folder, "one", "", patience=1.0, enrol_seconds=1.0), print)
        return str(raised.value)

    assert "no SuperLink answers at 127.0.0.1:1" in refused()
    assert "`sudo systemctl restart fedmm-superlink` starts it again" in refused()
    there.processes.write_text(json.dumps([{"name": "superlink", "pid": 2**22 + 5, "began": 1}]))
    assert "systemctl" not in refused()
    assert f"`fedmm deploy up EXPERIMENT.toml --federation {tmp_path}` starts it again" in refused()


@pytest.mark.parametrize("service", [False, True])
def test_a_superlink_that_dies_under_a_run_is_told_with_what_to_do(tmp_path: Path, service: bool) -> None:
    there = Federation(tmp_path)
    there.about.write_text(json.dumps({"host": "127.0.0.1", "port": 1, "insecure": True, "sites": []}))
    there.run("one").mkdir(parents=True)
    (there.run("one") / "server.log").write_text("12:00:00 error: the connection was closed\n")
    if not service:
        there.processes.write_text(json.dumps([{"name": "superlink", "pid": 2**22 + 5, "began": 1}]))
    with pytest.raises(FedmmError, match="the SuperLink has died") as raised:
        follow(there, "one", 1, lambda line: None, pause=0.0)
    assert ("systemctl restart fedmm-superlink" in str(raised.value)) == service
    assert f"`fedmm deploy resume one --federation {tmp_path}` continues the run" in str(raised.value)
