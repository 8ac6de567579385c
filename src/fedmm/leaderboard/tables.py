"""The leaderboard's tables, made from its results alone."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from fedmm.leaderboard.results import Result
from fedmm.leaderboard.trials import Goal
from fedmm.reporting.tables import markdown_lines

OURS = "fedmm"
"""The method that others are compared with."""
_NEVER = "-"


@dataclass(frozen=True)
class Standing:
    """The runs of one method on one problem; a run that did not reach the target has infinite cost."""

    method: str
    goal: Goal
    runs: Sequence[Result]

    @property
    def bytes_up(self) -> list[float]:
        """Bytes to the target, of each run, in ascending order."""
        return sorted(math.inf if run.bytes_up is None else run.bytes_up for run in self.runs)

    @property
    def gradients(self) -> list[float]:
        """Gradients to the target, of each run, in ascending order."""
        return sorted(math.inf if run.gradients is None else run.gradients for run in self.runs)

    @property
    def finals(self) -> list[float]:
        """The metric after the last round, best first, without runs that diverged."""
        values = [run.final for run in self.runs if run.final is not None and not run.diverged]
        return sorted(values, reverse=self.goal.higher)

    @property
    def reached(self) -> int:
        """How many runs reached the target."""
        return sum(run.bytes_up is not None for run in self.runs)

    @property
    def diverged(self) -> int:
        """How many runs diverged."""
        return sum(run.diverged for run in self.runs)

    @property
    def rank(self) -> tuple[float, float, float]:
        """The sort key of methods: bytes to the target, then how many runs reached it, then the final value."""
        final = median(self.finals) if self.finals else math.inf
        return median(self.bytes_up), -self.reached, -final if self.goal.higher and self.finals else final


def standings(results: Sequence[Result]) -> dict[str, list[Standing]]:
    """Return the methods on each problem, by its title, best first."""
    found: dict[str, list[Standing]] = {}
    for title in dict.fromkeys(run.title for run in results):
        own = [run for run in results if run.title == title]
        standings = [
            Standing(method, own[0].goal, [run for run in own if run.method == method])
            for method in dict.fromkeys(run.method for run in own)
        ]
        found[title] = sorted(standings, key=lambda standing: standing.rank)
    return found


def in_kilobytes(values: Sequence[float]) -> str:
    """Format bytes as kB (10^3 bytes): the median with the range over the seeds."""
    return spread_in_words([value / 1e3 for value in values])


def spread_in_words(values: Sequence[float]) -> str:
    """Format the median with the minimum and maximum; a dash stands for an infinite or missing value."""
    if not values or math.isinf(min(values)):
        return _NEVER
    middle, low, high = (_number(value) for value in (median(values), min(values), max(values)))
    return middle if low == high else f"{middle} ({low} to {high})"


def _number(value: float) -> str:
    if math.isinf(value):
        return _NEVER
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def overview(found: Mapping[str, Sequence[Standing]]) -> str:
    """Return a Markdown table of the bytes to the target: a row per method, a column per problem, the best in bold."""
    methods = list(dict.fromkeys(standing.method for own in found.values() for standing in own))
    methods.sort(key=lambda method: sum(_place(own, method) for own in found.values()))
    lines = [["method", *found], [":--", *["--:"] * len(found)]]
    for method in methods:
        lines.append([f"`{method}`", *(_overview_cell(own, method) for own in found.values())])
    return markdown_lines(lines)


def _place(own: Sequence[Standing], method: str) -> int:
    """Return a method's place, from 0; last if it was not run."""
    return next((place for place, each in enumerate(own) if each.method == method), len(own))


def _overview_cell(own: Sequence[Standing], method: str) -> str:
    place = _place(own, method)
    if place == len(own):
        return ""
    standing = own[place]
    if standing.diverged == len(standing.runs):
        return "diverged"
    middle = median(standing.bytes_up)
    if math.isinf(middle):
        return f"{_NEVER} [{standing.reached} of {len(standing.runs)}]" if standing.reached else _NEVER
    words = _number(middle / 1e3)
    return f"**{words}**" if place == 0 else words


def problem_table(own: Sequence[Standing]) -> str:
    """Return a Markdown table of one problem: a row per method, with its costs and final values."""
    lines = [
        ["method", "kB to target", "gradients to target", "reached", "final", "options"],
        [":--", "--:", "--:", "--:", "--:", ":--"],
    ]
    for standing in own:
        diverged = f"{standing.diverged} of {len(standing.runs)} diverged" if standing.diverged else ""
        final = ", ".join(
            part for part in (spread_in_words(standing.finals) if standing.finals else "", diverged) if part
        )
        reached = f"{standing.reached} of {len(standing.runs)}"
        costs = [in_kilobytes(standing.bytes_up), spread_in_words(standing.gradients)]
        lines.append([f"`{standing.method}`", *costs, reached, final, _options_in_words(standing.runs[0].options)])
    return markdown_lines(lines)


def _options_in_words(options: Mapping[str, Any]) -> str:
    shown = dict(options)
    if "penalty_min" in shown and shown["penalty_min"] == shown.get("penalty_max"):
        shown["penalty"] = shown.pop("penalty_min")
        del shown["penalty_max"]
    return ", ".join(
        f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}" for name, value in shown.items()
    )


def better_than_ours(own: Sequence[Standing]) -> str:
    """Return a sentence on the methods with a lower median of bytes to the target than FedMM; empty without FedMM."""
    ours = next((standing for standing in own if standing.method == OURS), None)
    if ours is None:
        return ""
    bytes_up = median(ours.bytes_up)
    better = [f"`{standing.method}`" for standing in own if median(standing.bytes_up) < bytes_up]
    if better:
        many = "1 method needs" if len(better) == 1 else f"{len(better)} methods need"
        return f"{many} fewer bytes than `{OURS}`: {', '.join(better)}."
    return f"No method needs fewer bytes than `{OURS}`." if math.isfinite(bytes_up) else "No method reaches the target."
