"""``fedmm predict``, ``evaluate`` and ``export``: use the model of a run."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from fedmm.cli.console import (
    AllowImport,
    Decimal,
    Device,
    Encoding,
    ModelName,
    RowsSite,
    RunFolder,
    Separator,
    SkipBad,
    console,
    say,
)
from fedmm.core.files import write_json
from fedmm.core.signals.groups import GroupedScores, worst_and_best
from fedmm.core.validation import at_least, rate
from fedmm.data.readers.images import skipped_note
from fedmm.inference.calibrate import calibrate
from fedmm.inference.evaluate import evaluate as evaluate_rows
from fedmm.inference.evaluate import require_own_evaluation, rows_named
from fedmm.inference.export import FORMATS, export_model
from fedmm.inference.load_run import FinishedRun, open_run
from fedmm.inference.predict import (
    ASIDE,
    csv_stream,
    is_training_file,
    open_rows,
    predict_rows,
    prediction_file,
    read_as,
    require_apart,
    require_own_predictions,
    same_rows,
)
from fedmm.reporting.evaluation import draw_evaluation, require_own_picture
from fedmm.reporting.tested import with_interval
from fedmm.training.progress import bars

_MOST_COLUMNS, _MOST_CONFUSIONS, _MOST_NAMES, _SHOWN = 12, 10, 5, 6
_WORST, _BEST = 30, 10
CalibrateOn = Annotated[
    str,
    typer.Option(
        help="Fit a temperature, with two classes also a bias, to these labelled rows (a file, or source-validation or "
        "source-test for the run's own), so that probabilities can be trusted on similar rows.",
        metavar="DATA",
    ),
]
Recall = Annotated[
    float | None,
    typer.Option(
        help="With two classes: predict the second wherever that finds this share of its rows in --calibrate-on.",
        metavar="SHARE",
    ),
]


def predict(
    run: RunFolder,
    data: Annotated[
        Path,
        typer.Argument(
            help="Data like the run's: pictures or a folder of them, .npy, .npz, CSV or Parquet.", metavar="INPUT"
        ),
    ],
    out: Annotated[Path, typer.Option(help="A .csv, .csv.gz or .parquet file; - is standard output, as CSV.")] = Path(
        "-"
    ),
    model: ModelName = None,
    skip_bad: SkipBad = False,
    device: Device = "cpu",
    separator: Separator = "",
    decimal: Decimal = "",
    encoding: Encoding = "",
    site: RowsSite = "",
    calibrate_on: CalibrateOn = "",
    recall: Recall = None,
    allow_import: AllowImport = None,
) -> None:
    """Predict the classes of new rows: one line per row, with its name, its class and a probability per class."""

    shown = str(out) == "-"
    if not shown:
        require_own_predictions(out)
    opened = open_run(run, model, device=device)
    opened = read_as(opened, separator=separator, decimal=decimal, encoding=encoding, site=site)
    if not shown:
        require_apart(opened, out, str(data), calibrate_on)
    opened, said = _calibrate_run(opened, calibrate_on, recall)
    rows = open_rows(opened, data, skip_bad=skip_bad)
    with bars(True) as bar:
        task = bar.add_task("rows", total=rows.rows)
        to = nullcontext(csv_stream(sys.stdout, opened.class_names)) if shown else None
        with to or prediction_file(out, opened.class_names) as write:
            for part in rows.parts:
                write(predict_rows(opened, part))
                bar.advance(task, len(part.x))
    for note in skipped_note(rows.skipped):
        sys.stderr.write(f"{note}\n")
    if shown:
        for line in (f"model: {opened.model_name}", *said):
            sys.stderr.write(f"{line}\n")
    else:
        for line in said:
            say(line)
        count = rows.rows - len(rows.skipped)
        say(f"{count} rows, {len(opened.class_names)} classes, by the model of {opened.model_name}: {out}")


def evaluate(
    run: RunFolder,
    data: Annotated[
        str,
        typer.Argument(
            help="Labelled data like the run's: class folders, .npz, CSV, Parquet; or the word test, source-test or "
            "source-validation for the run's own rows.",
            metavar="DATA",
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            help="Also write everything to this .json file. `fedmm report` shows the groups of --group if it is in the "
            "folder RUN, such as RUN/by_sex.json."
        ),
    ] = None,
    picture: Annotated[
        Path | None, typer.Option(help="Also draw confusion matrix and reliability: .png, .svg or .pdf.")
    ] = None,
    model: ModelName = None,
    bins: Annotated[int, typer.Option(help="Number of equal-width bins for calibration.")] = 15,
    group: Annotated[
        str,
        typer.Option(
            help="Also score the groups of rows that this column defines; site for those that hold the run's own rows."
        ),
    ] = "",
    max_fpr: Annotated[
        float | None,
        typer.Option(
            help="With two classes: also the partial AUROC up to this false positive rate, above 0 and at most 1, "
            "standardised so that chance is 0.5.",
            metavar="RATE",
        ),
    ] = None,
    skip_bad: SkipBad = False,
    device: Device = "cpu",
    separator: Separator = "",
    decimal: Decimal = "",
    encoding: Encoding = "",
    site: RowsSite = "",
    calibrate_on: CalibrateOn = "",
    recall: Recall = None,
    allow_import: AllowImport = None,
) -> None:
    """Evaluate a run's model on labelled rows: accuracy, AUC, F1, per-class scores, confusions, calibration."""

    at_least("--bins", bins, 1)
    if max_fpr is not None:
        rate("--max-fpr", max_fpr)
    if out is not None:
        require_own_evaluation(out)
    if picture is not None:
        require_own_picture(picture)
    opened = open_run(run, model, device=device)
    opened = read_as(opened, separator=separator, decimal=decimal, encoding=encoding, site=site)
    opened, said = _calibrate_run(opened, calibrate_on, recall)
    if said and same_rows(opened, calibrate_on or ASIDE, data):
        said.append("these rows are also evaluated, so calibration, recall and precision look better than they are")
    rows = rows_named(opened, data, skip_bad=skip_bad)
    with bars(True) as bar:
        task = bar.add_task("rows", total=rows.rows)
        found = evaluate_rows(
            opened, data, rows, bins=bins, group=group, max_fpr=max_fpr,
            on_rows=lambda count: bar.advance(task, count),
        )  # fmt: skip
    table = found.table()
    if out is not None:
        write_json(out, table)
    if picture is not None:
        draw_evaluation(table, picture)
    if table["training_file"]:
        said.append("the run was trained on rows of this file, so scores on it look better than they are")
    for line in said:
        say(line)
    _show(table, found.grouped, opened.model_name)
    for note in skipped_note(rows.skipped):
        say(note)
    for name, path in (("everything is in", out), ("drawn:", picture)):
        if path is not None:
            say(f"{name} {path}")


