"""The runs of a federation: handed to its SuperLink, followed, stopped and resumed."""

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
"""The unit in ``deploy/systemd``."""
SUBMITTED, RUN_CONFIG = "submitted.toml", "run-config.toml"
_FINISHED = "finished"


def submit(request: RunRequest, say: Say) -> int:
    """Hand a run to the SuperLink; Flower's number for it."""
    federation, folder = Federation(request.federation), request.folder
    settings = read_settings(federation)
    require(answers(settings), f"no SuperLink answers at {settings.address}; {_how_to_start(federation)}")
    require_private_keys(federation.certificates, federation.keys)
    write_app(federation)  # the folder may have been made by an older version, whose runs had fewer keys
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
    """Go on with a run as a new one of Flower's: a server that is still at work on it is ended, a SuperLink that is
    dead is started again. Flower's number for it.
    """
    folder = federation.run(name)
    try:
        text = (folder / SUBMITTED).read_text(encoding="utf-8")
    except OSError:
        raise federation.no_run(name) from None
    if end_server(folder):
        say("the server of the run was stopped")
    if not alive(federation).get(SUPERLINK, True):  # one that was started here
        start_superlink(federation, say)
    least, tuning = _read_start(folder)
    return submit(RunRequest(federation.folder, name, text, True, patience, patience, least, tuning), say)


def _read_start(folder: Path) -> tuple[int, str]:
    """With how many sites a run was to begin, and the tuning that it is."""
    try:
        config = parse_toml((folder / RUN_CONFIG).read_bytes(), RUN_CONFIG)
        return int(config.get("min-sites", 0)), str(config.get("tuning", ""))
    except (OSError, ValueError, TypeError):
        return 0, ""


def follow(federation: Federation, name: str, number: int, on_line: Say, pause: float = 1.0) -> str:
    """Tell what the server says until the run is over; how it ended, in Flower's words."""
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
    """What Flower says of a run, such as ``running`` or ``finished:completed``."""
    answer = flwr(federation, "list", CONNECTION, "--run-id", str(number))
    runs = answer.get("runs") or [{}]
    return str(runs[0].get("status", "unknown"))


def stop_run(federation: Federation, number: int) -> None:
    """End a run; what it has finished stays on disk."""
    with suppress(FedmmError):
        flwr(federation, "stop", str(number), CONNECTION)


def _explain_death(federation: Federation, name: str) -> str:
    going_on = f"`fedmm deploy resume {name} --federation {federation.folder}` continues the run"
    if _was_started_here(federation):
        return f"the SuperLink has died; {going_on}"
    return f"the SuperLink has died; {_how_to_start(federation)}; then {going_on}"


def _was_started_here(federation: Federation) -> bool:
    """Whether the federation's SuperLink was started by `up`, and not by a service or by hand."""
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
