"""A site's record of masked updates and opened sums, on disk before anything is sent, so that no mask is reused."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedmm.core.errors import FedmmError, require


@dataclass(frozen=True)
class Uploaded:
    """A masked update. label: of its round. digest: of the update it hides. own, shared: the seeds of its masks."""

    run: str
    session: int
    round: int
    label: bytes
    digest: str
    own: bytes
    shared: dict[str, bytes]


class MaskLedger:
    """A site's masked updates and opened sums, of all runs. path: an append-only file; None to keep it in memory.

    The difference of two sums over different sites would reveal an update. So a site masks only one update per round
    of a session, and helps to open a round's sum, or any sum with the same update, only for one set of sites, however
    often it is asked and in whichever run.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._sent: dict[tuple[str, int, int], Uploaded] = {}
        self._opened: dict[tuple[str, int] | str, list[str]] = {}
        if path is not None and path.exists():
            self._read(path)

    def own_seed(self, run: str, session: int, round: int, label: bytes, digest: str) -> bytes | None:
        """Return the mask seed if this update was sent before, else None; refuse another update or other sites."""
        before = self._sent.get((run, session, round))
        if before is None:
            return None
        require(
            (before.label, before.digest) == (label, digest),
            f"it has already masked a different update for round {round + 1}, or for other sites, and will not mask a "
            "second one",
        )
        return before.own

    def sent(self, run: str, session: int, round: int) -> Uploaded | None:
        """Return the masked update of a round; None if there is none."""
        return self._sent.get((run, session, round))

    def uploads(self, each: Uploaded) -> None:
        """Record an update before it is sent."""
        shared = {name: seed.hex() for name, seed in each.shared.items()}
        self._note(
            {
                "run": each.run,
                "session": each.session,
                "round": each.round,
                "label": each.label.hex(),
                "digest": each.digest,
                "own": each.own.hex(),
                "shared": shared,
            }
        )
        self._sent[each.run, each.session, each.round] = each

    def opens(self, upload: Uploaded, survivors: list[str]) -> None:
        """Record a sum before it is opened; refuse one of the same round or update over different sites."""
        sums: tuple[tuple[str, int] | str, ...] = ((upload.run, upload.round), upload.digest)
        for before in (self._opened.get(key) for key in sums):
            require(
                before in (None, survivors),
                f"it has already helped open a sum over other sites in round {upload.round + 1}; a second one would "
                "reveal an update",
            )
        if any(key not in self._opened for key in sums):
            self._note({"opened": [upload.run, upload.round, upload.digest], "survivors": survivors})
            self._opened |= dict.fromkeys(sums, survivors)

    def _note(self, line: dict[str, Any]) -> None:
        if self._path is None:
            return
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            number = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            with os.fdopen(number, "ab") as file:
                file.write(json.dumps(line).encode() + b"\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as problem:
            raise FedmmError(
                f"the masks of a round cannot be recorded in {self._path}: {problem.strerror}"
            ) from problem

    def _read(self, path: Path) -> None:
        content = path.read_bytes()
        whole = content.rfind(b"\n") + 1
        if whole < len(content):  # a crash interrupted the last line, so nothing was sent for it
            os.truncate(path, whole)
        for text in content[:whole].splitlines():
            try:
                line = json.loads(text)
                if "opened" in line:
                    run, round, digest = line["opened"]
                    survivors = list(line["survivors"])
                    self._opened |= dict.fromkeys(((run, round), digest), survivors)
                else:
                    self._sent[line["run"], line["session"], line["round"]] = Uploaded(
                        line["run"],
                        line["session"],
                        line["round"],
                        bytes.fromhex(line["label"]),
                        line["digest"],
                        bytes.fromhex(line["own"]),
                        {name: bytes.fromhex(seed) for name, seed in line["shared"].items()},
                    )
            except (ValueError, KeyError, TypeError) as problem:
                raise FedmmError(
                    f"{path} contains a line that is not a mask record, so this site cannot tell which masks it has "
                    "used; start the run again under another name"
                ) from problem
