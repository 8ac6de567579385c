"""Reports of models of labelled data alone: the score that they are for comes first."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from fedmm.algorithms import ALGORITHMS
from fedmm.core.signals.validators import METRICS
from fedmm.reporting import draw_comparison, draw_run, read_comparison, read_run
from fedmm.reporting.figures import _choose_columns, _main_scores
from fedmm.reporting.html import collect_runs, write_pdf, write_png
from fedmm.reporting.html.charts import Lines, align, method_strokes
from fedmm.reporting.html.page import page, sections
from fedmm.reporting.html.parts import Details, HtmlTable, Section, Text
from fedmm.reporting.scores import NAMES, TESTED, WEIGHING, metric_of, name_of
from fedmm.reporting.style import strokes

Folders = Any  # of conftest
NO_TARGET = {"clients": {name: {"source_rows": 9, "target_rows": 0} for name in ("Sud", "Koln")}}
BY_ROUND = {
    "source_auroc": [0.7, 0.9, 0.8], "source_average_precision": [0.2, 0.5, 0.4], "source_accuracy": [0.96, 0.9, 0.95],
    "source_worst_accuracy": [0.1, 0.2, 0.3], "validation_auroc": [0.75, 0.95, 0.85],
    "validation_accuracy": [0.96, 0.9, 0.94], "validation_worst_accuracy": [0.15, 0.25, 0.35],
    "source_risk": [0.7, 0.0999, 0.259], "drift.Sud": [1.0, 2.0, 3.0], "drift.Koln": [1.0, 1.0, 1.0],
}  # fmt: skip


def labelled(folders: Folders, name: str = "run", *, best_by: str = "validation_auroc", **about: Any) -> Path:
    """A run of auc on two sites, whose second round of three was best."""
    folder: Path = folders.run(name, accuracies=(None,) * 3, **({"objective": "auc"} | NO_TARGET | about))
    rounds = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    for number, row in enumerate(rounds):
        row |= {column: values[number] for column, values in BY_ROUND.items()}
    (folder / "rounds.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rounds))
    (folder / "experiment.toml").write_text(f'[run]\nbest_by = "{best_by}"\n[data]\nfile = "/data/loans.csv"\n')
    text = {"site_names_source": ["Süd", "Köln"], "client_sites": {"Sud": "Süd", "Koln": "Köln"}}
    tensors = {
        "sites_source": np.array([[40, 30, 9, 0.9], [20, 19, 4, 0.6]]),
        "ranking_source": np.array([47, 13, 0.9, 0.5]),
        "confusion_source": np.array([[40, 7], [4, 9]], np.int32),
        **{key: np.frombuffer(json.dumps(value).encode(), np.uint8) for key, value in text.items()},
        **({"tested_round": np.array(2)} if best_by else {}),
    }
    save_file(tensors, folder / "exhibits.safetensors")
    (folder / "input.json").write_text(json.dumps({"class_names": ["well", "ill"], "input": None}))
    return folder


def found_in(*folders: Path) -> dict[str, Section]:
    report = collect_runs(folders)
    lines = Lines([method.label for method in report.methods], method_strokes(report))
    return {section.name: section for section in sections(report, lines)}


def words_of(section: Section) -> str:
    return " ".join(part.words for part in section.parts if isinstance(part, Text))


def tables(section: Section) -> list[HtmlTable]:
    parts = [part.table if isinstance(part, Details) else part for part in section.parts]
    return [part for part in parts if isinstance(part, HtmlTable)]


def test_a_report_of_auc_begins_with_it(folders: Folders) -> None:
    found = found_in(labelled(folders))
    (results,) = tables(found["headline"])
    headings = [str(heading).replace("<small>", " ").replace("</small>", "") for heading in results.headings]
    assert headings[2:7] == [
        "chosen round on rows set aside", "AUROC test rows", "average precision test rows", "AUROC last round",
        "AUROC rows set aside",
    ]  # fmt: skip
    assert [str(cell) for cell in results.rows[0][2:7]] == [
        "round 2<small>by validation_auroc</small>", "0.900", "0.500", "0.800", "0.950",
    ]  # fmt: skip
    assert "whose model fedmm predict uses" in words_of(found["headline"])
    charts = list(found["accuracy"].charts())
    assert [chart.name for chart in charts] == [
        "source-auroc", "source-average-precision", "source-accuracy", "source-worst-accuracy",
    ]  # fmt: skip
    assert charts[0].title == "AUROC on test rows"
    assert charts[0].height > charts[1].height
    assert "rangemode" not in charts[0].figures[""]["layout"]["yaxis"]
    assert words_of(found["accuracy"]).endswith("Always predicting 'well' would have an accuracy of 78.3%.")
    assert next(iter(found["validators"].charts())).name == "validation-auroc"
    report = collect_runs([labelled(folders, "again")])
    text = page(report, "/* plotly */")
    assert "target accuracy" not in text.lower().replace("target_accuracy", "")
    assert report.title == "FedMM on loans.csv"
    for write, ending in ((write_pdf, "pdf"), (write_png, "png")):
        assert write(report, folders.root / f"r.{ending}").stat().st_size > 1000


def test_sites_are_ordered_by_what_the_model_is_for(folders: Folders) -> None:
    summary, each = tables(found_in(labelled(folders))["sites"])
    assert [row[0] for row in each.rows] == ["Köln", "Süd"]
    assert each.headings == ["site", "rows", "AUROC", "accuracy"]
    assert str(summary.headings[3]) == "worst site<small>by AUROC</small>"
    assert summary.rows[0][1] == "test rows"
    _, each = tables(found_in(labelled(folders, "other", objective="source_only", best_by=""))["sites"])
    assert [row[0] for row in each.rows] == ["Süd", "Köln"]
    assert each.headings == ["site", "rows", "accuracy", "AUROC"]


def test_scores_say_whose_model_they_are_of(folders: Folders) -> None:
    best = "The model is the one that fedmm predict uses: round 2, best by validation_auroc."
    found = found_in(labelled(folders))
    for section in ("confusion", "ranking", "sites"):
        assert best in words_of(found[section])
    found = found_in(labelled(folders, "last", best_by=""))
    assert "The model is that of the last round." in words_of(found["ranking"])
    found = found_in(labelled(folders, "one"), labelled(folders, "two", label="other", best_by=""))
    assert "fedmm predict uses: of the best round or, if none was chosen, the last." in words_of(found["ranking"])


def test_clients_have_the_names_of_their_sites(folders: Folders) -> None:
    charts = {chart.name: chart for chart in found_in(labelled(folders))["agreement"].charts()}
    assert [line["name"] for line in charts["clients-drift"].figures["0"]["data"]] == ["Süd", "Köln"]


def test_a_report_for_the_worst_site_begins_with_it(folders: Folders) -> None:
    run = labelled(folders, algorithm="fedmm_agnostic", objective="source_only", best_by="")
    found = found_in(run)
    (results,) = tables(found["headline"])
    assert [str(cell) for cell in results.rows[0][2:5]] == ["30.0", "95.0", "35.0"]
    assert next(iter(found["accuracy"].charts())).title == "accuracy of the worst site on test rows"
    assert _main_scores(read_run(run)) == (
        "accuracy on test rows", {"worst site": "source_worst_accuracy", "accuracy": "source_accuracy"},
    )  # fmt: skip
    assert "source only" not in read_run(run).method


def test_several_methods_are_compared_by_the_same_score(folders: Folders) -> None:
    one = labelled(folders, "one")
    baseline = labelled(folders, "two", label="federated averaging", objective="source_only", best_by="")
    found = found_in(one, baseline)
    dots = next(iter(found["headline"].charts()))
    assert dots.title == "AUROC on test rows in the chosen round, a dot for each seed"
    assert [trace["x"] for trace in dots.figures[""]["data"]] == [[0.9], [0.8]]
    (results,) = tables(found["headline"])
    assert [str(row[2]) for row in results.rows] == ["round 2<small>by validation_auroc</small>", "the last"]


@pytest.mark.parametrize("told", ["compare.json", "tune.json"])
def test_a_comparison_says_by_what_it_judged(folders: Folders, told: str) -> None:
    labelled(folders, "c/one", objective="source_only", best_by="")
    tuned = {"format": "fedmm-tune-1", "verdict": {"label": "one", "sentence": "one"}, "table": [], "rungs": []}
    about = {**tuned, "notes": [], "ended": ""}
    (folders.root / "c" / told).write_text(json.dumps({**about, "metric": "auc"}))
    assert collect_runs([folders.root / "c/one", folders.root / "c"]).metric == "auc"
    (folders.root / "c" / told).write_text(json.dumps({**about, "metric": ["auc"]}))
    assert collect_runs([folders.root / "c"]).metric == "accuracy"


def test_pictures_show_the_same_score(folders: Folders) -> None:
    run = labelled(folders)
    assert _main_scores(read_run(run)) == ("AUROC on test rows", {"AUROC": "source_auroc"})
    assert draw_run(run)[0].stat().st_size > 1000
    comparison = folders.root / "comparison"
    labelled(folders, "comparison/runs/0")
    entries = [{"label": "fedmm", "seed": 0, "folder": "runs/0"}]
    (comparison / "summary.json").write_text(json.dumps({"kind": "comparison", "title": "loans", "runs": entries}))
    assert _choose_columns(read_comparison(comparison)) == ["source_auroc"]
    assert draw_comparison(comparison)[0].stat().st_size > 1000


@pytest.mark.parametrize("broken", [np.array([1]), np.array(2.5), np.frombuffer(b"[1", np.uint8)])
def test_what_does_not_hold_together_is_left_out(folders: Folders, broken: Any) -> None:
    run = labelled(folders)
    save_file({"tested_round": broken, "client_sites": broken.astype(np.uint8)}, run / "exhibits.safetensors")
    entry = collect_runs([run]).entries[0]
    assert (entry.tested_round, entry.client_sites) == (None, {})


def test_what_a_model_is_for_is_told_by_its_names() -> None:
    assert {name for name, kind in ALGORITHMS.items() if kind.weighs_clients} == set(WEIGHING)
    assert metric_of("fedmm", "auc") == metric_of("fedavg_gda", "source_only", "validation_auroc") == "auc"
    assert metric_of("afl", "source_only", "source_risk") == "worst_site"
    assert metric_of("fedavg_gda", "source_only", "validation_worst_accuracy") == "worst_site"
    assert metric_of("fedmm", "source_only") == metric_of("fedmm", "source_only", "source_risk") == "accuracy"
    assert TESTED.keys() == METRICS.keys()
    assert {name_of(column) for columns in (*TESTED.values(), *METRICS.values()) for column in columns} == set(
        NAMES.values()
    )


def test_only_the_baseline_is_grey(folders: Folders) -> None:
    runs = {name: [read_run(labelled(folders, name, algorithm=name, objective="source_only"))] for name in WEIGHING}
    runs["fedavg_gda"] = [read_run(labelled(folders, "plain", algorithm="fedavg_gda", objective="source_only"))]
    colours = {name: stroke.colour for name, stroke in strokes(runs).items()}
    assert [name for name, colour in colours.items() if colour == "#8C8C8C"] == ["fedavg_gda"]
    assert len(set(colours.values())) == len(colours)


def test_numbers_of_a_column_have_equally_many_decimals() -> None:
    assert align([0.7, 0.0999, 0.259]) == ["0.700", "0.100", "0.259"]
    assert align([9.0, 12.5]) == ["9.0", "12.5"]
    assert align([1234.5, 2.0]) == ["1234", "2"]
    assert align([12.0, 0.001]) == ["12.0", "0.001"]
    assert align([0.0, float("nan")]) == ["0", "nan"]
