"""Sites measure the server's model on rows of their own; the server has the validators of one process, from sums."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from deploy.grids import SitesGrid
from deploy.test_serving import TABLES, grid_of, log, served, site_files
from deploy.test_serving import small as small_in_float32
from flwr.app import Array, Message
from rounding import summing_backwards
from sklearn.metrics import roc_auc_score

import fedmm
from fedmm import FedmmError
from fedmm.config.dataclass_io import as_table
from fedmm.config.schema import Experiment
from fedmm.data.datasets.digits import Digits
from fedmm.data.datasets.unbalanced import Unbalanced
from fedmm.deploy import server as serving
from fedmm.deploy.server import keep_every_round, serve
from fedmm.remote.flower.engine import Patience
from fedmm.remote.packed import Packed
from fedmm.reporting.html import collect_runs
from fedmm.runs.run import run_experiment
from fedmm.sites.config import SiteConfig, read_site
from fedmm.sites.credentials.keys import make_node_key
from fedmm.sites.experiments import deployed_experiment, experiment_text
from fedmm.sites.rows import site_rows
from fedmm.sites.work import SiteWork

COLUMNS = ["target_information", "target_entropy", "target_bnm", "target_snd", "domain_accuracy", "proxy_a_distance"]
RISKS = ["source_risk", "dev_risk"]
Rows = list[dict[str, Any]]


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "Patience", lambda seconds: Patience(seconds, retry_after=0.0, pause=0.0))


def small(**sections: dict[str, Any]) -> Experiment:
    """In float64, so that sums which sites take in another order agree to its rounding."""
    return small_in_float32(**{**sections, "run": {"dtype": "float64", **sections.get("run", {})}})


def rounds(folder: Path) -> Rows:
    return [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]


def assert_same(found: Rows, expected: Rows, columns: list[str]) -> None:
    assert len(found) == len(expected)
    for row, other in zip(found, expected, strict=True):
        for column in columns:
            wanted = other[column]
            assert row[column] == (None if wanted is None else pytest.approx(wanted, rel=1e-9, abs=1e-12)), column


# The same numbers as in one process -----------------------------------------------------------------------------------


def test_digits_have_the_validators_of_one_process_in_the_rounds_that_are_evaluated(tmp_path: Path) -> None:
    each = small(run={"rounds": 5, "evaluate_every": 2, "best_by": "target_snd"})
    grid = grid_of(tmp_path, each)
    kinds = _counted(grid)
    serve(grid, served(tmp_path, each))
    summary = run_experiment(each, tmp_path / "reference", progress=False)
    found = rounds(tmp_path / "runs" / "one")
    assert_same(found, rounds(tmp_path / "reference"), COLUMNS)
    assert [row["target_information"] is None for row in found] == [True, False, True, False, False]
    assert kinds.count("evaluate") == 6
    assert kinds.count("train") == 10
    ours = json.loads((tmp_path / "runs" / "one" / "summary.json").read_text())
    assert ours["best"]["round"] == summary["best"]["round"]
    assert ours["best"]["value"] == pytest.approx(summary["best"]["value"], rel=1e-9)
    models = [
        (folder / "model-best.safetensors").read_bytes()
        for folder in (tmp_path / "runs" / "one", tmp_path / "reference")
    ]
    assert models[0] == models[1]
    assert "round 2: measured by source-1, target-1 in" in log(tmp_path)


def test_a_run_stops_early_by_what_its_sites_measured(tmp_path: Path) -> None:
    each = small(run={"rounds": 6, "stop_by": "target_snd", "patience": 1, "min_delta": 100.0})
    serve(grid_of(tmp_path, each), served(tmp_path, each))
    summary = run_experiment(each, tmp_path / "reference", progress=False)
    ours = json.loads((tmp_path / "runs" / "one" / "summary.json").read_text())
    assert ours["stopped_early"]["round"] == summary["stopped_early"]["round"] == 2


def test_several_sites_that_hold_both_domains_add_up(tmp_path: Path) -> None:
    weights = {"client_weights": {"client-1": 3.0}}
    each = small(run={"rounds": 2, **weights}, data={"test_rows": 1600}, partition={"name": "p_split", "p": 0.3})
    serve(grid_of(tmp_path, each, min_batch_size=2), served(tmp_path, each))
    with summing_backwards():
        run_experiment(each, tmp_path / "reference", progress=False)
    assert_same(rounds(tmp_path / "runs" / "one"), rounds(tmp_path / "reference"), COLUMNS)


def test_a_target_that_is_not_trained_on_is_measured_on(tmp_path: Path) -> None:
    each = small(run={"rounds": 2}, objective={"name": "source_only"}, algorithm={"name": "fedavg_gda"})
    serve(grid_of(tmp_path, each), served(tmp_path, each))
    with summing_backwards():
        run_experiment(each, tmp_path / "reference", progress=False)
    assert_same(rounds(tmp_path / "runs" / "one"), rounds(tmp_path / "reference"), COLUMNS[:4])


def held_back(folder: Path, **options: Any) -> tuple[Experiment, list[Path]]:
    """Digits at two source sites that keep 25 rows each from training, and at a target site; the server has none."""
    pair = Digits(test_rows=1500).load()
    x, y = pair.source.x.numpy(), pair.source.y.numpy()
    rows = {
        "north": {"source_x": x[:90], "source_y": y[:90]},
        "east": {"source_x": x[90:], "source_y": y[90:]},
        "south": {"target_x": pair.target.x.numpy()},
    }
    folder.mkdir()
    files = []
    for name, arrays in rows.items():
        np.savez(folder / f"{name}.npz", **arrays)
        domain, more = ("target", "") if name == "south" else ("source", "validation_rows = 25\n")
        file = folder / f"{name}.toml"
        file.write_text(
            f'[site]\nname = "{name}"\nstate = "state/{name}"\n'
            f'[data]\nkind = "npz"\npath = "{name}.npz"\ndomain = "{domain}"\n{more}'
            '[superlink]\naddress = "127.0.0.1:1"\ninsecure = true\n'
        )
        files.append(file)
    data = {"name": "sites", "sites": list(rows), "classes": [f"{n}" for n in range(10)], "shape": list(x.shape[1:])}
    tables = {**{section: TABLES[section] for section in ("model", "algorithm")}, "data": data}
    return keep_every_round(
        deployed_experiment({**tables, "run": {**TABLES["run"], "rounds": 3, "dtype": "float64", **options}})
    ), files


def test_source_rows_that_sites_hold_back_tell_the_risks(tmp_path: Path) -> None:
    each, files = held_back(tmp_path / "sites", best_by="dev_risk")
    serve(SitesGrid(files), served(tmp_path, each))
    own = {file.stem: site_rows(read_site(file), each) for file in files}
    clients, aside = [], []
    for name, rows in own.items():
        source = None
        if rows.source is not None:
            kept = rows.validation
            assert kept is not None
            everything = [
                row.tobytes() for part in (rows.source, kept) for row in part.take(torch.arange(len(part))).numpy()
            ]
            assert len(kept) == 25
            assert len(rows.source) + 25 == len(np.load(tmp_path / "sites" / f"{name}.npz")["source_x"])
            assert sorted(everything) == sorted(
                row.tobytes() for row in np.load(tmp_path / "sites" / f"{name}.npz")["source_x"]
            )
            aside.append((name, kept))
            source = rows.source
        clients.append(fedmm.Client(source=source, target=rows.target, name=name))
    x, y = (
        torch.cat([take(kept, torch.arange(25)) for _, kept in aside])
        for take in (lambda r, i: r.take(i), lambda r, i: r.labels(i))
    )
    torch.set_num_threads(1)
    adapted = fedmm.adapt(
        clients,
        each.model.build(tuple(x.shape[1:]), 10, 0),
        each.objective,
        each.algorithm,
        3,
        batch_size=16,
        dtype=torch.float64,
        source_validation=(x, y),
        best_by="dev_risk",
        progress=False,
    )
    assert_same(rounds(tmp_path / "runs" / "one"), list(adapted.history), [*RISKS, *COLUMNS])
    summary = json.loads((tmp_path / "runs" / "one" / "summary.json").read_text())
    assert adapted.best is not None
    assert summary["best"]["round"] == adapted.best.round


def labelled_sites(folder: Path, kept: int) -> tuple[dict[str, Any], list[Path]]:
    """Two sites with labelled rows that the server has not seen, each of which keeps some from training.

    kept: by the first; the other keeps 10 more.
    """
    pair, domains = Unbalanced().load(), {"east": "source", "west": "source"}
    folder.mkdir()
    files = []
    for place, name in enumerate(domains):
        own = {"source_x": pair.source.x[place::2].numpy(), "source_y": pair.source.y[place::2].numpy()}
        np.savez(folder / f"{name}.npz", **own)
        file = folder / f"{name}.toml"
        file.write_text(
            f'[site]\nname = "{name}"\nstate = "state/{name}"\n[data]\nkind = "npz"\npath = "{name}.npz"\n'
            f'domain = "source"\nvalidation_rows = {kept and kept + 10 * place}\n'
            f'[superlink]\naddress = "127.0.0.1:1"\ninsecure = true\n[policy]\nmin_rows = 5\n'
        )
        files.append(file)
    data = {"name": "sites", "sites": [*domains], "domains": domains, "classes": ["benign", "malignant"], "shape": [30]}
    return {
        "run": {"rounds": 4, "batch_size": 16, "threads": 1, "seed": 3, "dtype": "float64", "keep_rows": False},
        "data": data,
        "model": {"name": "mlp", "hidden": [3]},
        "objective": {"name": "auc"},
        "algorithm": {"name": "fedmm", "local_steps": 2, "lr_min": 0.05, "lr_max": 0.05},
    }, files


def test_the_worst_off_site_is_known_by_the_rows_that_sites_keep(tmp_path: Path) -> None:
    tables, files = labelled_sites(tmp_path / "sites", 30)
    tables |= {"objective": {"name": "worst_site"}, "algorithm": {"name": "fedmm_agnostic", "local_steps": 2}}
    each = keep_every_round(deployed_experiment(tables))
    serve(SitesGrid(files), served(tmp_path, each))
    folder = tmp_path / "runs" / "one"
    model = fedmm.load_model(folder / "model.safetensors", each.model.build((30,), 2, each.run.seed))
    told = told_of_sites(tmp_path)
    for file, count in zip(files, (30, 40), strict=True):
        kept = site_rows(read_site(file), each).validation
        assert kept is not None
        index = torch.arange(count)
        labels, p = kept.labels(index), model.predict_proba(kept.take(index))
        hits = int((p.argmax(dim=1) == labels).sum())
        auroc, error = (told[file.stem].pop(f"validation_{what}") for what in ("auroc", "auroc_error"))
        assert auroc == pytest.approx(roc_auc_score(labels, p[:, 1]), abs=error + 1e-12)
        positive = int(labels.sum())
        counts = {"validation_rows": count, "validation_hits": hits, "validation_positive": positive}
        assert told[file.stem] == {"holds": "source", **counts}
    shares = [own["validation_hits"] / own["validation_rows"] for own in told.values()]
    assert rounds(folder)[-1]["validation_worst_accuracy"] == min(shares)
    shown = collect_runs([folder]).methods[0].first.sites["validation"]
    assert shown.groups[0].accuracy == min(shares)
    assert shown.mean_auc is not None
    told = told_of_sites(tmp_path)
    serve(SitesGrid(files), served(tmp_path, each, resume=True))  # nothing is left to do, and nothing is lost
    assert told_of_sites(tmp_path) == told


def test_a_site_with_few_rows_of_a_class_has_no_auroc(tmp_path: Path) -> None:
    tables, (east, west) = labelled_sites(tmp_path / "sites", 40)
    each = keep_every_round(deployed_experiment(tables))
    kept = site_rows(read_site(west), each).validation
    assert kept is not None
    positive = int(kept.labels(torch.arange(50)).sum())
    west.write_text(west.read_text().replace("min_rows = 5", f"min_rows = {positive + 1}"))
    serve(SitesGrid([east, west]), served(tmp_path, each))
    told = told_of_sites(tmp_path)
    assert told["west"].keys() == {"holds", "validation_rows", "validation_hits"}
    assert 0 <= told["east"]["validation_auroc"] <= 1


def told_of_sites(folder: Path) -> dict[str, Any]:
    clients: dict[str, Any] = json.loads((folder / "runs" / "one" / "summary.json").read_text())["clients"]
    return clients


def test_of_a_site_with_few_rows_nothing_is_told(tmp_path: Path) -> None:
    tables, (east, west) = labelled_sites(tmp_path / "sites", 30)
    east.write_text(east.read_text().replace("min_rows = 5", "min_rows = 25"))
    each = keep_every_round(deployed_experiment({**tables, "run": {**tables["run"], "probe_rows": 20}}))
    serve(SitesGrid([east, west]), served(tmp_path, each))
    told = told_of_sites(tmp_path)
    assert told["east"] == {"holds": "source"}
    assert told["west"]["validation_rows"] == 20


def test_unless_all_sites_measured_the_last_model_nothing_is_told_of_any(tmp_path: Path) -> None:
    tables, files = labelled_sites(tmp_path / "sites", 30)
    grid = SitesGrid(files)
    grid.on_reply = spoiled("west", lambda reply, number: _sums(reply, lambda sums: sums * np.nan))
    serve(grid, served(tmp_path, keep_every_round(deployed_experiment(tables))))
    assert told_of_sites(tmp_path) == {"east": {"holds": "source"}, "west": {"holds": "source"}}


def test_with_masked_sums_nothing_is_told_of_single_sites(tmp_path: Path) -> None:
    tables, files = labelled_sites(tmp_path / "sites", 30)
    for file, other in zip(files, reversed(files), strict=True):
        make_node_key(file.parent / "keys" / file.stem)
        peers = file.parent / "peers" / other.stem
        peers.mkdir(parents=True)
        (peers / f"{file.stem}.pub").write_bytes((file.parent / "keys" / f"{file.stem}.pub").read_bytes())
        text = file.read_text().replace("insecure = true", f'insecure = true\nkey = "keys/{file.stem}"')
        file.write_text(f'{text}[masks]\npeers = "peers/{file.stem}"\nleast = 2\n')
    each = keep_every_round(deployed_experiment({**tables, "run": {**tables["run"], "secure_sum": True}}))
    serve(SitesGrid(files), served(tmp_path, each))
    assert rounds(tmp_path / "runs" / "one")[-1]["validation_accuracy"] is not None
    assert told_of_sites(tmp_path) == {"east": {"holds": "source"}, "west": {"holds": "source"}}


# What goes wrong ------------------------------------------------------------------------------------------------------


def _counted(grid: SitesGrid) -> list[str]:
    kinds: list[str] = []

    def count(name: str, reply: Message) -> Message:
        kinds.append(reply.metadata.message_type)
        return reply

    grid.on_reply = count
    return kinds


def spoiled(name: str, change: Callable[[Message, int], None]) -> Callable[[str, Message], Message]:
    """Changes a site's answers to the second question on."""
    asked = iter(range(100))

    def spoil(site: str, reply: Message) -> Message:
        if site == name and reply.metadata.message_type == "evaluate":
            number = next(asked)
            if number:
                change(reply, number)
        return reply

    return spoil


