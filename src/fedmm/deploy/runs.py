"""The runs of a federation: submit them to its SuperLink, follow, stop and resume them."""

from __future__ import annotations

import re
import time
from contextlib import suppress
from pathlib import Path

from fedmm.config.toml import write_toml
from fedmm.core.errors import FedmmError, Say, require
from fedmm.core.files import parse_toml, write_text
from fedmm.deploy.federation import SUPERLINK, alive, answers, start_superlink
from fedmm.deploy.flower_commands import CONNECTION, flwr, write_app
from fedmm.deploy.layout import Federation, RunRequest, read_settings
from fedmm.deploy.processes import read_log
from fedmm.deploy.run_state import end_server
from fedmm.sites.credentials.files import require_private_keys

SERVICE = "fedmm-superlink"
"""The systemd unit in ``deploy/systemd``."""
SUBMITTED, RUN_CONFIG = "submitted.toml", "run-config.toml"
_FINISHED = "finished"


def submit(request: RunRequest, say: Say) -> int:
    """Submit a run to the SuperLink; return Flower's number for it."""
    federation, folder = Federation(request.federation), request.folder
    settings = read_settings(federation)
    require(answers(settings), f"no SuperLink answers at {settings.address}; {_how_to_start(federation)}")
    require_private_keys(federation.certificates, federation.keys)
    write_app(federation)  # an older version, whose runs had fewer keys, may have made the folder
    write_text(folder / SUBMITTED, request.experiment)
    file = folder / RUN_CONFIG
    write_text(file, write_toml(request.run_config()))
    answer = flwr(federation, "run", str(federation.app.resolve()), CONNECTION, "--run-config", str(file.resolve()))
    number = int(answer["run-id"])
    with (folder / "flower-runs.txt").open("a", encoding="utf-8") as listed:
        listed.write(f"{number}\n")
    say(f"run {request.name} is Flower's run {number}; rounds and log in {folder}")
    return number


def resume(federation: Federation, name: str, *, patience: float, say: Say) -> int:
    """Resume a run as a new one of Flower's, and return its number.

    Stop a server that is still running it first; restart a SuperLink that was started here and has died.
    """
    folder = federation.run(name)
    try:
        text = (folder / SUBMITTED).read_text(encoding="utf-8")
    except OSError:
        raise federation.no_run(name) from None
    if end_server(folder):
        say("the server of the run was stopped")
    if not alive(federation).get(SUPERLINK, True):  # it was started here and has died
        start_superlink(federation, say)
    least, tuning = _read_start(folder)
    return submit(RunRequest(federation.folder, name, text, True, patience, patience, least, tuning), say)


def _read_start(folder: Path) -> tuple[int, str]:
    """Return how many sites a run was to start with, and its tuning, if any."""
    try:
        config = parse_toml((folder / RUN_CONFIG).read_bytes(), RUN_CONFIG)
        return int(config.get("min-sites", 0)), str(config.get("tuning", ""))
    except (OSError, ValueError, TypeError):
        return 0, ""


def follow(federation: Federation, name: str, number: int, on_line: Say, pause: float = 1.0) -> str:
    """Report the server's log until the run is over; return how it ended, in Flower's words."""
    log = federation.run(name) / "server.log"
    place = log.stat().st_size if log.exists() else 0
    looked = time.monotonic()
    while True:
        place = _tell_new_lines(log, place, on_line)
        if _over(federation, name) or time.monotonic() - looked > 20.0:
            looked = time.monotonic()
            require(answers(read_settings(federation)), _explain_death(federation, name))
            status = run_status(federation, number)
            if status.startswith(_FINISHED):
                _tell_new_lines(log, place, on_line)
                return status
        if not alive(federation).get(SUPERLINK, True):
            raise FedmmError(_explain_death(federation, name))
        time.sleep(pause)


def run_status(federation: Federation, number: int) -> str:
    """Return Flower's status of a run, such as ``running`` or ``finished:completed``."""
    answer = flwr(federation, "list", CONNECTION, "--run-id", str(number))
    runs = answer.get("runs") or [{}]
    return str(runs[0].get("status", "unknown"))


def stop_run(federation: Federation, number: int) -> None:
    """Stop a run; the rounds it has finished stay on disk."""
    with suppress(FedmmError):
        flwr(federation, "stop", str(number), CONNECTION)


def _explain_death(federation: Federation, name: str) -> str:
    going_on = f"`fedmm deploy resume {name} --federation {federation.folder}` continues the run"
    if _was_started_here(federation):
        return f"the SuperLink has died; {going_on}"
    return f"the SuperLink has died; {_how_to_start(federation)}; then {going_on}"


def _was_started_here(federation: Federation) -> bool:
    """Return whether `up` started the federation's SuperLink, rather than a service or a person."""
    return SUPERLINK in alive(federation)


def _how_to_start(federation: Federation) -> str:
    if _was_started_here(federation):
        return f"`fedmm deploy up EXPERIMENT.toml --federation {federation.folder}` starts it again"
    return (
        f"`fedmm deploy up` did not start one from {federation.folder}: where a service runs it, `journalctl -u "
        f"{SERVICE}` says why it ended and `sudo systemctl restart {SERVICE}` starts it again (in containers `docker "
        "compose up -d superlink`); where none does, `fedmm deploy up` starts one"
    )


def _over(federation: Federation, name: str) -> bool:
    text = read_log(federation.run(name) / "server.log").rstrip().rpartition("\n")[2]
    return bool(re.search(r"(completed|interrupted|diverged) after round|tuning (completed|out of time)|error: ", text))


def _tell_new_lines(log: Path, place: int, on_line: Say) -> int:
    with suppress(OSError), log.open(encoding="utf-8") as file:
        file.seek(place)
        text = file.read()
        whole = text[: text.rfind("\n") + 1]
        for line in whole.splitlines():
            on_line(line)
        return place + len(whole.encode())
    return place