def _calibrate_run(run: FinishedRun, data: str, recall: float | None) -> tuple[FinishedRun, list[str]]:
    """Return the run, with calibrated probabilities if requested, and lines to show about the calibration."""
    if not data and recall is None:
        return run, []
    data = data or ASIDE
    run, fitted = calibrate(run, rows_named(run, data), recall)
    said = fitted.describe(data, run.class_names[-1])
    if is_training_file(run, data):
        said.append(
            f"some rows of {data} were trained on, so that new rows may be calibrated worse; --calibrate-on {ASIDE} "
            "takes rows that were not"
        )
    return run, said


def _show(table: Mapping[str, Any], grouped: GroupedScores | None, model: str) -> None:
    say(f"{table['label']} ({model}) on {table['labelled_rows']} labelled rows of {table['data']}")
    if table["trained_on"]:
        say(f"{table['trained_on']} of these target rows were trained on too, without their labels")
    _say_known(table)
    majority = f"always {table['majority_class']!r} would have {table['majority']:.1%}"
    say(f"accuracy {_with_interval(table, 'accuracy')}; {majority}")
    balanced = _with_interval(table, "balanced_accuracy")
    say(f"balanced accuracy {balanced}, macro-F1 {table['macro_f1']:.3f}; intervals are 95 %")
    if table["auc"] is not None:
        say(
            f"of {table['classes'][1]['name']!r}: AUROC {_with_interval(table, 'auc')}, average precision "
            f"{_with_interval(table, 'average_precision')}, where {table['classes'][1]['support'] / table['rows']:.3f} "
            "would be chance"
        )
    if table["partial_auc"] is not None:
        say(
            f"partial AUROC up to a false positive rate of {table['max_fpr']:g}: {table['partial_auc']:.3f}, "
            "standardised so that 0.5 would be chance; it has no interval"
        )
    say(
        f"calibration: ECE {table['ece']:.3f} ({len(table['bins'])} bins of equal width), Brier {table['brier']:.3f} "
        f"(0 to 2), NLL {table['nll']:.3f} nats"
    )
    console.print(_classes(table["classes"]))
    _confusions(table)
    if grouped is not None:
        _groups(grouped)
    reliability = Table(title="probability of the predicted class", title_justify="left")
    for heading in ("from", "to", "rows", "mean", "right"):
        reliability.add_column(heading, justify="right")
    for bin in table["bins"]:
        if bin["rows"]:
            cells = (f"{bin['low']:.2f}", f"{bin['high']:.2f}", str(bin["rows"]))
            reliability.add_row(*cells, _percent(bin["confidence"]), _percent(bin["accuracy"]))
    console.print(reliability)