def _sums(reply: Message, change: Callable[[np.ndarray[Any, Any]], Any]) -> None:
    arrays = reply.content["arrays"]
    arrays["sums"] = Array(change(arrays["sums"].numpy().copy()))


def test_a_malformed_answer_is_refused_with_a_reason_and_the_run_goes_on(tmp_path: Path) -> None:
    each = small(run={"rounds": 8})
    grid = grid_of(tmp_path, each)

    def put(place: int, value: float) -> Callable[[Any], Any]:
        def change(sums: Any) -> Any:
            sums[place] = value
            return sums

        return change

    changes: list[Callable[[Message], None]] = [
        lambda reply: _sums(reply, put(3, np.nan)),
        lambda reply: _sums(reply, lambda sums: sums[:-1]),
        lambda reply: _sums(reply, put(0, 1e9)),
        lambda reply: _sums(reply, put(1, -3.0)),
        lambda reply: reply.content["config"].update(client="source-1"),
        lambda reply: reply.content["config"].update(round=1),
        lambda reply: reply.content["arrays"].update(more=Array(np.zeros(2))),
    ]
    grid.on_reply = spoiled("target-1", lambda reply, number: changes[number - 1](reply))
    serve(grid, served(tmp_path, each))
    found = rounds(tmp_path / "runs" / "one")
    assert [row["clients"] for row in found] == [2] * 8
    assert [row["target_entropy"] is None for row in found] == [False] + [True] * 7
    assert [row["domain_accuracy"] is None for row in found] == [False] + [True] * 7
    said = [line for line in log(tmp_path).splitlines() if "what target-1 measured is not counted" in line]
    for line, words in zip(
        said,
        ["its sums are not all finite", "its sums are float64 of shape (", "over 1e+09 rows, where a whole number",
         "the predictions are not probabilities", "in the name of 'source-1'", "it answers for round 1, not 7",
         "where 'sums' and 'places' are taken"],
        strict=True,
    ):  # fmt: skip
        assert words in line


