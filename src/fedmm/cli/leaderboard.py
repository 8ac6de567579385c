"""``fedmm leaderboard``: all methods on the same problems."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import torch
import typer

from fedmm.cli.console import INTERRUPTED, Device, say
from fedmm.core.errors import require, unknown
from fedmm.core.validation import at_least, require_device
from fedmm.leaderboard.board import SCALES, Board, list_problems
from fedmm.leaderboard.draw import draw_board
from fedmm.leaderboard.results import RESULTS
from fedmm.leaderboard.trials import SEARCH_SEED, compared_methods
from fedmm.runs.summary import provenance

_KAPPA, _HETEROGENEITY = 20.0, 1.0


def leaderboard(
    scale: Annotated[str, typer.Option(help="full, or smoke: a few rounds of everything.")] = "full",
    problems: Annotated[str, typer.Option(help="The problems, separated by commas; by default all.")] = "",
    methods: Annotated[str, typer.Option(help="The algorithms, separated by commas; by default all.")] = "",
    seeds: Annotated[int, typer.Option(help="Seeds per method; 0: as many as the scale prescribes.")] = 0,
    kappa: Annotated[float, typer.Option(help="The condition number of the quadratic game.")] = _KAPPA,
    heterogeneity: Annotated[float, typer.Option(help="How much its clients differ, 0 or more.")] = _HETEROGENEITY,
    device: Device = "cpu",
    out: Annotated[Path | None, typer.Option(help="The folder; runs/leaderboard-SCALE by default.")] = None,
    draw: Annotated[bool, typer.Option("--draw", help="Run nothing; draw the existing results.")] = False,
) -> None:
    """Compare algorithms on minimax problems: bytes and gradients to a target, and the final value.

    A search with the same budget chooses each algorithm's options on each problem, by training signals and with its own
    seed. Run the same command again to continue after an interruption. The folder holds results.jsonl, and the
    table and picture made from it.
    """
    if scale not in SCALES:
        raise unknown("--scale", scale, SCALES)
    size = SCALES[scale]
    at_least("--seeds", seeds, 0)
    require(seeds < SEARCH_SEED, f"--seeds must be below {SEARCH_SEED}, not {seeds}")
    require_device(device, "--device")
    known = list_problems(scale, kappa, heterogeneity, device)
    chosen = [known[name] for name in _names("problem", problems, list(known))]
    algorithms = _names("algorithm", methods, compared_methods())
    folder = out or Path("runs") / f"leaderboard-{scale}"
    if not draw:
        words = {
            "--scale": scale,
            "--problems": problems,
            "--methods": methods,
            "--seeds": seeds,
            "--kappa": "" if kappa == _KAPPA else kappa,
            "--heterogeneity": "" if heterogeneity == _HETEROGENEITY else heterogeneity,
            "--device": "" if device == "cpu" else device,
        }
        command = ["fedmm", "leaderboard", *(str(part) for option in words.items() if option[1] for part in option)]
        about = {"command": shlex.join(command), **provenance(torch.device(device))}
        board = Board(scale, size.candidates, seeds or size.seeds, folder / RESULTS, about)
        try:
            board.run(chosen, algorithms, progress=True, say=say)
        except KeyboardInterrupt:
            say(f"stopped; finished runs are in {folder}, and the same command continues")
            raise typer.Exit(INTERRUPTED) from None
    for path in draw_board(folder / RESULTS, folder):
        say(f"drawn: {path}")


def _names(what: str, given: str, known: list[str]) -> list[str]:
    names = list(dict.fromkeys(name.strip() for name in given.split(",") if name.strip()))
    for name in names:
        if name not in known:
            raise unknown(what, name, known)
    return names or known
