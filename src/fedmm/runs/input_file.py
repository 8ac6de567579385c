"""``input.json`` of a run's folder: the names of its classes, and how a file like its data becomes rows."""

from __future__ import annotations

import json
from pathlib import Path

from fedmm.core.errors import FedmmError, require
from fedmm.core.files import write_json
from fedmm.data.domains import DomainPair, Input
from fedmm.data.inputs import input_from, input_table
from fedmm.runs.run_folder import INPUT

_FORMAT = "fedmm-input-1"


def write_input(folder: Path, pair: DomainPair) -> None:
    """Say what a model that was trained on the pair takes and tells apart."""
    table = None if pair.input is None else input_table(pair.input)
    named = {"headings": list(pair.input.headings)} if pair.input is not None and pair.input.headings else {}
    write_json(folder / INPUT, {"format": _FORMAT, "class_names": list(pair.class_names), "input": table, **named})


def read_input(folder: Path) -> tuple[tuple[str, ...], Input | None]:
    """The names of a run's classes, and its way from files to rows; None for a built-in data set."""
    path = folder / INPUT
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        require(content["format"] == _FORMAT, f"{path} was written by another version of fedmm")
        names = tuple(map(str, content["class_names"]))
        return names, None if content["input"] is None else input_from(content["input"])
    except FedmmError:
        raise
    except OSError as problem:
        raise FedmmError(f"{path} cannot be read: {problem.strerror}; a finished run has it") from problem
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as problem:
        raise FedmmError(f"{path} does not say what the run's model takes: {problem}") from problem
