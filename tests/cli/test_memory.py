"""Memory that is lacking is told in one line, whoever says so and in which words."""

from __future__ import annotations

import errno

import numpy as np
import pytest
import torch
from cli.commands import Command

from fedmm.cli import main

ENFORCE = "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: "
ASKED = "you tried to allocate 4000000000000 bytes."


def refused_array() -> Exception:
    with pytest.raises(MemoryError) as refused:
        np.empty(1 << 57)
    return refused.value


LACKING = {
    "torch with glibc": RuntimeError(f"{ENFORCE}can't allocate memory: {ASKED} Error code 12 (Cannot allocate memory)"),
    "torch elsewhere": RuntimeError(f"{ENFORCE}not enough memory: {ASKED}"),
    "torch in words to come": RuntimeError(f"DefaultCPUAllocator: no room: {ASKED}"),
    "a size beyond 64 bits": RuntimeError("Storage size calculation overflowed with sizes=[4611686018427387904]"),
    "a number beyond 64 bits": RuntimeError("numel: integer multiplication overflow"),
    "a GPU": torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB."),
    "C++ through torch": RuntimeError("std::bad_alloc"),
    "Python": MemoryError(),
    "numpy": refused_array(),
    "the system": OSError(errno.ENOMEM, "Cannot allocate memory"),
}


@pytest.mark.parametrize("problem", LACKING.values(), ids=LACKING)
def test_memory_that_is_lacking_is_told_in_one_line(
    command: Command, monkeypatch: pytest.MonkeyPatch, problem: Exception
) -> None:
    def fails() -> None:
        raise problem

    monkeypatch.setattr("fedmm.cli.app.app", fails)
    ended = command("run", "any.toml")
    assert (ended.code, ended.out) == (2, "")
    assert ended.err == "error: there is not enough memory; use a smaller network, smaller batches or fewer rows\n"


@pytest.mark.parametrize(
    "problem", [RuntimeError("shapes cannot be multiplied"), OSError(errno.EIO, "Input/output error")]
)
def test_other_failures_are_not_taken_for_it(monkeypatch: pytest.MonkeyPatch, problem: Exception) -> None:
    def fails() -> None:
        raise problem

    monkeypatch.setattr("sys.argv", ["fedmm", "run", "any.toml"])
    monkeypatch.setattr("fedmm.cli.app.app", fails)
    with pytest.raises(type(problem)) as ended:
        main()
    assert ended.value is problem