def test_a_site_that_does_not_answer_leaves_its_measures_out(tmp_path: Path) -> None:
    each, files = held_back(tmp_path / "sites")
    grid = SitesGrid(files)
    grid.silent = {"east"}
    serve(grid, served(tmp_path, each, patience=0.5))
    found = rounds(tmp_path / "runs" / "one")
    assert all(row["source_risk"] is None and row["domain_accuracy"] is None for row in found)
    assert all(row["target_information"] is not None for row in found)
    assert "what east measured is not counted: it did not answer within 0.5 seconds" in log(tmp_path)
    assert "too few rows for source_risk, dev_risk, source_hits" in log(tmp_path)


def test_a_site_with_few_rows_sends_zeros_and_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    each = small(run={"rounds": 1, "best_by": "target_snd"})
    serve(grid_of(tmp_path, each, min_rows=260), served(tmp_path, each))
    (row,) = rounds(tmp_path / "runs" / "one")
    assert all(row[column] is None for column in ("target_snd", "domain_accuracy"))
    said = capsys.readouterr().err
    assert "leaves sums for source_hits (zeros: too few rows)" in said
    assert "target_snd (zeros: too few rows)" in said
    assert "too few rows for" in log(tmp_path)
    assert "no model is kept as the best: target_snd could not be measured in any round" in log(tmp_path)


