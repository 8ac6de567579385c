"""Curves and scores by site in a report, from what runs kept of their test rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from fedmm.core.signals.intervals import auroc_interval, wilson
from fedmm.reporting.html import collect_runs, pdf, write_pdf
from fedmm.reporting.html.charts import Lines, method_strokes
from fedmm.reporting.html.collect import Report
from fedmm.reporting.html.grouped import short_name
from fedmm.reporting.html.page import page, sections
from fedmm.reporting.html.parts import Details, HtmlTable, Section
from fedmm.reporting.tested import with_interval

Folders = Any  # of conftest
ATTACK = "</script><script>alert(1)</script>"


def keep(folder: Path, domain: str = "source", **others: Any) -> Path:
    """Two rows of class 0 and two of class 1 with scores 1 < 2 < 3 < 4, of classes 0 1 0 1, at two sites."""
    tensors = {
        "ranking": np.array([2, 2, 0.75, (1 + 2 / 3) / 2]),
        "roc": np.array([[0, 0], [0, 0.5], [0.5, 0.5], [0.5, 1], [1, 1]], np.float32),
        "precision_recall": np.array([[0.5, 1], [1, 2 / 3], [1, 0.5]], np.float32),
        "sites": np.array([[3, 2, 1, 0.5], [1, 0, 1, np.nan]]),
        "site_names": np.frombuffer(json.dumps(["north", ATTACK]).encode(), np.uint8),
    }
    kept = load_file(folder / "exhibits.safetensors") if (folder / "exhibits.safetensors").exists() else {}
    own = {f"{name}_{domain}": each for name, each in (tensors | others).items() if each is not None}
    save_file(kept | own, folder / "exhibits.safetensors")
    (folder / "input.json").write_text(json.dumps({"class_names": ["well", "ill"], "input": None}))
    return folder


def report_of(*folders: Path) -> tuple[Report, dict[str, Section]]:
    report = collect_runs(folders)
    lines = Lines([method.label for method in report.methods], method_strokes(report))
    return report, {section.name: section for section in sections(report, lines)}


def tables(section: Section) -> list[HtmlTable]:
    parts = [part.table if isinstance(part, Details) else part for part in section.parts]
    return [part for part in parts if isinstance(part, HtmlTable)]


def test_both_curves_stand_beside_each_other_with_their_areas(folders: Folders) -> None:
    _, found = report_of(keep(folders.run()))
    roc, precision = found["ranking"].charts()
    auroc = with_interval(0.75, auroc_interval(0.75, 2, 2))
    assert roc.title == f"ROC, source test rows: AUROC {auroc}"
    assert auroc in roc.alt
    assert "average precision 0.833 (" in precision.title
    chance, curve = roc.figures[""]["data"]
    assert (chance["x"], chance["y"]) == ([0.0, 1.0], [0.0, 1.0])
    assert list(zip(curve["x"], curve["y"], strict=True)) == [(0, 0), (0, 0.5), (0.5, 0.5), (0.5, 1), (1, 1)]
    chance, curve = precision.figures[""]["data"]
    assert chance["y"] == [0.5, 0.5]  # the share of the class
    assert (curve["x"], curve["y"]) == ([0.0, 0.5, 1.0, 1.0], [1.0, 1.0, 0.66667, 0.5])
    assert curve["line"]["shape"] == "vh"
    (areas,) = tables(found["ranking"])
    assert areas.rows[0][1:4] == [4, "2 (50.0%)", auroc]
    assert "'ill'" in found["ranking"].parts[0].words


def test_sites_come_from_the_worst_on_with_their_intervals(folders: Folders) -> None:
    report, found = report_of(keep(folders.run()))
    accuracy, ranked = found["sites"].charts()
    figure = accuracy.figures["0|source"]
    (dots,) = figure["data"]
    assert dots["x"] == [0.0, 66.667]
    low, high = wilson(2, 3)
    assert dots["error_x"]["array"] == pytest.approx([100 * wilson(0, 1)[1], 100 * (high - 2 / 3)], rel=1e-4)
    assert dots["error_x"]["arrayminus"] == pytest.approx([0.0, 100 * (2 / 3 - low)], rel=1e-4)
    assert figure["layout"]["shapes"][0]["x0"] == pytest.approx(100 / 3)
    assert figure["layout"]["yaxis"]["ticktext"][1] == "north"
    assert ranked.figures["0|source"]["data"][0]["x"] == [0.5]
    summary, each = tables(found["sites"])
    assert [summary.rows[0][1], summary.rows[0][2], *summary.rows[0][4:6]] == ["source test rows", 2, "33.3%", "66.7%"]
    assert [row[:2] for row in each.rows] == [[ATTACK, 1], ["north", 3]]
    assert each.rows[0][3] == "-"
    content = page(report, "/* plotly */")
    assert content.count("<script") == 4
    assert ATTACK not in content
    assert "<script" not in json.dumps(figure)


def test_of_five_hundred_sites_the_worst_and_the_best_are_shown(folders: Folders) -> None:
    counts = np.array([[500, k, 0, np.nan] for k in range(500)], np.float64)
    names = np.frombuffer(json.dumps([f"site {k}" for k in range(500)]).encode(), np.uint8)
    _, found = report_of(keep(folders.run(), sites=counts, site_names=names))
    each = tables(found["sites"])[1]
    assert [row[0] for row in each.rows] == [
        *(f"site {k}" for k in range(10)), "485 others", *(f"site {k}" for k in range(495, 500))
    ]  # fmt: skip
    (chart,) = found["sites"].charts()
    assert len(chart.figures["0|source"]["data"][0]["x"]) == 15
    assert chart.height < 600


def test_long_names_of_sites_keep_their_ends() -> None:
    assert short_name("clinic number 104", 17) == "clinic number 104"
    assert short_name("clinic number 104", 10) == "clin…r 104"


def test_several_methods_and_both_sets_are_told_apart(folders: Folders) -> None:
    one, other = keep(folders.run("one")), keep(folders.run("two", label="other"))
    keep(one, "target")
    report, found = report_of(one, other)
    charts = list(found["ranking"].charts())
    assert [chart.name for chart in charts] == [
        "roc-target", "precision-recall-target", "roc-source", "precision-recall-source",
    ]  # fmt: skip
    assert charts[0].title.startswith("ROC, target test rows: AUROC 0.750 (")
    assert charts[2].title == "ROC, source test rows"
    assert [trace.get("meta") for trace in charts[2].figures[""]["data"]] == [None, 0, 1]
    chart = next(iter(found["sites"].charts()))
    assert set(chart.figures) == {"0|target", "0|source", "1|target", "1|source"}
    assert chart.figures["1|target"]["data"] == []
    assert write_pdf(report, folders.root / "r.pdf").stat().st_size > 1000


def test_without_a_target_a_picture_shows_curves_and_sites(folders: Folders, monkeypatch: pytest.MonkeyPatch) -> None:
    labelled = {"clients": {name: {"source_rows": 9, "target_rows": 0} for name in "ab"}}
    folder = keep(folders.run(accuracies=(None, None), **labelled))
    scores = {"source_accuracy": 0.75, "source_worst_accuracy": 0.5, "source_auroc": 0.9}
    rounds = [json.loads(line) | scores for line in (folder / "rounds.jsonl").read_text().splitlines()]
    (folder / "rounds.jsonl").write_text("".join(json.dumps(each) + "\n" for each in rounds))
    shown: dict[bool, list[str]] = {}

    def page_of(report: Report, plots: Any, *, table: bool) -> Any:
        shown[table] = [each.title for each in plots] + [cell for row in pdf._cells(report) for cell in row]
        return drawn(report, plots, table=table)

    drawn = pdf._page
    monkeypatch.setattr(pdf, "_page", page_of)
    pdf.write_png(collect_runs([folder]), folders.root / "r.png")
    titles = " / ".join(shown[False])
    for title in (
        "accuracy on test rows",
        "accuracy of the worst site on test rows",
        "AUROC on test rows",
        "AUROC 0.750 (",
        "AP 0.833 (",
    ):
        assert title in titles
    assert "accuracy, test rows: FedMM" in shown[False]
    assert {"accuracy (%)", "worst site (%)", "75.0", "50.0"} <= set(shown[False])
    found = report_of(folder)[1]
    assert [chart.name for chart in found["accuracy"].charts()] == [
        "source-accuracy", "source-worst-accuracy", "source-auroc",
    ]  # fmt: skip
    assert "target" not in found["accuracy"].parts[0].words
    assert not {"domains", "features"} & found.keys()


def test_sites_of_a_deployed_run_are_scored_by_the_rows_that_they_keep(folders: Folders) -> None:
    def told(rows: object, hits: object) -> dict[str, object]:
        return {"holds": "source", "validation_rows": rows, "validation_hits": hits}

    ranked = {"validation_positive": 10, "validation_auroc": 0.8}
    clients = {"north": told(40, 30), "south": told(20, 10) | ranked, "late": {"holds": "source"}}
    wrong = {
        "huge": told(10**160, 1) | ranked,
        "flags": told(True, True),
        "none": told(0, 0),
        "many": told(2, 3),
        "word": told("2", "1"),
        "list": [2, 1],
    }
    report, found = report_of(folders.run(clients={**clients, **wrong}))
    assert not report.has_target
    assert not {"domains", "features"} & found.keys()
    chart, by_auc = found["sites"].charts()
    assert chart.figures["0|validation"]["data"][0]["x"] == [50.0, 75.0]
    assert by_auc.figures["0|validation"]["data"][0]["x"] == [0.8]
    summary, each = tables(found["sites"])
    assert [summary.rows[0][1], summary.rows[0][2], *summary.rows[0][4:6]] == [
        "rows kept from training", 2, "62.5%", "25.0%",
    ]  # fmt: skip
    assert [row[:3] for row in each.rows] == [
        [name, rows, with_interval(hits / rows, wilson(hits, rows), percent=True)]
        for name, rows, hits in (("south", 20, 10), ("north", 40, 30))
    ]
    assert "whatever was selected on them looks better there" in found["sites"].parts[0].words
    assert write_pdf(report, folders.root / "r.pdf").stat().st_size > 1000


def evaluation(folder: Path, file: str = "by_sex.json", **others: Any) -> Path:
    """What ``fedmm evaluate --group sex`` writes: 30 of 40 right, and 5 of 20 with an AUROC of 0.8."""
    groups = [
        {"name": ATTACK, "rows": 20, "hits": 5, "positive": 8, "auc": 0.8},
        {"name": "f", "rows": 40, "hits": 30, "positive": 0, "auc": None},
    ]
    told = {
        "format": "fedmm-evaluation-1", "label": "FedMM", "checkpoint": "best", "round": 2, "threshold": None,
        "data": "/data/patients.csv", "rows": 60, "training_file": False,
        "grouped": {"column": "sex", "groups": groups},
    }  # fmt: skip
    (folder / file).write_text(json.dumps(told | others))
    return folder


def test_groups_of_an_evaluation_in_the_folder_are_shown_like_sites(folders: Folders) -> None:
    one, other = evaluation(folders.run("one"), training_file=True), folders.run("two", label="other")
    report, found = report_of(one, evaluation(other, "x.json", threshold=0.25))
    summary, each, _ = tables(found["groups"])
    (accuracy, ranked), words = found["groups"].charts(), found["groups"].parts[0].words
    assert set(accuracy.figures) == set(ranked.figures) == {"0", "1"}
    (dots,) = accuracy.figures["0"]["data"]
    assert dots["x"] == [25.0, 75.0]
    assert dots["error_x"]["array"] == pytest.approx(
        [100 * (wilson(5, 20)[1] - 0.25), 100 * (wilson(30, 40)[1] - 0.75)], rel=1e-4
    )
    assert ranked.figures["1"]["data"][0]["x"] == [0.8]
    assert [row[:2] for row in each.rows] == [[ATTACK, 20], ["f", 40]]
    assert each.headings == ["sex", "rows", "accuracy", "AUROC"]
    assert each.rows[0][2:] == [
        with_interval(0.25, wilson(5, 20), percent=True),
        with_interval(0.8, auroc_interval(0.8, 8, 12)),
    ]
    assert [summary.rows[0][2], *summary.rows[0][4:6], *summary.rows[0][7:]] == [2, "50.0%", "50.0%", "0.800", "0.000"]
    assert summary.rows[0][1] == (
        "sex in patients.csv, 60 rows<small>FedMM, round 2 (best), trained on rows of this file; by_sex.json</small>"
    )
    assert "second class from probability 0.25 on; x.json" in summary.rows[1][1]
    assert "On a file that the run was trained on, scores look better than they are." in words
    assert ATTACK not in page(report, "/* plotly */")
    assert write_pdf(report, folders.root / "r.pdf").stat().st_size > 1000


def test_every_seed_of_a_method_may_have_an_evaluation(folders: Folders) -> None:
    first, second = evaluation(folders.run("one")), evaluation(folders.run("two", seed=1))
    _, found = report_of(first, second)
    summary, *_ = tables(found["groups"])
    assert [f"seed {seed};" in row[1] for seed, row in enumerate(summary.rows)] == [True, True]


@pytest.mark.parametrize(
    ("others", "sentence"),
    [
        ({"rows": 61}, "by_sex.json must have as many rows as its groups have together"),
        ({"data": 3}, "by_sex.json must give 'data' as text, not 3"),
        ({"round": -1}, "must give 'round' as a whole number of at least 0"),
        ({"threshold": float("nan")}, "must give 'threshold' as a finite number"),
        ({"grouped": [1]}, "must give 'grouped' as a table"),
        ({"rows": 0, "grouped": {"column": "sex", "groups": []}}, "as many rows as its groups"),
        ({"grouped": {"column": "sex", "groups": [3]}}, "must give 'grouped.groups.name' as text"),
        *(
            ({"rows": 3, "grouped": {"column": "sex", "groups": [{"name": "f", "rows": 3, **counts}]}}, "hold together")
            for counts in (
                {}, {"hits": 4}, {"hits": -1}, {"hits": 1.0}, {"hits": True}, {"hits": 10**400},
                {"hits": 1, "positive": 3, "auc": 0.5}, {"hits": 1, "positive": 1, "auc": 1.5},
                {"hits": 1, "positive": 1, "auc": float("nan")}, {"rows": 1 << 60, "hits": 1},
            )
        ),
        (
            {"rows": 6, "grouped": {"column": "sex", "groups": [{"name": "f", "rows": 3, "hits": 1}] * 2}},
            "must name each group once",
        ),
    ],
)  # fmt: skip
def test_a_broken_evaluation_is_left_out_with_a_sentence(
    folders: Folders, others: dict[str, Any], sentence: str
) -> None:
    report, found = report_of(evaluation(folders.run(), **others))
    (part,) = found["groups"].parts
    assert part.words.startswith("An evaluation is left out: by_sex.json ")
    assert sentence in part.words
    assert page(report, "/* plotly */")


def test_other_files_of_the_folder_are_no_evaluations(folders: Folders) -> None:
    run = evaluation(folders.run(), "whole.json", grouped=None)
    for name, content in (("a", "[1"), ("b", "[]"), ("c", '["fedmm-evaluation-1"]'), ("d", "\0"), ("e", "[" * 9999)):
        (run / f"{name}.json").write_text(content)
    (run / "folder.json").mkdir()
    _, found = report_of(run)
    (part,) = found["groups"].parts
    assert "fedmm evaluate RUN DATA --group COLUMN --out RUN/by_COLUMN.json" in part.words
    (run / "cut.json").write_text('{"format": "fedmm-evaluation-1", "rows"')
    _, found = report_of(run)
    assert [part.words for part in found["groups"].parts] == ["An evaluation is left out: cut.json is not valid JSON."]


def test_what_a_run_did_not_keep_is_said_in_a_sentence(folders: Folders) -> None:
    _, found = report_of(folders.run())
    assert "kept no ROC curves: they need test rows of two classes" in found["ranking"].parts[0].words
    assert "do not know which sites hold labelled test rows" in found["sites"].parts[0].words


def test_without_kept_rows_the_areas_are_told_without_curves(folders: Folders) -> None:
    _, found = report_of(keep(folders.run(), roc=None, precision_recall=None))
    assert not list(found["ranking"].charts())
    assert len(tables(found["ranking"])) == 1


@pytest.mark.parametrize(
    ("broken", "gone"),
    [
        ({"ranking": np.array([2, 2, np.nan, 0.5])}, "ranking"),
        ({"ranking": np.array([0, 2, 0.5, 0.5])}, "ranking"),
        ({"ranking": np.array([2, 2, 1.5, 0.5])}, "ranking"),
        ({"ranking": np.zeros((2, 2))}, "ranking"),
        ({"sites": np.array([[0, 0, 0, np.nan], [1, 1, 0, np.nan]])}, "sites"),
        ({"sites": np.array([[3, 4, 0, np.nan], [1, 1, 0, np.nan]])}, "sites"),
        ({"sites": np.array([[3, 3, 0, 0.5], [1, 1, 0, np.nan]])}, "sites"),
        ({"sites": np.array([[np.inf, 3, 0, np.nan], [1, 1, 0, np.nan]])}, "sites"),
        ({"sites": np.array([[3, 3, 0, np.nan]])}, "sites"),
        ({"sites": np.zeros((0, 4))}, "sites"),
        ({"site_names": np.frombuffer(b"[1", np.uint8)}, "sites"),
        ({"site_names": np.frombuffer(b'{"a": 1, "b": 2}', np.uint8)}, "sites"),
    ],
)
def test_what_does_not_hold_together_is_left_out(folders: Folders, broken: dict[str, Any], gone: str) -> None:
    _, found = report_of(keep(folders.run(), **broken))
    assert not list(found[gone].charts())
    assert not tables(found[gone])


@pytest.mark.parametrize("points", [np.zeros((0, 2)), np.zeros(3), np.array([[0.0, np.nan]]), np.array([[0.0, 2.0]])])
def test_a_curve_outside_its_square_is_left_out(folders: Folders, points: Any) -> None:
    _, found = report_of(keep(folders.run(), roc=points))
    assert not list(found["ranking"].charts())
