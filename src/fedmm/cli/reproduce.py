"""``fedmm reproduce``: the paper's figures and tables."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path

from fedmm.core.errors import unknown
from fedmm.core.validation import at_least, not_negative, one_of
from fedmm.reproduction import draw_item
from fedmm.reproduction.items import FULL, Item, read_items
from fedmm.reproduction.plan import plan_runs
from fedmm.reproduction.results import RESULTS
from fedmm.reproduction.run import Reproduced, Where, reproduce
from fedmm.reproduction.write_results import collect

_STATES = Path("runs") / "reproduce"


def find_items(name: str, paper: Path) -> list[Item]:
    """The item of this name, with - or _, or all of them."""
    known = read_items(paper)
    if name == "all":
        return list(known.values())
    wanted = name.replace("-", "_")
    if wanted not in known:
        raise unknown("figure or table", name, [each.replace("_", "-") for each in [*known, "all"]])
    return [known[wanted]]


def reproduce_item(
    item: Item,
    paper: Path,
    *,
    panels: list[str],
    curves: list[str],
    seeds: list[int],
    scale: str,
    where: Where,
    results: Path | None,
    draw_only: bool,
    say: Callable[[str], None],
) -> Reproduced:
    """Run what is missing, draw, and list every number in ``paper/results.json``."""
    at_least("--stack", where.stack, 1)
    not_negative("--seconds", where.seconds)
    one_of("--precision", where.precision, ("fp32", "tf32", "bf16"))
    items = read_items(paper)
    source = items[item.runs_of]
    if scale not in source.scales:
        raise unknown(f"scale of {source.name}", scale, source.scales)
    small = scale != FULL
    folder = _STATES / f"{item.name}-{scale}" if small else item.folder
    if results is not None:  # a part of an item must not be drawn over the whole
        folder = results.parent / f"{results.stem}-{item.name}"
    lines = results or (_STATES / f"{source.name}-{scale}" if small else source.folder) / RESULTS
    say(f"{item.title} ({scale})")
    done = Reproduced(0, 0, 0)
    if not draw_only:
        command = _command(item, panels, curves, seeds, scale, where)
        runs = plan_runs(source, scale, panels, curves, seeds)
        others = [] if small else [each.folder / RESULTS for each in items.values()]
        done = reproduce(runs, lines, _STATES / "states", where, command, elsewhere=others, progress=True, say=say)
    if done.left and not lines.exists():
        return done
    for path in draw_item(item.folder, lines, folder):
        say(f"drawn: {path}")
    if not small and results is None:
        say(f"every number: {collect(paper, list(items))}")
    return done


def _command(item: Item, panels: list[str], curves: list[str], seeds: list[int], scale: str, where: Where) -> str:
    """The command that computes these runs anywhere: this machine's folders are left out."""
    words = ["fedmm", "reproduce", item.name.replace("_", "-")]
    for option, values in (("--panel", panels), ("--curve", curves), ("--seed", seeds)):
        for value in values:
            words += [option, str(value)]
    words += [] if scale == FULL else ["--scale", scale]
    words += ["--device", where.device, "--precision", where.precision]
    return shlex.join(words)
