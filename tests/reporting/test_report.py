"""Reports: one file that needs nothing else, whatever the runs kept."""

from __future__ import annotations

import importlib.util
import json
import sys
from html.parser import HTMLParser
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from safetensors.numpy import load_file, save_file

from fedmm.cli import main
from fedmm.cli.train import show_comparison
from fedmm.core.errors import FedmmError
from fedmm.core.signals.track_record import tell_record
from fedmm.core.signals.validators import ALONE, NOT_SUPPORTED, RULE
from fedmm.reporting import comparison_rows, draw_comparison, read_comparison, validator_table
from fedmm.reporting.html import collect_runs, write_pdf, write_png
from fedmm.reporting.html.charts import Lines, method_strokes
from fedmm.reporting.html.chosen import choice_of, chosen_round
from fedmm.reporting.html.costs import cost_of, levels
from fedmm.reporting.html.features import _plane
from fedmm.reporting.html.metrics import rank_correlation
from fedmm.reporting.html.page import page, sections

SECTIONS = [
    "Results", "Accuracy", "Validators", "Agreement", "Domains", "Features", "Confusion", "ROC and precision",
    "Sites", "Groups", "Predictions", "Communication", "Time", "Guard", "Configuration",
]  # fmt: skip
ATTACK = '</script><script>alert("1")</script><img src=x onerror=alert(1)>'
Folders = Any  # of conftest
EMPTY = {"img", "input", "meta", "br"}