def _say_known(table: Mapping[str, Any]) -> None:
    """Report rows of classes unknown to the model and the accuracy with them, and classes that no row has."""
    unknown, absent = table["unknown_labels"], table["absent_classes"]
    unlabelled = table["left_out"] - table["unknown_rows"]
    if unlabelled:
        say(f"{unlabelled} rows without a label are left out")
    if unknown:
        low, high = table["accuracy_of_all_interval"]
        say(
            f"accuracy of all {table['labelled_rows']} labelled rows {table['accuracy_of_all']:.1%} "
            f"({low:.1%} to {high:.1%}): {table['unknown_rows']} of them count as wrong, having labels that the model "
            f"does not know: {_list_names(unknown)}"
        )
        say(f"the rest covers the {table['rows']} of {table['labelled_rows']} rows whose class it knows:")
    if absent:
        say(f"no row has the class {_list_names(absent)}, which the model knows")


def _list_names(names: Sequence[str]) -> str:
    return f"{', '.join(names[:_MOST_NAMES])}{', ...' if len(names) > _MOST_NAMES else ''}"


def _with_interval(table: Mapping[str, Any], name: str) -> str:
    low, high = table["intervals"][name]
    return (
        f"{table[name]:.3f} ({low:.3f} to {high:.3f})"
        if name in ("auc", "average_precision")
        else f"{table[name]:.1%} ({low:.1%} to {high:.1%})"
    )


def _classes(classes: list[Mapping[str, Any]]) -> Table:
    table = Table()
    table.add_column("class")
    for heading in ("precision", "recall", "F1", "rows", "predicted"):
        table.add_column(heading, justify="right")
    for row in classes:
        numbers = [_percent(row["precision"]), _percent(row["recall"]), _percent(row["f1"])]
        table.add_row(Text(row["name"]), *numbers, str(row["support"]), str(row["predicted"]))
    return table


