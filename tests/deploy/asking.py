"""Questions as a server asks them of a site, for tests that ask them again in other ways."""

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
    """The site of these tests, with a policy of its own."""
    return read_site(next(file for file in site_files(folder, each, **policy) if file.stem == SITE))


def introduction(each: Experiment, run: str = "one") -> Packed:
    """The first question of a run."""
    return Packed({}, {"run": run, "experiment": experiment_text(each)}, {})


def questions(folder: Path, each: Experiment) -> dict[str, Packed]:
    """The last question of each kind that an honest server asks the site in a run of this experiment."""
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
    """A question with other values."""
    return question._replace(about={**question.about, **about})


def replanned(question: Packed, **algorithm: Any) -> Packed:
    """A question whose plan has another algorithm."""
    plan = json.loads(str(question.about["plan"]))
    return changed(question, plan=json.dumps({**plan, "algorithm": {**plan["algorithm"], **algorithm}}))


def refusal(config: SiteConfig, kind: str, question: Packed) -> str:
    """What a site says to a question that it refuses; the same sentence must be in its audit log."""
    with pytest.raises(FedmmError) as refused:
        SiteWork(config)(kind, question)
    last = entries(config)[-1]
    assert (last["event"], last["sentence"]) == ("refusal", str(refused.value))
    return str(refused.value)


def refused_at_once(config: SiteConfig, each: Experiment) -> str:
    """What a site says when it is asked who it is."""
    return refusal(config, INTRODUCE, introduction(each))


def entries(config: SiteConfig, event: str = "") -> list[dict[str, Any]]:
    """What the site's audit log holds."""
    found = [json.loads(line) for line in config.audit.read_text().splitlines()]
    return [entry for entry in found if event in ("", entry["event"])]