class Page(HTMLParser):
    """A page taken apart."""

    def __init__(self, content: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.headings: list[str] = []
        self.data = ""
        self.words: list[str] = []
        self.feed(content)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in EMPTY:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "h2" in self.open:
            self.headings.append(data)
        if "script" in self.open and dict(self.tags[-1][1]).get("id") == "report-data":
            self.data += data
        elif "script" not in self.open and "style" not in self.open:
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(self.words)

    def attributes(self, name: str) -> list[str]:
        return [str(attrs[name]) for _, attrs in self.tags if name in attrs]


def ended(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    """The exit code of a command."""
    monkeypatch.setattr(sys, "argv", ["fedmm", *arguments])
    with pytest.raises(SystemExit) as caught:
        main()
    return int(caught.value.code or 0)


def shown(*folders: Path) -> Page:
    return Page(page(collect_runs(folders), "/* plotly */"))


def add_exhibits(folder: Path, *, images: bool = True, labelled: bool = True) -> None:
    draws = np.random.default_rng(0)
    x = draws.integers(0, 256, (5, 3, 4, 6), dtype=np.uint8) if images else draws.normal(size=(5, 2)).astype(np.float32)
    tensors = {
        "map_domain": np.array([0, 1] * 12, np.uint8),
        "map_label": np.array([0, 0, 1, 1] * 6, np.int16),
        "map_predicted": np.array([0, 1, 1, 1] * 6, np.int16),
        "map_before": draws.normal(size=(24, 3)).astype(np.float32),
        "map_after": draws.normal(size=(24, 2)).astype(np.float32),
        "sample_x": x,
        "sample_label": np.array([0, 1, 0, 1, 0] if labelled else [-1] * 5, np.int16),
        "sample_class": np.array([[0, 1]] * 5, np.int16),
        "sample_probability": np.array([[0.75, 0.25]] * 5, np.float32),
        "confusion_source": np.array([[4, 0], [0, 4]], np.int32),
    }
    if labelled:
        tensors["confusion_target"] = np.array([[3, 1], [2, 2]], np.int32)
    save_file(tensors, folder / "exhibits.safetensors")
    (folder / "input.json").write_text(json.dumps({"class_names": ["cat & <dog>", "hen"], "input": None}))


def rewrite(folder: Path, **columns: Any) -> None:
    """Put further columns into every round; a list has a value for each."""
    path = folder / "rounds.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    for number, row in enumerate(rows):
        row.update({name: value[number] if isinstance(value, list) else value for name, value in columns.items()})
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture
def comparison(folders: Folders) -> Path:
    return folders.comparison({"FedMM": [[0.5, 0.7, 0.8], [0.4, 0.6, 0.9]], "FedAvgGDA": [[0.5, 0.5, 0.6]]})


def test_a_page_needs_nothing_from_elsewhere(comparison: Path, folders: Folders) -> None:
    add_exhibits(comparison / "runs/0")
    found = shown(comparison)
    assert found.headings == SECTIONS
    loaded = found.attributes("src") + [str(a["href"]) for tag, a in found.tags if tag != "a" and "href" in a]
    assert loaded
    assert all(address.startswith("data:image/png;base64,") for address in loaded)
    assert {link[0] for link in found.attributes("href")} == {"#"}
    assert not {tag for tag, _ in found.tags} & {"link", "iframe", "object", "embed", "base"}
    policy = next(a["content"] for tag, a in found.tags if tag == "meta" and "http-equiv" in a)
    assert str(policy).startswith("default-src 'none'")
    ids = found.attributes("id")
    assert len(ids) == len(set(ids))
    assert {link[1:] for link in found.attributes("href")} <= set(ids)


def test_every_chart_has_its_figure_and_words(comparison: Path) -> None:
    add_exhibits(comparison / "runs/0")
    found = shown(comparison)
    charts = json.loads(found.data)["charts"]
    boxes = [attrs for _, attrs in found.tags if "data-chart" in attrs]
    assert {attrs["data-chart"] for attrs in boxes} == charts.keys()
    assert all(attrs["role"] == "img" and attrs["aria-label"] for attrs in boxes)
    lines = charts["target-accuracy"][""]["data"]
    assert lines[1]["y"] == [45.0, 65.0, 85.0]  # mean of FedMM's seeds, in percent
    assert lines[0]["y"] == [50.0, 70.0, 90.0, 80.0, 60.0, 40.0]  # their range, there and back
    assert all(scope in ("col", "row") for tag, a in found.tags if tag == "th" for scope in [a["scope"]])


@pytest.mark.parametrize("label", [ATTACK, "<b>bold</b>", "${title} $data &amp;"])
def test_labels_are_text_everywhere(folders: Folders, label: str) -> None:
    run, other = folders.run("one", label=label), folders.run("two", label="plain")
    add_exhibits(run)
    found = shown(run, other)
    assert [tag for tag, _ in found.tags].count("script") == 4
    assert not any(name.startswith("on") for _, attrs in found.tags for name in attrs)
    assert label in found.text
    assert "cat & <dog>" in found.text
    traces = json.loads(found.data)["charts"]["target-accuracy"][""]["data"]
    assert "<" not in traces[0]["name"]


def test_what_an_older_run_did_not_keep_is_said_in_a_sentence(folders: Folders) -> None:
    found = shown(folders.run())
    for sentence in (
        "These runs kept no features to draw a map of.",
        "These runs kept no confusion counts",
        "These runs kept no rows with their predictions.",
        "Drift and duals of single clients were not recorded in these runs.",
        "The domain classifier's accuracy and the proxy A-distance were not recorded in these runs.",
        "The guard had nothing to do in these runs",
    ):
        assert sentence in found.text


def test_a_run_without_target_labels_has_no_target_accuracy(folders: Folders) -> None:
    run = folders.run(accuracies=(None, None, None))
    rewrite(run, target_information=[0.1, 0.3, 0.2])
    add_exhibits(run, labelled=False)
    found = shown(run)
    assert "no accuracy on the target is known" in found.text
    assert "oracle" not in found.text
    assert "round 2" in found.text
    assert "✓" not in found.text
    assert "Source rows only: there are no target labels." in found.text


def test_a_run_that_is_under_way_is_shown_as_far_as_it_goes(folders: Folders) -> None:
    run = folders.run()
    (run / "summary.json").unlink()
    (run / "experiment.toml").write_text('[run]\nlabel = "half"\nseed = 3\n[algorithm]\nname = "fedmm"\n')
    with (run / "rounds.jsonl").open("a") as file:
        file.write('{"round": 4, "target_acc')
    begun = folders.run("begun", label="begun")
    (begun / "summary.json").unlink()
    (begun / "rounds.jsonl").unlink()
    found = shown(run, begun)
    assert found.headings == SECTIONS
    assert "1 of 1 unfinished" in found.text
    assert "75.0" in found.text


def test_columns_of_single_clients_and_domains_are_drawn(folders: Folders) -> None:
    run = folders.run()
    each = {"drift.site <a>": 1.0, "dual_norm.site <a>": 2.0, "drift.site.b": [3.0, None, 3.0]}
    rewrite(run, **each, domain_accuracy=0.5, proxy_a_distance=0.0, target_snd=[1.0, 2.0, 3.0])
    charts = json.loads(shown(run).data)["charts"]
    drifts = charts["clients-drift"]["0"]["data"]
    assert [(line["name"], line["y"]) for line in drifts] == [("site &lt;a&gt;", [1.0] * 3), ("site.b", [3.0] * 2)]
    assert {"domain-accuracy", "proxy-a-distance", "target-snd"} <= charts.keys()


def test_many_clients_become_a_band(folders: Folders) -> None:
    run = folders.run()
    rewrite(run, **{f"drift.c{i}": float(i) for i in range(30)})
    drifts = json.loads(shown(run).data)["charts"]["clients-drift"]["0"]["data"]
    assert [line["y"][0] for line in drifts] == [0.0, 14.5, 29.0]


def test_what_the_guard_did_is_listed(folders: Folders) -> None:
    event = {
        "round": 2,
        "policy": "rollback",
        "reason": "drift <x>",
        "to_round": 1,
        "lr_times": 0.5,
        "penalty_times": 2,
    }
    found = shown(folders.run(guard=[event, "nonsense"]))
    assert "drift <x>" in found.text
    assert "rollback" in found.text


def test_rows_of_a_table_are_a_table(folders: Folders) -> None:
    run = folders.run()
    add_exhibits(run, images=False)
    found = shown(run)
    assert "cat & <dog> 75%" in found.text
    assert {"x1", "x2"} <= {word.strip() for word in found.words}


def test_the_same_runs_give_the_same_page_and_a_map_is_kept(folders: Folders) -> None:
    run = folders.run()
    add_exhibits(run)
    first = page(collect_runs([run]), "")
    kept = load_file(run / "maps.safetensors")
    assert sorted(each.shape for each in kept.values()) == [(24, 2), (24, 2)]
    assert page(collect_runs([run]), "") == first
    (run / "maps.safetensors").write_bytes(b"torn")
    assert page(collect_runs([run]), "") == first


def test_runs_of_one_label_that_differ_are_told_apart(folders: Folders) -> None:
    one, two = folders.run("one"), folders.run("two")
    (one / "experiment.toml").write_text("[algorithm]\nlr_min = 0.1\n[run]\nseed = 0\n")
    (two / "experiment.toml").write_text("[algorithm]\nlr_min = 0.2\n[run]\nseed = 0\n")
    assert [method.label for method in collect_runs([one, two, one]).methods] == [
        "FedMM, lr_min 0.1",
        "FedMM, lr_min 0.2",
    ]
    (two / "experiment.toml").write_text("[algorithm]\nlr_min = 0.1\n[run]\nseed = 7\n")
    (method,) = collect_runs([one, two]).methods
    assert len(method.entries) == 2


def test_a_comparison_keeps_its_order_and_title(comparison: Path) -> None:
    found = collect_runs([comparison])
    assert found.title == "two moons"
    assert [method.label for method in found.methods] == ["FedMM", "FedAvgGDA"]
    assert [len(method.entries) for method in found.methods] == [2, 1]


def test_rounds_are_chosen_with_and_without_labels(folders: Folders) -> None:
    run = folders.run(accuracies=(0.5, 0.9, 0.7))
    rewrite(run, target_information=[0.1, 0.2, 0.3], source_risk=[0.3, 0.1, 0.2])
    (run / "experiment.toml").write_text('[run]\nbest_by = "source_risk"\n')
    (entry,) = collect_runs([run]).entries
    assert choice_of(entry) == ("source_risk", (2, 0.9))
    assert chosen_round(entry.run, "target_information") == (3, 0.7)
    assert chosen_round(entry.run, "target_accuracy") == (2, 0.9)
    assert chosen_round(entry.run, "absent") is None


def test_costs_are_counted_until_an_accuracy_is_reached(folders: Folders) -> None:
    """Each round sends 1 MB up and 2 MB down and takes 0.5 s; 70% is first measured in round 3."""
    (entry,) = collect_runs([folders.run(accuracies=(0.5, 0.6, 0.7, 0.65))]).entries
    assert cost_of(entry.run, 70) == (3, 3.0, 6.0, 1.5)
    assert cost_of(entry.run, 71) is None
    assert levels(collect_runs([entry.run.folder])) == [55, 60, 65, 70]


def test_rank_correlation_is_signed_so_that_one_is_best(folders: Folders) -> None:
    run = folders.run(accuracies=(0.1, 0.2, 0.3, 0.4, 0.5))
    rewrite(run, target_snd=[1, 2, 3, 4, 5], source_risk=[5, 4, 3, 2, 1], target_bnm=[1, 1, 1, 1, 1])
    (entry,) = collect_runs([run]).entries
    assert rank_correlation(entry.run, "target_snd") == pytest.approx(1.0)
    assert rank_correlation(entry.run, "source_risk") == pytest.approx(1.0)
    assert rank_correlation(entry.run, "target_bnm") is None


def test_long_runs_are_thinned(folders: Folders) -> None:
    run = folders.run(accuracies=[0.5] * 3000)
    charts = json.loads(shown(run).data)["charts"]
    rounds = charts["target-accuracy"][""]["data"][-1]["x"]
    assert len(rounds) == 400
    assert (rounds[0], rounds[-1]) == (1, 3000)


def test_many_methods_fit_on_a_page(folders: Folders) -> None:
    report = collect_runs([folders.comparison({f"setting {i}": [[0.5, 0.6]] for i in range(30)})])
    lines = Lines([method.label for method in report.methods], method_strokes(report))
    assert len(sections(report, lines)) == len(SECTIONS)


def test_papers_get_a_pdf_and_a_png(comparison: Path, tmp_path: Path) -> None:
    add_exhibits(comparison / "runs/0")
    report = collect_runs([comparison])
    assert write_pdf(report, tmp_path / "new" / "r.pdf").read_bytes().startswith(b"%PDF")
    assert write_png(report, tmp_path / "r.png").read_bytes().startswith(b"\x89PNG")
    assert (
        write_pdf(collect_runs([comparison]), tmp_path / "s.pdf").read_bytes() == (tmp_path / "new/r.pdf").read_bytes()
    )


# The command ----------------------------------------------------------------------------------------------------------


def test_the_command_writes_a_page_with_its_library(
    comparison: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    out = tmp_path / "page.html"
    assert ended(monkeypatch, "report", str(comparison), "--out", str(out)) == 0
    assert "3 runs" in capsys.readouterr().out
    content = out.read_text()
    assert "plotly.js v" in content
    assert 4e6 < len(content) < 6e6
    assert Page(content).headings == SECTIONS


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nowhere", "--out", "x.html"], "nowhere is not a folder"),
        ([".", "--out", "x.html"], ". holds no run"),
        (["run", "--out", "x.html", "--format", "docx"], "unknown format 'docx'"),
        (["run", "--out", "."], ". is a folder"),
        (["run", "--out", "x.jpg", "--format", "png"], "must end in .png"),
        (["run", "--out", "x.docx"], "--out x.docx must end in .html, .pdf, .png"),
        (["run", "--out", "x.docx", "--format", "html"], "--out x.docx must end in .html"),
    ],
)
def test_what_cannot_be_reported_is_told_in_a_sentence(
    arguments: list[str], words: str, folders: Folders, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    if arguments[0] == "run":
        folders.run()
    monkeypatch.chdir(folders.root)
    assert ended(monkeypatch, "report", *arguments) == 2
    told = capsys.readouterr().err
    assert words in told
    assert "Traceback" not in told


def test_without_plotly_the_extra_is_named(folders: Folders, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert ended(monkeypatch, "report", str(folders.run()), "--out", str(folders.root / "x.html")) == 2
    assert "pip install 'fedmm[report]'" in capsys.readouterr().err


def test_broken_files_are_named(folders: Folders) -> None:
    run = folders.run()
    (run / "exhibits.safetensors").write_bytes(b"torn")
    with pytest.raises(FedmmError, match="is not a readable safetensors file"):
        collect_runs([run])
    (run / "exhibits.safetensors").unlink()
    (run / "experiment.toml").write_text("[[[")
    with pytest.raises(FedmmError, match="not valid TOML"):
        collect_runs([run])


@pytest.mark.parametrize(
    "broken",
    [
        {"map_domain": np.zeros(3, np.uint8)},
        {"map_before": np.zeros((24, 3, 1), np.float32), "sample_label": np.zeros(2, np.int16)},
        {"confusion_target": np.zeros((2, 3), np.int32), "sample_class": np.zeros(5, np.int16)},
        {"map_before": np.full((24, 3), np.nan, np.float32), "map_after": np.zeros((24, 3), np.float32)},
    ],
)
def test_exhibits_that_do_not_fit_together_are_left_out(folders: Folders, broken: dict[str, Any]) -> None:
    run = folders.run()
    add_exhibits(run)
    save_file(load_file(run / "exhibits.safetensors") | broken, run / "exhibits.safetensors")
    assert shown(run).headings == SECTIONS


@pytest.mark.parametrize("rank", [0, 1, 3])
def test_features_of_any_rank_have_a_map(rank: int) -> None:
    draws = np.random.default_rng(0)
    features = draws.normal(size=(24, rank)) @ draws.normal(size=(rank, 6))
    points = _plane(features)
    assert points.shape == (24, 2)
    assert np.isfinite(points).all()


def test_validators_stand_for_accuracies_that_nobody_knows(folders: Folders) -> None:
    methods = {"FedMM": [(None, None)] * 2, "source only": [(None, None)] * 2}
    comparison = folders.comparison(methods)
    for number, run in enumerate(sorted((comparison / "runs").iterdir())):
        rewrite(run, target_information=[0.1, 0.25 + number / 100], source_risk=[1.0, 0.5])
    summary = json.loads((comparison / "summary.json").read_text())
    summary["evidence"] = {"verdicts": [{"label": "FedMM", "supported": False, "sentence": "nothing supports it"}]}
    (comparison / "summary.json").write_text(json.dumps(summary))
    found = shown(comparison)
    assert "0.255 (0.250 to 0.260)" in found.text
    assert "FedMM: nothing supports it." in found.text
    assert "take source only unless the evidence supports adapting" in found.text
    pictures = draw_comparison(comparison)
    assert pictures[0].stat().st_size > 1000
    printed = StringIO()
    Console(width=200, file=printed).print(validator_table(comparison_rows(read_comparison(comparison))))
    assert "target_information (higher is better)" in printed.getvalue()


@pytest.mark.parametrize(
    ("told", "words"),
    [
        ({"tested_rows_trained_on": 0}, "On test rows, which nothing was trained on."),
        (
            {"tested_rows_trained_on": 7},
            "On target rows of which some or all were trained on too, without their labels.",
        ),
        ({}, "On labelled test rows."),
    ],
)
def test_what_was_tested_on_is_said_truly(folders: Folders, told: dict[str, int], words: str) -> None:
    assert words in shown(folders.run(**told)).text


def test_what_a_run_said_of_adapting_is_repeated(folders: Folders) -> None:
    told = {"supported": None, "sentence": "this run cannot tell"}
    assert "FedMM, when it ended: this run cannot tell." in shown(folders.run(adaptation=told)).text


def test_a_run_that_said_nothing_of_adapting_cannot_tell(folders: Folders) -> None:
    expected = f"FedMM, when it ended: {ALONE}; `fedmm compare FILE.toml` judges; {tell_record(None)}."
    assert expected in shown(folders.run()).text
    for number, odd in enumerate(("yes", {"sentence": 3}, {})):
        assert expected in shown(folders.run(f"odd-{number}", adaptation=odd)).text


@pytest.mark.parametrize("section", ['objective]\nname = "source_only"', 'partition]\nname = "target_supervised"'])
def test_where_nothing_was_adapted_the_report_does_not_judge(folders: Folders, section: str) -> None:
    run = folders.run(objective="source_only" if "objective" in section else "dann")
    (run / "experiment.toml").write_text(f"[{section}\n")
    assert "whether adapting helped" not in shown(run).text


def test_verdicts_of_a_comparison_come_with_how_often_they_are_right(folders: Folders) -> None:
    comparison = folders.comparison({"FedMM": [(0.5, 0.6)], "source only": [(0.5, 0.6)]})
    record = tell_record(None)
    said = f"{record[0].upper()}{record[1:]}."
    assert said not in shown(comparison).text
    summary = json.loads((comparison / "summary.json").read_text())
    summary["evidence"] = {"verdicts": [{"label": "FedMM", "supported": False, "sentence": "nothing supports it"}]}
    (comparison / "summary.json").write_text(json.dumps(summary))
    found = shown(comparison).text
    assert said in found
    assert "when it ended" not in found


def test_label_shift_is_repeated_from_the_runs(folders: Folders) -> None:
    shift = {"notable": True, "sentence": "label shift: from source to target the share of 'ill' 45% to about 70%"}
    assert "As estimated with FedMM (1 of 1 runs), label shift" in shown(folders.run(label_shift=shift)).text
    quiet = folders.run("quiet", label_shift={"notable": False, "sentence": "no sign of label shift"})
    assert "label shift:" not in shown(quiet).text


def test_a_run_under_way_without_a_label_is_called_source_only(folders: Folders) -> None:
    run = folders.run()
    (run / "summary.json").unlink()
    (run / "experiment.toml").write_text('[objective]\nname = "source_only"\n[algorithm]\nname = "fedavg_gda"\n')
    found = shown(run)
    assert "source only" in found.text


def test_an_unfinished_run_without_a_target_is_called_by_its_algorithm(folders: Folders) -> None:
    run = folders.run(accuracies=(None, None))
    (run / "summary.json").unlink()
    (run / "experiment.toml").write_text(
        '[data]\nname = "table"\nlabelled_only = true\n[objective]\nname = "source_only"\n'
        '[algorithm]\nname = "fedavg_gda"\n'
    )
    report = collect_runs([run])
    assert not report.has_target
    assert report.methods[0].label == "fedavg_gda"


def test_a_sweep_ends_with_validators_and_the_rules_verdicts(folders: Folders, capsys: Any) -> None:
    comparison = folders.comparison({"FedMM": [(None, None)], "source only": [(None, None)]})
    for run in (comparison / "runs").iterdir():
        rewrite(run, target_information=[0.1, 0.25])
    verdict = {
        "label": "FedMM", "supported": False, "sentence": NOT_SUPPORTED, "source_only": "source only",
        "label_shift": {"sentence": "no sign of label shift"},
    }  # fmt: skip
    evidence = {"rule": RULE, "note": "", "verdicts": [verdict]}
    summary = json.loads((comparison / "summary.json").read_text()) | {"status": "completed", "evidence": evidence}
    summary["runs"] = [each | {"target_accuracy": None} for each in summary["runs"]]
    show_comparison(summary, comparison, judged=True)
    printed = " ".join(capsys.readouterr().out.split())
    assert "target (%)" not in printed
    assert "as estimated with source only: no sign of label shift" in printed
    assert f"FedMM: {NOT_SUPPORTED}" in printed
    assert f"the rule: {RULE}" in printed
