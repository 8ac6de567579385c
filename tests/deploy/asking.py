"""Questions as a server asks a site, for tests that modify and repeat them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from deploy.test_serving import grid_of, served, site_files

from fedmm import FedmmError
from fedmm.config.schema import Experiment
from fedmm.deploy.server import serve
from fedmm.remote.packed import INTRODUCE, Packed
from fedmm.sites.config import SiteConfig, read_site
from fedmm.sites.experiments import experiment_text
from fedmm.sites.work import SiteWork

SITE = "source-1"


def site(folder: Path, each: Experiment, **policy: Any) -> SiteConfig:
    """Return the site of these tests, with the given policy."""
    return read_site(next(file for file in site_files(folder, each, **policy) if file.stem == SITE))


def introduction(each: Experiment, run: str = "one") -> Packed:
    """Return the first question of a run."""
    return Packed({}, {"run": run, "experiment": experiment_text(each)}, {})


def questions(folder: Path, each: Experiment) -> dict[str, Packed]:
    """Return the last question of each kind that an honest server asks the site in a run of this experiment."""
    found: dict[str, Packed] = {}
    usual = SiteWork.__call__

    def listen(work: SiteWork, kind: str, question: Packed) -> Packed:
        if work._config.site.name == SITE:
            found[kind] = question
        return usual(work, kind, question)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SiteWork, "__call__", listen)
        serve(grid_of(folder, each, min_batch_size=1, min_local_steps=1, min_rows=1), served(folder, each))
    return found


def changed(question: Packed, **about: Any) -> Packed:
    """Return a question with other values."""
    return question._replace(about={**question.about, **about})


def replanned(question: Packed, **algorithm: Any) -> Packed:
    """Return a question whose plan has other options of the algorithm."""
    plan = json.loads(str(question.about["plan"]))
    return changed(question, plan=json.dumps({**plan, "algorithm": {**plan["algorithm"], **algorithm}}))


def refusal(config: SiteConfig, kind: str, question: Packed) -> str:
    """Return why the site refuses a question; its audit log must contain the same sentence."""
    with pytest.raises(FedmmError) as refused:
        SiteWork(config)(kind, question)
    last = entries(config)[-1]
    assert (last["event"], last["sentence"]) == ("refusal", str(refused.value))
    return str(refused.value)


def refused_at_once(config: SiteConfig, each: Experiment) -> str:
    """Return why the site refuses to introduce itself."""
    return refusal(config, INTRODUCE, introduction(each))


def entries(config: SiteConfig, event: str = "") -> list[dict[str, Any]]:
    """Return the entries of the site's audit log, of one event or of all."""
    found = [json.loads(line) for line in config.audit.read_text().splitlines()]
    return [entry for entry in found if event in ("", entry["event"])]
