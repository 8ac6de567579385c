"""What a deployment reports of noise in the updates, and what it refuses before any site has worked."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fedmm import FedmmError
from fedmm.config.schema import Experiment, experiment
from fedmm.deploy.server import standing_in
from fedmm.runs.build import DataCache, prepare
from fedmm.sites.site_info import SiteInfo
from fedmm.training.adaptation import Adaptation

pytest.importorskip("dp_accounting", reason="noise in updates needs fedmm[privacy]")


def trusting(algorithm: str) -> Experiment:
    tables: dict[str, dict[str, Any]] = {
        "run": {"rounds": 4, "probe_rows": 0, "participation": 0.1},
        "data": {"name": "moons", "rows": 60, "test_rows": 10},
        "partition": {"name": "source_target", "source_clients": 15, "target_clients": 15},
        "model": {"name": "mlp", "hidden": [4], "adversary_hidden": [4], "centre": "none"},
        "algorithm": {"name": algorithm},
        "transmission": {"name": "gaussian", "trust": "server"},
    }
    return experiment(tables)


def at_the_server(each: Experiment) -> Adaptation:
    names = [f"{kind}-{number:02d}" for kind in ("source", "target") for number in range(1, 16)]
    infos = {
        name: SiteInfo(name.startswith("source"), name.startswith("target"), (2,), False, 0.0, 0, False, (0, 0))
        for name in names
    }
    return standing_in(each, names, infos, DataCache())


def test_sites_know_who_takes_part_so_that_a_secret_sample_is_not_counted_on() -> None:
    each = trusting("fedavg_gda")
    deployed, simulated = at_the_server(each).account, prepare(each, DataCache()).account
    assert deployed is not None
    assert simulated is not None
    assert not deployed.secret_sample
    assert deployed == replace(simulated, clients=deployed.clients, secret_sample=False)
    assert simulated.secret_sample


def test_a_server_that_is_trusted_with_duals_is_refused() -> None:
    with pytest.raises(FedmmError, match="those of fedmm_smoothed keep 'centre' and 'dual'"):
        at_the_server(trusting("fedmm_smoothed"))