def test_the_sites_log_names_what_leaves(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    each = small(run={"rounds": 1})
    serve(grid_of(tmp_path, each), served(tmp_path, each))
    said = capsys.readouterr().err
    assert " target-1: round 1: leaves sums for target_information (11 over 297 rows), target_entropy (1" in said
    assert " source-1: round 1: leaves sums for source_hits (1 over 250 rows)" in said
    assert "target_snd (2 over 200 rows)" in said
    assert " target-1: measure: leaves sums [120] float64 960 bytes; values client = 'target-1', round = 1\n" in said


def test_an_answer_to_what_is_measured_holds_no_more_than_the_log_says(tmp_path: Path) -> None:
    each = small(run={"rounds": 1})
    grid = grid_of(tmp_path, each)
    left: list[set[str]] = []

    def look(site: str, reply: Message) -> Message:
        if reply.metadata.message_type == "evaluate":
            left.append(set(reply.content["config"]))
        return reply

    grid.on_reply = look
    serve(grid, served(tmp_path, each))
    assert left == [{"client", "round"}] * 2


@pytest.mark.parametrize(
    "sections",
    [{"run": {"probe_rows": 0}}, {"transmission": {"name": "gaussian"}, "model": {"centre": "none"}}],
    ids=["not asked for", "noise in the updates"],
)
def test_sites_are_not_asked_where_nothing_is_to_be_told(tmp_path: Path, sections: dict[str, Any]) -> None:
    if "transmission" in sections:
        pytest.importorskip("dp_accounting", reason="noise in updates needs fedmm[privacy]")
    each = small(**{**sections, "run": {"rounds": 1, **sections.get("run", {})}})
    grid = grid_of(tmp_path, each)
    kinds = _counted(grid)
    serve(grid, served(tmp_path, each))
    assert "evaluate" not in kinds
    work = SiteWork(read_site(site_files(tmp_path / "sites", each)[0]))
    plan = {
        "alpha": 1.0,
        "input_mean": 0.0,
        "clients": ["source-1"],
        "listed": ["source-1"],
        "algorithm": as_table(each.algorithm),
    }
    about = {
        "run": "one",
        "experiment": experiment_text(each),
        "plan": json.dumps(plan),
        "columns": "source_hits",
        "round": 1,
    }
    with pytest.raises(FedmmError, match="nothing is measured at this site"):
        work("measure", Packed({}, about, {}))


def test_rows_are_held_back_where_that_makes_sense(tmp_path: Path) -> None:
    each, files = held_back(tmp_path / "sites")
    config = read_site(files[0])

    def with_rows(count: int, **more: Any) -> SiteConfig:
        return replace(config, data=replace(config.data, validation_rows=count, **more))

    with pytest.raises(FedmmError, match=r"validation_rows must be 0 or at least policy.min_rows \(20\), not 5"):
        with_rows(5)
    with pytest.raises(FedmmError, match="the experiment's data set says which rows are set aside"):
        with_rows(30, kind="share")
    with pytest.raises(FedmmError, match="validation_rows must be below 90, the site's labelled rows, not 90"):
        site_rows(with_rows(90), each)
