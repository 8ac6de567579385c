"""Each site standardises its own rows, and nobody looks at a label."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor

from fedmm.config.schema import experiment
from fedmm.core.errors import FedmmError
from fedmm.data import Arrays, Digits
from fedmm.data.datasets.per_site import PerSite
from fedmm.data.domains import DomainPair, Labelled
from fedmm.data.splitting import sites_of
from fedmm.inference.evaluate import evaluate, rows_named
from fedmm.inference.export import export_model
from fedmm.inference.load_run import open_run
from fedmm.inference.predict import open_rows
from fedmm.runs.run import run_experiment
from fedmm.sites.experiments import deployed_experiment


@dataclass(frozen=True, eq=False)
class Given:
    """A pair that a test made."""

    name: ClassVar[str] = "given"
    summary: ClassVar[str] = "a test's own"

    pair: DomainPair

    def load(self) -> DomainPair:
        return self.pair


def rows(count: int, mean: float, deviation: float, shape: tuple[int, ...] = (3,), seed: int = 0) -> Labelled:
    drawn = torch.randn(count, *shape, generator=torch.Generator().manual_seed(seed))
    return Labelled(mean + deviation * drawn, torch.arange(count) % 2)


def pair_of(shape: tuple[int, ...] = (3,), **changes: Any) -> DomainPair:
    source, target = rows(60, 5.0, 2.0, shape), rows(40, -1.0, 0.5, shape, 1)
    return replace(
        DomainPair(source, target, rows(10, 5.0, 2.0, shape, 2), rows(12, -1.0, 0.5, shape, 3), ("a", "b")), **changes
    )


def assert_standard(x: Tensor, axes: tuple[int, ...] = (0,)) -> None:
    assert x.dtype == torch.float32
    assert x.mean(dim=axes).abs().max() < 1e-5
    assert (x.std(dim=axes, correction=0) - 1).abs().max() < 1e-5


def test_without_sites_each_domain_is_standardised_by_its_own_training_rows() -> None:
    given = pair_of()
    found = PerSite(Given(given)).load()
    assert_standard(found.source.x)
    assert_standard(found.target.x)
    mean, deviation = given.target.x.mean(dim=0), given.target.x.std(dim=0, correction=0)
    assert given.target_test is not None
    assert found.target_test is not None
    torch.testing.assert_close(found.target_test.x, (given.target_test.x - mean) / deviation)
    assert found.source.y is given.source.y


def test_each_site_goes_by_the_rows_of_both_domains_that_it_holds() -> None:
    here = ["a" if row % 2 else "b" for row in range(60)]
    found = PerSite(Given(pair_of(sites=sites_of(here, ["b"] * 40)))).load()
    held_by_a = torch.tensor([name == "a" for name in here])
    assert_standard(found.source.x[held_by_a])
    assert_standard(torch.cat([found.source.x[~held_by_a], found.target.x]))


def test_test_rows_go_by_their_site_and_those_of_an_unknown_site_by_their_domain() -> None:
    source = Labelled(torch.tensor([[0.0], [2.0], [10.0], [30.0]]), torch.tensor([0, 1, 0, 1]))
    test = Labelled(torch.tensor([[4.0], [40.0], [10.5]]), torch.tensor([0, 1, 0]))
    sites = sites_of(["a", "a", "b", "b"], ["c"] * 40, ["a", "b", "elsewhere"])
    found = PerSite(Given(pair_of((1,), source=source, source_test=test, sites=sites))).load()
    assert found.source_test.x.flatten().tolist() == pytest.approx([3.0, 2.0, 0.0], abs=1e-6)


def test_pictures_are_standardised_channel_by_channel_and_bytes_become_numbers() -> None:
    pair = pair_of((3, 4, 4))
    bright = Labelled((pair.source.x * 10 + 100).clamp(0, 255).to(torch.uint8), pair.source.y)
    found = PerSite(Given(replace(pair, source=bright))).load()
    assert_standard(found.source.x, (0, 2, 3))
    assert_standard(found.target.x, (0, 2, 3))


def test_a_number_that_is_always_the_same_is_only_centred() -> None:
    pair = pair_of()
    pair.source.x[:, 1] = 7.0
    found = PerSite(Given(pair)).load()
    assert found.source.x[:, 1].eq(0.0).all()
    assert found.source_test.x.isfinite().all()


def test_labels_of_the_target_change_nothing() -> None:
    pair = pair_of()
    other = replace(pair, target=Labelled(pair.target.x, 1 - pair.target.y))
    assert PerSite(Given(pair)).load().target.x.equal(PerSite(Given(other)).load().target.x)


def test_archives_say_who_holds_the_rows_that_are_held_out(tmp_path: Path) -> None:
    x = np.arange(40, dtype=np.float32)[:, None].repeat(2, axis=1)
    sites = np.array(["a", "b"])[np.arange(40) // 20]
    np.savez(tmp_path / "x.npz", source_x=x, source_y=np.arange(40) % 2, target_x=x, target_y=np.arange(40) % 2,
             source_site=sites, target_site=sites)  # fmt: skip
    pair = Arrays(file=str(tmp_path / "x.npz"), standardise=False, target_held_out=0.2).load()
    assert pair.sites is not None
    for part, held_by in ((pair.source_test, pair.sites.source_test), (pair.target_test, pair.sites.target_test)):
        assert part is not None
        assert held_by is not None
        assert held_by.tolist() == (part.x[:, 0] >= 20).long().tolist()


# In an experiment -----------------------------------------------------------------------------------------------------

TABLES: dict[str, dict[str, Any]] = {
    "run": {"rounds": 1, "batch_size": 16},
    "data": {"name": "digits", "standardise_per_site": True},
    "model": {"name": "mlp", "hidden": [8], "adversary_hidden": [4]},
    "algorithm": {"name": "fedavg_gda", "local_steps": 2},
}


def test_the_key_stands_beside_the_options_of_any_data_set() -> None:
    found = experiment(TABLES)
    assert found.data == PerSite(Digits())
    assert experiment(found.tables()) == found
    assert "standardise_per_site" not in experiment({**TABLES, "data": {"name": "digits"}}).tables()["data"]
    with pytest.raises(FedmmError, match=r"data\.standardise_per_site must be true or false, not 'yes'"):
        experiment({**TABLES, "data": {"name": "digits", "standardise_per_site": "yes"}})


def test_sites_elsewhere_refuse_it() -> None:
    with pytest.raises(FedmmError, match="let every site standardise its own rows"):
        deployed_experiment(TABLES)


def test_a_run_is_evaluated_on_standardised_rows_and_refuses_files(tmp_path: Path) -> None:
    summary = run_experiment(experiment(TABLES), tmp_path / "run", progress=False)
    run = open_run(tmp_path / "run")
    found = evaluate(run, "test", rows_named(run, "test"))
    assert found.scores.accuracy == pytest.approx(summary["target_accuracy"])
    np.save(tmp_path / "new.npy", np.zeros((2, 1, 8, 8), dtype=np.float32))
    with pytest.raises(FedmmError, match="which a file does not say"):
        open_rows(run, tmp_path / "new.npy")
    with pytest.raises(FedmmError, match="which a file does not say"):
        export_model(run, "safetensors", tmp_path / "model.safetensors")
    assert not (tmp_path / "model.safetensors").exists()