def _groups(grouped: GroupedScores) -> None:
    """Show groups with 95 % intervals, the worst first; of many, only the worst and the best."""
    score = "AUROC" if grouped.by == "auc" else "accuracy"
    shown = Table(title=f"by {grouped.column}, the lowest {score} first", title_justify="left")
    shown.add_column(grouped.column)
    for heading in ("rows", "accuracy", "AUROC"):
        shown.add_column(heading, justify="right")
    for group in worst_and_best(grouped.groups, _WORST, _BEST):
        if isinstance(group, int):
            shown.add_row(f"{group} others")
            continue
        auc = "-"
        if group.auc is not None and group.auc_interval is not None:
            auc = with_interval(group.auc, group.auc_interval)
        accuracy = with_interval(group.accuracy, group.accuracy_interval, percent=True)
        shown.add_row(Text(group.name), str(group.rows), accuracy, auc)
    console.print(shown)
    said = [
        f"by accuracy worst {grouped.worst!r}, mean over groups {grouped.mean_accuracy:.1%}, spread "
        f"{grouped.spread_accuracy:.1%}"
    ]
    if grouped.worst_by_auc is not None:
        said.append(
            f"by AUROC worst {grouped.worst_by_auc!r}, mean {grouped.mean_auc:.3f}, spread {grouped.spread_auc:.3f}"
        )
    say("; ".join(reversed(said) if grouped.by == "auc" else said))
    few = [f"{group.name!r} ({group.rows})" for group in grouped.groups if group.name in grouped.few]
    if few:
        say(f"{grouped.describe_few('group')}: {_list_names(few)}")


def _confusions(table: Mapping[str, Any]) -> None:
    """Show the confusion matrix if it fits on a terminal, else the most frequent confusions."""
    names, counts = [row["name"] for row in table["classes"]], table["confusion"]
    if len(names) <= _MOST_COLUMNS:
        matrix = Table(title="class (down), predicted (across)", title_justify="left")
        matrix.add_column("")
        for name in names:
            matrix.add_column(Text(name[:8]), justify="right")
        for name, row in zip(names, counts, strict=True):
            matrix.add_row(Text(name), *(str(count) if count else "·" for count in row))
        console.print(matrix)
        return
    wrong = [
        (count, name, guess)
        for name, row in zip(names, counts, strict=True)
        for guess, count in zip(names, row, strict=True)
        if guess != name
    ]
    for count, name, guess in sorted(wrong, reverse=True)[:_MOST_CONFUSIONS]:
        if count:
            say(f"{count} rows of {name} were predicted as {guess}")


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f}%"


def export(
    run: RunFolder,
    format: Annotated[str, typer.Option(help="onnx, torchscript or safetensors.")] = "onnx",
    out: Annotated[Path | None, typer.Option(help="The file; RUN/exported.onnx and so on by default.")] = None,
    model: ModelName = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing file.")] = False,
    calibrate_on: CalibrateOn = "",
    recall: Recall = None,
    allow_import: AllowImport = None,
) -> None:
    """Write the model of a run as one file for other programs, which maps rows as they are stored to probabilities.

    An ONNX or TorchScript file includes the preprocessing (centring, normalisation, the centre crop, scaling of bytes),
    what --calibrate-on fits, and the names of the classes; its metadata has the threshold of --recall. A safetensors
    file has only weights and metadata. No file is left unless, loaded again, it gives the run's own probabilities.
    """

    ending = FORMATS[format].ending if format in FORMATS else ""
    opened, said = _calibrate_run(open_run(run, model), calibrate_on, recall)
    done = export_model(opened, format, out or run / f"exported{ending}", overwrite=overwrite)
    takes = done.about["takes"]
    shape = ", ".join(map(str, takes["shape"]))
    columns = takes.get("columns", {})
    given = ", ".join(f"{name} ({kind})" for name, kind in list(columns.items())[:_SHOWN])
    more = f" and {len(columns) - _SHOWN} more" if len(columns) > _SHOWN else ""
    given = f"the columns {given}{more}, each [{shape}]" if columns else f"{takes['name']} [{shape}] {takes['dtype']}"
    say(f"{done.path}: {format}, {len(done.about['class_names'])} classes ({opened.model_name})")
    say(f"takes {given}; inside, {'; '.join(takes['inside']) or 'nothing is done'}")
    if takes["prepared_by"]:
        say("its rows are prepared as `fedmm predict` does; the table `takes.prepared_by` in the file says how")
    say(f"gives probabilities and logits [rows, {len(done.about['class_names'])}]")
    for line in said:
        say(line)
    say(
        f"loaded again and compared on {done.rows} rows: probabilities differ by at most {done.difference:.2g} "
        f"(tolerance {done.tolerance:g})"
    )
