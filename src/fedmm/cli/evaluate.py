"""``fedmm evaluate``: a run's model on labelled data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedmm.cli.allowing import AllowImport
from fedmm.cli.saying import say
from fedmm.core.errors import require

_MOST_COLUMNS, _MOST_CONFUSIONS, _MOST_NAMES = 12, 10, 5
_PICTURES = (".png", ".svg", ".pdf")


def evaluate(
    run: Annotated[Path, typer.Argument(help="The run's folder.", metavar="RUN")],
    data: Annotated[
        str,
        typer.Argument(
            help="Labelled data like the run's: class folders, .npz, CSV, Parquet; or the word test or source-test for "
            "the run's own test rows.",
            metavar="DATA",
        ),
    ],
    out: Annotated[Path | None, typer.Option(help="Also write everything to this .json file.")] = None,
    picture: Annotated[
        Path | None, typer.Option(help="Also draw confusion matrix and reliability: .png, .svg or .pdf.")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="best, as the run announced it, or last; the default is best if there is one.")
    ] = None,
    bins: Annotated[int, typer.Option(help="Number of equal-width bins for calibration.")] = 15,
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Skip files that are not pictures.")] = False,
    device: Annotated[str, typer.Option(help="cpu, cuda, ...")] = "cpu",
    separator: Annotated[str, typer.Option(help="Tables: the cell separator, if it differs from training.")] = "",
    decimal: Annotated[str, typer.Option(help="Tables: the decimal mark, if it differs from training.")] = "",
    encoding: Annotated[str, typer.Option(help="Tables: the encoding, if it differs from training.")] = "",
    site: Annotated[str, typer.Option(help="Tables scaled per site: the site of the rows.")] = "",
    allow_import: AllowImport = None,
) -> None:
    """Evaluate a run's model on labelled rows: accuracy, AUC, F1, per-class scores, confusions, calibration."""
    from fedmm.core.files import write_json  # noqa: PLC0415 - torch
    from fedmm.core.validation import at_least  # noqa: PLC0415 - torch
    from fedmm.data.readers.images import skipped_note  # noqa: PLC0415 - torch
    from fedmm.inference.evaluate import evaluate as evaluated  # noqa: PLC0415 - torch
    from fedmm.inference.evaluate import rows_named  # noqa: PLC0415 - torch
    from fedmm.inference.load_run import open_run  # noqa: PLC0415 - torch
    from fedmm.inference.predict import read_as  # noqa: PLC0415 - torch
    from fedmm.reporting.evaluation import draw_evaluation  # noqa: PLC0415 - matplotlib
    from fedmm.training.progress import bars  # noqa: PLC0415 - torch

    at_least("--bins", bins, 1)
    if picture is not None:
        require(picture.suffix.lower() in _PICTURES, f"--picture {picture} must end in {', '.join(_PICTURES)}")
    opened = open_run(run, model, device=device)
    opened = read_as(opened, separator=separator, decimal=decimal, encoding=encoding, site=site)
    rows = rows_named(opened, data, skip_bad=skip_bad)
    with bars(True) as bar:
        task = bar.add_task("rows", total=rows.rows)
        found = evaluated(opened, data, rows, bins=bins, on_rows=lambda count: bar.advance(task, count))
    table = found.table()
    if out is not None:
        write_json(out, table)
    if picture is not None:
        draw_evaluation(table, picture)
    _show(table, opened.model_name)
    for note in skipped_note(rows.skipped):
        say(note)
    for name, path in (("everything is in", out), ("drawn:", picture)):
        if path is not None:
            say(f"{name} {path}")


