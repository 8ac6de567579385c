"""Every algorithm and every objective has its card, and what cards say of bytes and accuracies is so."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from doc_tables import rows_below

from fedmm import ALGORITHMS, OBJECTIVES
from fedmm.core.layout import Layout

ROOT = Path(__file__).parents[1]
PAGES: dict[str, Mapping[str, type]] = {"algorithms.md": ALGORITHMS, "objectives.md": OBJECTIVES}
PARTS = ("What it does", "Use it", "Do not use it", "Options", "From")


def page(name: str) -> str:
    return (ROOT / "docs" / name).read_text(encoding="utf-8")


def cards(name: str) -> dict[str, str]:
    found = re.split(r"^## `(\w+)`\n", page(name), flags=re.MULTILINE)[1:]
    return dict(zip(found[::2], found[1::2], strict=True))


def lines(name: str, columns: str) -> list[list[str]]:
    return rows_below(f"| {columns} |", ROOT / "docs" / name)


# Cards ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PAGES)
def test_every_row_has_a_card_and_no_other_is_there(name: str) -> None:
    assert sorted(cards(name)) == sorted(PAGES[name])


CARDS = [(name, row, card) for name in PAGES for row, card in cards(name).items()]


@pytest.mark.parametrize(("name", "row", "card"), CARDS, ids=[row for _, row, _ in CARDS])
def test_a_card_says_what_one_needs_to_know(name: str, row: str, card: str) -> None:
    for part in PARTS:
        assert f"**{part}" in card, part
    assert "```text" in card
    assert f"configuration.md#all-{name.removesuffix('.md')})" in card


def test_what_clients_keep_and_what_travels_is_what_the_algorithms_do() -> None:
    layout = Layout.of(torch.zeros(2), torch.zeros(1))
    z = torch.zeros(3)
    expected = []
    for name, row in ALGORITHMS.items():
        algorithm = row()
        client, sent = algorithm.init_client(z), algorithm.broadcast(algorithm.init_server(z))
        coefficients = algorithm.coefficients(layout, 0, 1)
        coefficients["steps"] = torch.tensor(1.0)
        upload, _ = algorithm.finish(z, sent, algorithm.begin(z, sent, client, coefficients), coefficients)
        steps = next((option for option in ("local_steps", "mean_steps") if hasattr(algorithm, option)), "1")
        expected.append([name, ", ".join(client) or "nothing", str(len(upload)), str(len(sent)), steps])
    head = "algorithm | a client keeps | vectors up | vectors down | local steps"
    assert sorted(lines("algorithms.md", head)) == sorted(expected)


SAYS = {1: "a number", 2: "source or target", 3: "a class"}
"""What an adversary says, by the number of its outputs where there are 3 classes."""


def test_what_adversaries_see_is_what_the_objectives_do() -> None:
    head = "objective | the adversary sees | it says | tells domains"
    shown = {name: (says, tells) for name, _, says, tells in lines("objectives.md", head)}
    assert shown.keys() == OBJECTIVES.keys()
    for name, (says, tells) in shown.items():
        objective = OBJECTIVES[name]()
        shape = objective.adversary_shape(5, 3)
        assert says == ("-" if shape is None else SAYS[shape.outputs])
        assert tells == ("yes" if objective.tells_domains else "no")


# Measured -------------------------------------------------------------------------------------------------------------

RESULTS: list[dict[str, Any]] = json.loads((ROOT / "paper" / "results.json").read_text(encoding="utf-8"))["results"]


def measured(item: str, panel: str, curve: str) -> list[str]:
    """Rounds, seeds, mean and range, as the tables show them."""
    runs = [run for run in RESULTS if (run["item"], run["panel"], run["curve"]) == (item, panel, curve)]
    accuracies = [100 * run["target_accuracy"] for run in runs]
    spread = f"{min(accuracies):.1f} to {max(accuracies):.1f}" if len(runs) > 1 else "-"
    mean = sum(accuracies) / len(runs)
    return [f"{max(run['rounds'] for run in runs):,}", str(len(runs)), f"{mean:.1f}", spread]


def test_the_accuracies_of_the_algorithms_are_those_that_were_measured() -> None:
    for name, *cells in lines("algorithms.md", "algorithm | rounds | seeds | target (%) | min to max"):
        where = ("figure_4", "dann") if name == "fedsgda" else ("figure_5", "dann_1s1t")
        assert cells == measured(*where, name), name


def test_the_accuracies_of_the_objectives_are_those_that_were_measured() -> None:
    head = "objective | algorithm | rounds | seeds | target (%) | min to max"
    for name, algorithm, *cells in lines("objectives.md", head):
        where = ("dann_1s1t", name) if name == "source_only" else (f"{name}_1s1t", algorithm)
        assert cells == measured("figure_5", *where), name


def test_the_accuracies_on_office31_are_those_that_were_measured() -> None:
    for name, algorithm, mean in lines("objectives.md", "objective | algorithm | target (%)"):
        curve = name if name == "source_only" else f"{name}_fedmm"
        runs = [run for run in RESULTS if (run["item"], run["curve"]) == ("attempts_office31", curve)]
        assert {run["algorithm"] for run in runs} == {algorithm}
        assert len(runs) == 6
        assert mean == f"{100 * sum(run['target_accuracy'] for run in runs) / 6:.1f}"
