"""The commands of ``fedmm``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer
from rich.table import Table

from fedmm._version import __version__
from fedmm.algorithms import ALGORITHMS
from fedmm.cli.console import console
from fedmm.cli.data import data_app
from fedmm.cli.deploy import deploy_app
from fedmm.cli.leaderboard import leaderboard
from fedmm.cli.prepare import check, init, privacy
from fedmm.cli.report import report
from fedmm.cli.reproduce import reproduce
from fedmm.cli.train import compare, demo, run, sweep
from fedmm.cli.tune import tune
from fedmm.cli.use_model import evaluate, export, predict
from fedmm.core.aggregation import AGGREGATIONS
from fedmm.core.mechanisms import TRANSMISSIONS
from fedmm.core.options import PRESETS
from fedmm.core.schedules import SCHEDULES
from fedmm.core.target_losses import TARGET_LOSSES
from fedmm.data import DATASETS, PARTITIONS
from fedmm.models import MODELS
from fedmm.objectives import OBJECTIVES

app = typer.Typer(
    name="fedmm",
    help="Federated minimax optimisation and adversarial domain adaptation.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)
app.add_typer(data_app, name="data")
app.add_typer(deploy_app, name="deploy")
for command in (
    check, compare, evaluate, export, init, predict, report, run, sweep, tune, demo, reproduce, leaderboard, privacy,
):  # fmt: skip
    app.command()(command)


def _version(wanted: bool) -> None:
    if wanted:
        console.print(f"fedmm {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None: ...


@app.command(name="list")
def list_() -> None:
    """List what an experiment can name: algorithms, objectives, data sets, partitions, models, presets and so on."""
    tables: dict[str, Mapping[str, Any]] = {
        "algorithms": ALGORITHMS,
        "objectives": OBJECTIVES,
        "target losses": TARGET_LOSSES,
        "data sets": DATASETS,
        "partitions": PARTITIONS,
        "models": MODELS,
        "aggregations": AGGREGATIONS,
        "transmissions": TRANSMISSIONS,
        "presets": PRESETS,
        "schedules": SCHEDULES,
    }
    grid = Table.grid(padding=(0, 2))
    for title, rows in tables.items():
        grid.add_row(f"[bold]{title}")
        for name, row in rows.items():
            grid.add_row(
                f"  {name}", row if isinstance(row, str) else getattr(row, "summary", None) or _first_line(row)
            )
    console.print(grid)


def _first_line(documented: object) -> str:
    return (documented.__doc__ or "").strip().splitlines()[0]