def _show(table: Mapping[str, Any], model: str) -> None:
    console = Console()
    say(f"{table['label']} ({model}) on {table['labelled_rows']} labelled rows of {table['data']}")
    if table["trained_on"]:
        say(f"{table['trained_on']} of these target rows were trained on too, without their labels")
    _say_known(table)
    majority = f"always {table['majority_class']!r} would have {table['majority']:.1%}"
    say(f"accuracy {_with_interval(table, 'accuracy')}; {majority}")
    auc = "" if table["auc"] is None else f", AUC of {table['classes'][1]['name']!r} {_with_interval(table, 'auc')}"
    balanced = _with_interval(table, "balanced_accuracy")
    say(f"balanced accuracy {balanced}{auc}, macro-F1 {table['macro_f1']:.3f}; intervals are of 95 %")
    say(
        f"calibration: ECE {table['ece']:.3f} ({len(table['bins'])} bins of equal width), Brier {table['brier']:.3f} "
        f"(0 to 2), NLL {table['nll']:.3f} nats"
    )
    console.print(_classes(table["classes"]))
    _confusions(console, table)
    reliability = Table(title="probability of the predicted class", title_justify="left")
    for heading in ("from", "to", "rows", "mean", "right"):
        reliability.add_column(heading, justify="right")
    for each in table["bins"]:
        if each["rows"]:
            cells = (f"{each['low']:.2f}", f"{each['high']:.2f}", str(each["rows"]))
            reliability.add_row(*cells, _percent(each["confidence"]), _percent(each["accuracy"]))
    console.print(reliability)


def _say_known(table: Mapping[str, Any]) -> None:
    """Which rows have no class of the model, what that makes of accuracy, and which classes no row has."""
    unknown, absent = table["unknown_labels"], table["absent_classes"]
    unlabelled = table["left_out"] - table["unknown_rows"]
    if unlabelled:
        say(f"{unlabelled} rows without a label are left out")
    if unknown:
        low, high = table["accuracy_of_all_interval"]
        say(
            f"accuracy of all {table['labelled_rows']} labelled rows {table['accuracy_of_all']:.1%} "
            f"({low:.1%} to {high:.1%}): {table['unknown_rows']} of them count as wrong, having labels that the model "
            f"does not know: {_named(unknown)}"
        )
        say(f"what follows is of the {table['rows']} of {table['labelled_rows']} rows whose class it knows:")
    if absent:
        say(f"no row has the class {_named(absent)}, which the model knows")


def _named(names: Sequence[str]) -> str:
    return f"{', '.join(names[:_MOST_NAMES])}{', ...' if len(names) > _MOST_NAMES else ''}"


def _with_interval(table: Mapping[str, Any], name: str) -> str:
    low, high = table["intervals"][name]
    return (
        f"{table[name]:.3f} ({low:.3f} to {high:.3f})"
        if name == "auc"
        else f"{table[name]:.1%} ({low:.1%} to {high:.1%})"
    )


def _classes(classes: list[Mapping[str, Any]]) -> Table:
    table = Table()
    table.add_column("class")
    for heading in ("precision", "recall", "F1", "rows", "predicted"):
        table.add_column(heading, justify="right")
    for each in classes:
        numbers = [_percent(each["precision"]), _percent(each["recall"]), _percent(each["f1"])]
        table.add_row(Text(each["name"]), *numbers, str(each["support"]), str(each["predicted"]))
    return table


def _confusions(console: Console, table: Mapping[str, Any]) -> None:
    """The matrix where it fits on a terminal, else the most frequent confusions."""
    names, counts = [each["name"] for each in table["classes"]], table["confusion"]
    if len(names) <= _MOST_COLUMNS:
        matrix = Table(title="class (down), predicted (across)", title_justify="left")
        matrix.add_column("")
        for name in names:
            matrix.add_column(Text(name[:8]), justify="right")
        for name, row in zip(names, counts, strict=True):
            matrix.add_row(Text(name), *(str(count) if count else "·" for count in row))
        console.print(matrix)
        return
    wrong = [(row[k], name, names[k]) for name, row in zip(names, counts, strict=True) for k in range(len(names))]
    for count, name, guess in sorted((each for each in wrong if each[1] != each[2]), reverse=True)[:_MOST_CONFUSIONS]:
        if count:
            say(f"{count} rows of {name} were taken for {guess}")


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f}%"
