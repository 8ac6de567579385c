"""Sites count rows in finer bins where the first ones tell too little, and the server has the AUROC of one process."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from deploy.asking import entries
from deploy.grids import SitesGrid
from deploy.test_measuring import _counted, labelled_sites, rounds, told_of_sites
from deploy.test_serving import log, served
from sklearn.metrics import roc_auc_score

import fedmm
from fedmm.core.metrics import MOST_COUNTS
from fedmm.core.signals import ranking
from fedmm.deploy.server import keep_every_round, serve
from fedmm.sites.config import read_site
from fedmm.sites.experiments import deployed_experiment
from fedmm.sites.rows import site_rows


def test_sites_are_asked_again_where_the_first_bins_are_too_wide(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here they are scores below 0 and above, so that all rounds need finer ones."""
    monkeypatch.setattr(ranking, "_first_edges", lambda device: torch.tensor([-1, 0, 1]))
    tables, files = labelled_sites(tmp_path / "sites", 40)
    each = keep_every_round(deployed_experiment(tables))
    grid = SitesGrid(files)
    kinds = _counted(grid)
    serve(grid, served(tmp_path, each))
    found = rounds(tmp_path / "runs" / "one")
    own = [site_rows(read_site(file), each) for file in files]
    kept = [rows.validation for rows in own if rows.validation is not None]
    torch.set_num_threads(1)
    adapted = fedmm.adapt(
        [fedmm.Client(source=rows.source, name=file.stem) for rows, file in zip(own, files, strict=True)],
        each.model.build((30,), 2, each.run.seed),
        each.objective,
        each.algorithm,
        each.run.rounds,
        batch_size=16,
        seed=each.run.seed,
        dtype=torch.float64,
        source_validation=tuple(
            torch.cat([take(rows, torch.arange(len(rows))) for rows in kept])
            for take in (lambda rows, index: rows.take(index), lambda rows, index: rows.labels(index))
        ),
        progress=False,
    )
    for row, other in zip(found, adapted.history, strict=True):
        assert row["validation_auroc_error"] <= 1e-3
        assert row["validation_average_precision_error"] <= 1e-3
        for part in ranking.Ranking.parts:
            assert row[f"validation_{part}"] == pytest.approx(other[f"validation_{part}"], abs=1e-12), part
    asked = kinds.count("evaluate")
    assert 2 * 2 * len(found) <= asked <= 2 * MOST_COUNTS * len(found)
    for file in files:  # every one counts
        answers = entries(read_site(file), "answer")
        assert sum(entry["kind"] == "measure" for entry in answers) == asked // 2
    for name, told in told_of_sites(tmp_path).items():
        rows = kept[[file.stem for file in files].index(name)]
        index = torch.arange(len(rows))
        p = adapted.predict_proba(rows.take(index))
        exact = roc_auc_score(rows.labels(index), p[:, 1])
        assert told["validation_auroc"] == pytest.approx(exact, abs=told["validation_auroc_error"] + 1e-12)
        assert told["validation_auroc_error"] < 0.05
    assert " questions, " in log(tmp_path)
