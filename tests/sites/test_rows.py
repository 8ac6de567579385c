"""A site's rows: read once, mapped into memory from the site's own copy, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from fedmm import FedmmError
from fedmm.config.schema import Experiment
from fedmm.data.datasets.digits import Digits
from fedmm.deploy.local import local_sites
from fedmm.sites.config import DataSection, SiteConfig, SiteSection, SuperLinkSection
from fedmm.sites.experiments import deployed_experiment
from fedmm.sites.rows import site_rows

RANDOM = np.random.default_rng(0)
X, Y, T = RANDOM.random((20, 4), np.float32), np.arange(20) % 3, RANDOM.random((10, 4), np.float32)


def site(tmp_path: Path, name: str = "a", **data: Any) -> SiteConfig:
    return SiteConfig(
        tmp_path / "site.toml",
        SiteSection(name, "state"),
        DataSection(**data),
        SuperLinkSection("127.0.0.1:1", insecure=True),
    )


def elsewhere(**more: Any) -> Experiment:
    data = {"name": "sites", "sites": ["a"], "classes": ["cat", "dog", "eel"], "shape": [4], **more}
    return deployed_experiment({"data": data, "model": {"name": "mlp"}})


def npz(tmp_path: Path, **arrays: Any) -> dict[str, Any]:
    np.savez(tmp_path / "rows.npz", **arrays)
    return {"kind": "npz", "path": "rows.npz"}


def test_arrays_of_a_file_become_rows(tmp_path: Path) -> None:
    config = site(tmp_path, **npz(tmp_path, source_x=X, source_y=Y, target_x=T), domain="both", labels=(0, 1, 2))
    rows = site_rows(config, elsewhere())
    assert rows.source is not None
    assert rows.target is not None
    assert torch.equal(rows.source.x, torch.from_numpy(X))
    assert torch.equal(rows.source.labels(torch.arange(20)), torch.from_numpy(Y))
    assert torch.equal(rows.target.x, torch.from_numpy(T))
    assert (rows.labels, rows.classes) == ([0, 1, 2], 3)


def test_a_file_that_changed_is_read_again(tmp_path: Path) -> None:
    config = site(tmp_path, **npz(tmp_path, target_x=T), domain="target")
    first = site_rows(config, elsewhere()).target
    npz(tmp_path, target_x=2 * T[:7])
    second = site_rows(config, elsewhere()).target
    assert first is not None
    assert second is not None
    assert (len(first), len(second)) == (10, 7)
    assert torch.equal(second.x, torch.from_numpy(2 * T[:7]))


def test_a_share_is_dealt_once_and_mapped_ever_after(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    each = deployed_experiment({"data": {"name": "digits", "test_rows": 1500}, "model": {"name": "mlp"}})
    (source, _) = local_sites(each)
    data = {**source.data, "labels": tuple(source.data["labels"])}
    first = site_rows(site(tmp_path, "source-1", **data), each)
    monkeypatch.setattr(Digits, "load", lambda self: pytest.fail("the data set is loaded again"))
    again = site_rows(site(tmp_path, "source-1", **data), each)
    assert first.source is not None
    assert again.source is not None
    assert torch.equal(first.source.x, again.source.x)
    maps = Path("/proc/self/maps")
    if maps.exists():
        assert "source_x.npy" in maps.read_text()


@pytest.mark.parametrize("domain", ["source", "target"])
def test_folders_of_pictures_are_rows(tmp_path: Path, domain: str) -> None:
    for name, number in (("dog", 2), ("cat", 1)):
        (tmp_path / "pictures" / name).mkdir(parents=True)
        for each in range(number):
            Image.new("RGB", (9, 7), (10 * each, 0, 200)).save(tmp_path / "pictures" / name / f"{each}.png")
    config = site(tmp_path, kind="images", path="pictures", domain=domain, stored_size=6)
    rows = site_rows(config, elsewhere(shape=[3, 6, 6], bytes=True, image_size=4))
    held = rows.source if domain == "source" else rows.target
    assert held is not None
    assert (tuple(held.x.shape), held.x.dtype) == ((3, 3, 6, 6), torch.uint8)
    assert rows.view.shape((3, 6, 6)) == (3, 4, 4)
    assert rows.labels == ([0, 1] if domain == "source" else [])


@pytest.mark.parametrize(
    ("arrays", "options", "words"),
    [
        ({"source_x": X}, {"domain": "source"}, "lacks the array 'source_y', which domain = 'source' needs"),
        ({"source_x": X, "source_y": Y + 1}, {"domain": "source"}, "source holds label 3, but there are 3 classes"),
        ({"source_x": X, "source_y": Y}, {"domain": "source", "labels": (0, 1)}, "does not list the label 2"),
        (
            {"target_x": T[:, :3]},
            {"domain": "target"},
            r"rows of shape \[3\]; the experiment has numbers of shape \[4\]",
        ),
        (
            {"target_x": T.astype(np.uint8)},
            {"domain": "target"},
            r"uint8 rows of shape \[4\]; the experiment has numbers",
        ),
        ({"target_x": np.full((2, 4), np.nan, np.float32)}, {"domain": "target"}, "NaN or infinite"),
    ],
)
def test_what_cannot_be_trained_on_is_refused(
    tmp_path: Path, arrays: dict[str, Any], options: dict[str, Any], words: str
) -> None:
    with pytest.raises(FedmmError, match=words):
        site_rows(site(tmp_path, **npz(tmp_path, **arrays), **options), elsewhere())


def test_a_file_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "rows.npz").write_text("no arrays")
    config = site(tmp_path, kind="npz", path="rows.npz", domain="target")
    with pytest.raises(FedmmError, match="cannot be read as an npz file of arrays"):
        site_rows(config, elsewhere())
    with pytest.raises(FedmmError, match=r"data\.path .* cannot be read"):
        site_rows(site(tmp_path, kind="npz", path="nowhere.npz", domain="target"), elsewhere())
    with pytest.raises(FedmmError, match="needs an experiment with a built-in data set"):
        site_rows(site(tmp_path), elsewhere())
    each = deployed_experiment({"data": {"name": "moons"}, "model": {"name": "mlp"}})
    with pytest.raises(
        FedmmError, match=r"site\.name 'a' has no share; the partition has shares of source-1, target-1"
    ):
        site_rows(site(tmp_path), each)


def test_another_hospital_in_the_experiment_copies_nobodys_rows_again(tmp_path: Path) -> None:
    config = site(tmp_path, **npz(tmp_path, target_x=T), domain="target")
    site_rows(config, elsewhere())
    more = {"sites": ["a", "b"], "domains": {"a": "target", "b": "source"}}
    site_rows(config, elsewhere(**more))
    assert len(list((tmp_path / "state" / "rows").iterdir())) == 1
    site_rows(config, elsewhere(classes=["cat", "dog", "eel", "fox"]))
    assert len(list((tmp_path / "state" / "rows").iterdir())) == 2


def test_pictures_of_another_size_in_training_are_cut_from_the_same_copy(tmp_path: Path) -> None:
    squares = RANDOM.integers(0, 255, (5, 3, 8, 8), np.uint8)
    config = site(tmp_path, **npz(tmp_path, target_x=squares), domain="target")
    sizes = [
        site_rows(config, elsewhere(shape=[3, 8, 8], bytes=True, image_size=size)).view.shape((3, 8, 8))
        for size in (6, 4, 0)
    ]
    assert sizes == [(3, 6, 6), (3, 4, 4), (3, 8, 8)]
    assert len(list((tmp_path / "state" / "rows").iterdir())) == 1
