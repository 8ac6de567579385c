"""What old runs left behind goes, and nothing else."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest
from deploy.test_serving import grid_of, served, small
from typer.testing import CliRunner

from fedmm import FedmmError
from fedmm.cli.deploy import deploy_app
from fedmm.deploy.clean import Keeping, clean_coordinator, clean_site
from fedmm.deploy.layout import Federation
from fedmm.deploy.server import serve
from fedmm.sites.config import read_site

OLD = time.time() - 90 * 86400


def write(path: Path, *, old: bool = True) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(bytes(5000))
    age(path, old)
    return path


def age(path: Path, old: bool = True) -> None:
    for each in (path, *path.parents[:3]):
        os.utime(each, (OLD, OLD) if old else None)


@pytest.fixture
def site(tmp_path: Path) -> Path:
    file = tmp_path / "site.toml"
    file.write_text('[site]\nname = "a"\nstate = "state"\n[superlink]\naddress = "127.0.0.1:1"\ninsecure = true\n')
    state = tmp_path / "state"
    for name in ("runs/first/a/round-00000001.safetensors", "runs/kept/a/round-00000001.safetensors"):
        write(state / name)
    for name in ("rows/0123/about.json", "flower/apps/one/app.py"):
        write(state / name)
    for name in ("audit.jsonl", "noise.secret", "ledger.json", "keys/a", "certificates/server.key"):
        write(state / name)
    write(state / "runs" / "new" / "a" / "round-00000001.safetensors", old=False)
    write(state / "rows" / "4567" / "about.json", old=False)
    return file


def there(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file() and path.name != "site.lock"}


def test_a_site_keeps_what_is_new_named_or_secret(site: Path) -> None:
    state = site.parent / "state"
    before = there(state)
    found = clean_site(read_site(site), Keeping(["kept"]), remove=False)
    assert there(state) == before
    assert [each.path.name for each in found] == ["first", "0123", "one"]
    assert all(each.bytes >= 5000 for each in found)
    assert clean_site(read_site(site), Keeping(["kept"]), remove=True) == found
    gone = {"runs/first/a/round-00000001.safetensors", "rows/0123/about.json", "flower/apps/one/app.py"}
    assert before - there(state) == gone


def test_with_no_days_only_what_is_named_stays(site: Path) -> None:
    clean_site(read_site(site), Keeping(["kept"], 0.0), remove=True)
    kept = {"runs/kept/a/round-00000001.safetensors", "audit.jsonl", "noise.secret", "ledger.json"}
    assert there(site.parent / "state") == kept | {"keys/a", "certificates/server.key"}


def test_a_site_that_is_at_work_is_not_cleaned(site: Path) -> None:
    import fcntl

    before = there(site.parent / "state")
    with (site.parent / "state" / "site.lock").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(FedmmError, match="is already running; stop it first"):
            clean_site(read_site(site), Keeping(), remove=True)
    assert there(site.parent / "state") == before
    with read_site(site).lock():
        pass


def test_links_are_not_followed(site: Path, tmp_path: Path) -> None:
    outside = write(tmp_path / "outside" / "precious")
    (site.parent / "state" / "runs" / "link").symlink_to(outside.parent)
    (site.parent / "state" / "runs" / "first" / "inside").symlink_to(outside.parent)
    clean_site(read_site(site), Keeping(days=0.0), remove=True)
    assert outside.exists()


def test_the_command_shows_asks_and_removes(site: Path) -> None:
    state, runner = site.parent / "state", CliRunner()
    before = there(state)
    shown = runner.invoke(deploy_app, ["clean", str(site), "--dry-run"])
    assert "states of the run first" in shown.output
    assert "nothing is removed; found 4 of" in shown.output
    declined = runner.invoke(deploy_app, ["clean", str(site)], input="n\n")
    assert isinstance(declined.exception, FedmmError)
    assert there(state) == before
    assert "removed 4 of" in runner.invoke(deploy_app, ["clean", str(site), "--yes"]).output
    assert "nothing is removed; found 0 of 0 bytes" in runner.invoke(deploy_app, ["clean", str(site), "--yes"]).output


def test_at_the_coordinator_completed_runs_keep_their_model_and_unfinished_ones_everything(tmp_path: Path) -> None:
    each = small(run={"rounds": 2})
    grid = grid_of(tmp_path, each)
    serve(grid, served(tmp_path, each))
    federation = Federation(tmp_path)
    federation.about.write_text(json.dumps({"host": "127.0.0.1", "port": 1, "insecure": True, "sites": []}))
    unfinished = write(tmp_path / "runs" / "two" / "checkpoints" / "round-00000001.safetensors")
    write(tmp_path / "flower" / "apps" / "one" / "app.py")
    write(tmp_path / "keys" / "a")
    run = tmp_path / "runs" / "one"
    kept = clean_coordinator(federation, Keeping(["one"], 0.0), remove=False)
    assert {leftover.what for leftover in kept} == {"an app that Flower unpacked", "a copy of rows"}
    old = clean_coordinator(federation, Keeping(), remove=False)
    assert {leftover.what for leftover in old} == {"an app that Flower unpacked"}
    before = there(tmp_path)
    found = clean_coordinator(federation, Keeping(days=0.0), remove=True)
    assert {path.name for path in (leftover.path for leftover in found)} >= {"parts", "round-00000002.safetensors"}
    gone = before - there(tmp_path)
    assert (run / "model.safetensors").exists()
    assert unfinished.exists()
    assert any("state/source-1/runs" in name for name in gone)
    assert not any(name.startswith("keys") or name.endswith(("model.safetensors", "rounds.jsonl")) for name in gone)
    with pytest.raises(FedmmError, match="has completed, and its checkpoints were removed"):
        serve(grid, served(tmp_path, each, resume=True))


def test_a_number_of_days_and_a_folder_have_to_make_sense(tmp_path: Path) -> None:
    with pytest.raises(FedmmError, match="--days must be 0 or more"):
        Keeping(days=-1.0)
    with pytest.raises(FedmmError, match="holds no federation"):
        clean_coordinator(Federation(tmp_path), Keeping(), remove=False)
