"""A run's folder: created when training starts, extended round by round, and closed with a summary."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from fedmm.config.dataclass_io import Table
from fedmm.config.toml import read_toml, write_toml
from fedmm.core.engine import FederatedState, Refusal
from fedmm.core.errors import FedmmError, require
from fedmm.core.files import hold_folder, replace_file, write_json
from fedmm.data.domains import DomainPair, Input
from fedmm.data.inputs import build_input, input_table
from fedmm.training.callbacks import Callback
from fedmm.training.history import History, Row

_INPUT_FORMAT = "fedmm-input-1"
EXPERIMENT, ROUNDS, SUMMARY, MODEL = "experiment.toml", "rounds.jsonl", "summary.json", "model.safetensors"
SAMPLES, BOUNDARY, REFUSED = "samples.safetensors", "boundary.safetensors", "refused.jsonl"
INPUT, HELD, MAPS = "input.json", "held.json", "maps.safetensors"
_LONGEST_NAME = 150


@contextmanager
def claim_folder(folder: Path, begun: str, *, overwrite: bool = False, resume: bool = False) -> Iterator[bool]:
    """Lock a folder against other processes; yield whether to continue what was started there.

    The folder is created if it does not exist, and removed again if nothing was written to it. One that is not empty is
    refused; with ``overwrite``, an older run in it is deleted.

    begun: the file that describes what runs in the folder. resume: continue if that file exists.
    """
    require("\0" not in str(folder), f"the folder {folder} cannot be used: a name must not contain a zero byte")
    with ExitStack() as held:
        try:
            require(not folder.exists() or folder.is_dir(), f"{folder} is a file; name a folder for the run")
            folder.mkdir(parents=True, exist_ok=True)
            held.enter_context(hold_run_folder(folder))
            going_on = resume and (folder / begun).exists()
            if not going_on and not (resume and _only_begun(folder)):
                _empty(folder, overwrite=overwrite)
        except OSError as problem:
            raise FedmmError(f"the folder {folder} cannot be used: {problem.strerror}") from problem
        try:
            yield going_on
        finally:
            with suppress(OSError):  # usually, it is not empty
                folder.rmdir()


def _only_begun(folder: Path) -> bool:
    """Return whether a crash came before the description of what runs in a folder was written."""
    return all(path.name == SUMMARY or path.suffix == ".partial" for path in folder.iterdir())


def _empty(folder: Path, *, overwrite: bool) -> None:
    """Delete an older run in a folder, but not the folder itself, which is locked."""
    paths = list(folder.iterdir())
    require(overwrite or not paths, f"the folder {folder} is not empty; name another with --out, or pass --overwrite")
    require(
        not paths or (not folder.is_symlink() and _is_ours(folder)),
        f"the folder {folder} holds no run of fedmm, so it is not overwritten; name another with --out",
    )
    for path in paths:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


def hold_run_folder(folder: Path) -> AbstractContextManager[None]:
    """Lock a folder against runs of other processes; refuse one that is locked."""
    return hold_folder(folder, f"another process is at work in {folder}; wait until it ends or name another with --out")


def _is_ours(folder: Path) -> bool:
    """Return whether the folder's own files say that it is a run or a comparison, finished or not."""
    try:
        return json.loads((folder / SUMMARY).read_text(encoding="utf-8")).get("kind") in ("run", "comparison")
    except (OSError, ValueError, AttributeError, RecursionError):
        pass
    try:
        return {"run", "algorithm", "objective"} <= read_toml(folder / EXPERIMENT).keys()
    except FedmmError:
        return False


def folder_name(text: str) -> str:
    """Return text as a folder name that contains no path and is not too long for any file system."""
    short = text.encode("utf-8", "ignore")[:_LONGEST_NAME].decode("utf-8", "ignore")
    return short.replace("/", "-").replace("\0", "").strip(". ") or "run"


def free_folder(folder: Path) -> Path:
    """Return ``folder``, or the first of ``folder-2``, ``folder-3`` ... that does not exist."""
    number, free = 1, folder
    try:
        while free.exists():
            number += 1
            free = folder.with_name(f"{folder.name}-{number}")
    except OSError as problem:
        raise FedmmError(f"the folder {free} cannot be used: {problem.strerror}") from problem
    return free


def latest_folder(folder: Path) -> Path:
    """Return the last of ``folder``, ``folder-2``, ``folder-3`` ... that exists; ``folder`` if none does."""
    free = free_folder(folder)
    if free == folder:
        return folder
    number = int(free.name.removeprefix(f"{folder.name}-"))
    return folder if number == 2 else folder.with_name(f"{folder.name}-{number - 1}")


