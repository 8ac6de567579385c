"""Clients in other processes measure on their own rows what one process measures on all, from sums; NVFlare's here."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from rounding import largest_difference, summing_backwards

from fedmm import FedmmError
from fedmm.config.schema import experiment
from fedmm.remote.packed import Packed
from fedmm.runs.build import DataCache, prepare
from fedmm.runs.on_nvflare import NVFlareEngines, site
from fedmm.training.evaluators import OwnSums, metrics_by_client

DIGITS: dict[str, Any] = {
    "run": {"rounds": 2, "batch_size": 16, "threads": 1, "probe_rows": 500, "dtype": "float64"},
    "data": {"name": "digits", "test_rows": 900, "validation_rows": 50},
    "model": {"name": "mlp", "hidden": [12], "adversary_hidden": [8]},
    "algorithm": {"name": "fedmm", "local_steps": 2},
}


def test_another_order_of_sums_is_another_rounding() -> None:
    """So what follows agrees to what float64 leaves of 2 rounds of sums of 64 products: far below 1e-9."""
    eps = {dtype: torch.finfo(dtype).eps for dtype in (torch.float32, torch.float64)}
    assert eps[torch.float32] / 16 < largest_difference(torch.float32) < 64 * eps[torch.float32]
    assert 0 < largest_difference(torch.float64) < 64 * eps[torch.float64]


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"partition": {"name": "p_split", "p": 0.3}, "data": {"name": "digits", "test_rows": 900}},
        {"objective": {"name": "source_only"}, "algorithm": {"name": "fedavg_gda"}},
        {"objective": {"name": "mdd"}, "partition": {"name": "p_split", "p": 0.1}},
    ],
    ids=["one each", "mixed", "source only", "mdd"],
)
def test_a_run_by_messages_has_the_validators_of_one_process(changes: dict[str, Any], tmp_path: Path) -> None:
    """To the rounding of float64: the sites add up their own rows, and one process takes its sums in another order."""
    each = experiment({**DIGITS, **changes})
    torch.set_num_threads(1)
    adaptation = prepare(each, DataCache())
    names = sorted({*metrics_by_client(adaptation.evaluators), *(client.name for client in adaptation.problem.clients)})
    handlers = {name: site(name, each.tables(), str(tmp_path), 1) for name in names}

    def ask(kind: str, questions: Mapping[str, Packed]) -> dict[str, Packed]:
        return {name: handlers[name](kind, question) for name, question in questions.items()}

    ours, _ = adaptation.run(engines=NVFlareEngines(adaptation, ask, each.run.probe_rows))
    with summing_backwards():
        expected, _ = prepare(each, DataCache()).run()
    assert len(ours.history) == 2
    for row, other in zip(ours.history, expected.history, strict=True):
        for column in adaptation.measures:
            assert row[column] == pytest.approx(other[column], rel=1e-9, abs=1e-12), column


def test_rows_that_are_compared_are_counted_by_themselves() -> None:
    """At most 200 are, so that a site that gives no sums over fewer than 201 rows gives none of them."""
    adaptation = prepare(experiment(DIGITS), DataCache())
    evaluator = next(evaluator for evaluator in adaptation.evaluators if evaluator.held_by)
    own = evaluator.own_of("target-1")
    columns = ["target_entropy", "target_snd"]
    for min_rows, rows in ((200, [len(own), 200]), (201, [len(own), 0]), (len(own) + 1, [0, 0])):
        sums = OwnSums(adaptation.function, [own], min_rows)
        found = sums(columns, adaptation.problem.start, adaptation.problem.statistics)
        assert [found[column].rows for column in columns] == rows
        assert [bool(found[column].sums.any()) for column in columns] == [number > 0 for number in rows]


def test_columns_that_no_probe_has_are_refused_by_a_site() -> None:
    adaptation = prepare(experiment(DIGITS), DataCache())
    evaluator = next(evaluator for evaluator in adaptation.evaluators if evaluator.held_by)
    sums = OwnSums(adaptation.function, [evaluator.own_of("target-1")])
    with pytest.raises(FedmmError, match="unknown measure that the server asks for 'rows'"):
        sums(["target_entropy", "rows"], adaptation.problem.start, adaptation.problem.statistics)
