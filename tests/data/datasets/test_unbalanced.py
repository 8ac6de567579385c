from __future__ import annotations

from pathlib import Path

import pytest
import torch
from fabricated import mnist_files, source, write
from sklearn.datasets import load_breast_cancer

from fedmm.core.errors import FedmmError
from fedmm.data.datasets.unbalanced import Unbalanced
from fedmm.data.sources import sources


def positives(y: torch.Tensor) -> int:
    return int((y == 1).sum())


def test_breast_cancer_has_all_its_patients_and_the_ill_are_the_second_class() -> None:
    pair = Unbalanced(test_share=0.3, validation_share=0.1).load()
    assert pair.class_names == ("benign", "malignant")
    assert pair.source_validation is not None
    parts = (pair.source, pair.source_validation, pair.source_test)
    assert sum(len(part.y) for part in parts) == 569
    assert sum(positives(part.y) for part in parts) == int((load_breast_cancer().target == 0).sum()) == 212
    assert pair.source.x.mean(dim=0).abs().max() < 1e-5
    assert pair.source.x.std(dim=0) == pytest.approx(torch.ones(30), abs=1e-5)
    assert len(pair.target.y) == 0
    assert pair.target_test is None


@pytest.mark.parametrize("ratio", [10.0, 100.0])
@pytest.mark.parametrize("base", ["breast_cancer", "digits"])
def test_the_second_class_is_thinned_out_but_for_the_test(base: str, ratio: float) -> None:
    whole, thin = Unbalanced(base).load(), Unbalanced(base, ratio).load()  # type: ignore[arg-type]
    negatives = len(thin.source.y) - positives(thin.source.y)
    assert negatives == len(whole.source.y) - positives(whole.source.y)
    assert positives(thin.source.y) == max(1, round(negatives / ratio))
    assert torch.equal(thin.source_test.y, whole.source_test.y)
    kept = {tuple(row.tolist()) for row in thin.source_test.x.flatten(1)} if base == "digits" else set()
    assert not kept & {tuple(row.tolist()) for row in thin.source.x.flatten(1)}


def test_the_seed_says_which_rows_are_where() -> None:
    one, same, other = (Unbalanced("digits", 10.0, seed=seed).load() for seed in (1, 1, 2))
    assert torch.equal(one.source.x, same.source.x)
    assert not torch.equal(one.source_test.x, other.source_test.x)


def test_mnist_has_its_own_test_digits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = mnist_files()
    monkeypatch.setitem(sources(), "mnist", source("mnist", files))
    write(tmp_path / "mnist", files)
    monkeypatch.setenv("FEDMM_DATA", str(tmp_path))
    pair = Unbalanced("mnist").load()
    assert pair.source_validation is not None
    assert [len(part.y) for part in (pair.source, pair.source_validation, pair.source_test)] == [40, 5000, 30]
    assert pair.source.x.shape[1:] == (1, 28, 28)
    assert pair.source.x.dtype == torch.uint8


def test_more_of_the_rare_class_than_there_are_is_refused() -> None:
    with pytest.raises(FedmmError, match=r"must be 0 or at least 1\.69, as breast_cancer is, not 1"):
        Unbalanced(negatives_per_positive=1.0).load()
    with pytest.raises(FedmmError, match="test_share and validation_share must leave rows"):
        Unbalanced(test_share=0.6, validation_share=0.4)