class RunFolder(Callback):
    """The files of one run. before: the rounds so far of a run that continues."""

    def __init__(self, folder: Path, tables: Mapping[str, Table], before: Iterable[Row] = ()) -> None:
        self.folder = folder
        resolved = write_toml(tables)
        rounds = folder / ROUNDS
        with _explain_errors("the run", folder):
            folder.mkdir(parents=True, exist_ok=True)
            _whole(folder / EXPERIMENT, resolved)
            lines = [_line(row) for row in before]
            if lines:
                _whole(rounds, "".join(lines))
            if (folder / REFUSED).exists():
                _whole(folder / REFUSED, _until(folder / REFUSED, len(lines)))
            self._rounds: IO[str] = rounds.open("a" if lines else "w", encoding="utf-8")

    def begin(self, state: FederatedState, history: History) -> None:
        self._refusals = history.refusals

    def wants_state(self, round_: int) -> bool:
        return False

    def after_round(self, state: FederatedState | None, row: Row) -> None:
        self.append(row)
        round_ = int(row["round"] or 0)
        self.refuse(round_, self._refusals.get(round_, ()))

    def append(self, row: Row) -> None:
        """Write a round to disk before the next one starts."""
        with _explain_errors(f"round {row['round']}", self.folder):
            self._rounds.write(_line(row))
            self._rounds.flush()

    def refuse(self, round: int, refused: Iterable[Refusal]) -> None:
        """Write whose updates were not counted in a round, and why."""
        text = "".join(json.dumps({"round": round, **refusal._asdict()}) + "\n" for refusal in refused)
        if text:
            path = self.folder / REFUSED
            with (
                _explain_errors(f"what was refused in round {round}", self.folder),
                path.open("a", encoding="utf-8") as file,
            ):
                file.write(text)

    def tensors(self, name: str, tensors: Mapping[str, Tensor]) -> None:
        """Write tensors beside the run, for pictures and reports."""
        plain = {
            key: tensor.detach().cpu().clone(memory_format=torch.contiguous_format) for key, tensor in tensors.items()
        }
        with _explain_errors(name, self.folder), replace_file(self.folder / name) as partial:
            save_file(plain, partial)

    def remove(self, *names: str) -> None:
        """Delete files that an earlier run in the folder may have left."""
        for name in names:
            with _explain_errors(name, self.folder):
                (self.folder / name).unlink(missing_ok=True)

    def summarise(self, summary: Mapping[str, Any]) -> None:
        """Write the summary of the run."""
        write_json(self.folder / SUMMARY, summary)

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._rounds.close()
        except OSError as problem:
            if value is None:  # else that error counts: closing only retries the write that failed
                raise _build_error("the last rounds", self.folder, problem) from problem


def _until(path: Path, round: int) -> str:
    """Return the lines on updates refused up to the round after which a run continues, without one torn by a crash."""
    *lines, _ = path.read_bytes().split(b"\n")
    kept = []
    for number, line in enumerate(lines, start=1):
        try:
            if json.loads(line)["round"] <= round:
                kept.append(line.decode() + "\n")
        except (ValueError, LookupError, TypeError, RecursionError) as problem:
            raise FedmmError(f"{path}, line {number}, is not the record of a refused update; remove it") from problem
    return "".join(kept)


def _line(row: Row) -> str:
    return json.dumps(_finite(row), allow_nan=False) + "\n"


def _finite(row: Row) -> Row:
    """Replace numbers that are not finite by None, since JSON has no infinity."""
    return {name: value if value is None or math.isfinite(value) else None for name, value in row.items()}


def _whole(path: Path, text: str) -> None:
    """Write a file as a whole or not at all."""
    with replace_file(path) as partial:
        partial.write_text(text, encoding="utf-8")


@contextmanager
def _explain_errors(what: str, folder: Path) -> Iterator[None]:
    """Raise FedmmError in one sentence if something cannot be written inside, for example on a full disk."""
    try:
        yield
    except (OSError, SafetensorError) as problem:
        raise _build_error(what, folder, problem) from problem


def _build_error(what: str, folder: Path, problem: Exception) -> FedmmError:
    return FedmmError(f"{what} cannot be written to {folder}: {getattr(problem, 'strerror', None) or problem}")


def write_input(folder: Path, pair: DomainPair) -> None:
    """Write the input and the classes of a model that is trained on the pair."""
    table = None if pair.input is None else input_table(pair.input)
    named = {"headings": list(pair.input.headings)} if pair.input is not None and pair.input.headings else {}
    write_json(
        folder / INPUT, {"format": _INPUT_FORMAT, "class_names": list(pair.class_names), "input": table, **named}
    )


def read_input(folder: Path) -> tuple[tuple[str, ...], Input | None]:
    """Return the names of a run's classes, and how files become rows; None for a built-in data set."""
    path = folder / INPUT
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        require(content["format"] == _INPUT_FORMAT, f"{path} was written by another version of fedmm")
        names = tuple(map(str, content["class_names"]))
        return names, None if content["input"] is None else build_input(content["input"])
    except FedmmError:
        raise
    except OSError as problem:
        raise FedmmError(f"{path} cannot be read: {problem.strerror}; a finished run has it") from problem
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as problem:
        raise FedmmError(f"{path} does not say what the run's model takes: {problem}") from problem
