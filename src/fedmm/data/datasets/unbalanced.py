"""Two classes, one of them rare, at sites with labels: there is no domain shift, and so no target."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

import torch
from torch import Tensor

from fedmm.core.errors import require
from fedmm.core.seeding import key, permutation
from fedmm.core.validation import at_least, not_negative, one_of, within
from fedmm.data.datasets.mnist_m import VALIDATION_ROWS, read_mnist
from fedmm.data.domains import DomainPair, Labelled
from fedmm.data.sources import sources

Base = Literal["breast_cancer", "digits", "mnist"]
_CLASSES = {
    "breast_cancer": ("benign", "malignant"),
    "digits": ("0 to 4", "5 to 9"),
    "mnist": ("0 to 4", "5 to 9"),
}


@dataclass(frozen=True)
class Unbalanced:
    """Labelled rows of two classes, the second of which is thinned out; there are no target rows.

    base: ``breast_cancer`` (scikit-learn's 569 patients, 30 numbers each, standardised), ``digits`` (scikit-learn's,
        ``[1, 8, 8]``) or ``mnist`` (uint8 ``[1, 28, 28]``), where the digits 5 to 9 are the second class.
    negatives_per_positive: rows of the first class for each row of the second in training and validation; surplus
        positives are dropped, and 0 keeps all. Test rows are unchanged: AUROC does not depend on the class balance.
    test_share, validation_share: of the rows of breast_cancer and digits; MNIST has its own test rows, and its first
        5,000 training digits are for validation.
    seed: selects the rows of each part.
    """

    name: ClassVar[str] = "unbalanced"
    summary: ClassVar[str] = "two classes of which one is rare, without a target: breast cancer, digits or MNIST"
    labelled_only: ClassVar[bool] = True

    base: Base = "breast_cancer"
    negatives_per_positive: float = 0.0
    test_share: float = 0.3
    validation_share: float = 0.1
    seed: int = 0

    def __post_init__(self) -> None:
        one_of("base", self.base, get_args(Base))
        not_negative("negatives_per_positive", self.negatives_per_positive)
        within("test_share", self.test_share, 0.05, 0.9)
        within("validation_share", self.validation_share, 0.0, 0.9)
        require(self.test_share + self.validation_share <= 0.95, "test_share and validation_share must leave rows")
        at_least("seed", self.seed, 0)

    def load(self) -> DomainPair:
        train, validation, test = _mnist() if self.base == "mnist" else self._cut()
        train, validation = (self._thinned(rows, part) for rows, part in ((train, "train"), (validation, "validation")))
        if self.base == "breast_cancer":
            mean, deviation = train.x.mean(dim=0), train.x.std(dim=0)
            train, validation, test = (
                Labelled(((rows.x - mean) / deviation).float(), rows.y) for rows in (train, validation, test)
            )
        return DomainPair(
            source=train,
            target=Labelled(train.x[:0], train.y[:0]),
            source_test=test,
            target_test=None,
            class_names=_CLASSES[self.base],
            source_validation=validation if len(validation.y) else None,
        )

    def _cut(self) -> tuple[Labelled, Labelled, Labelled]:
        """Return training, validation and test rows: each class is cut in the same shares."""
        x, y = _breast_cancer() if self.base == "breast_cancer" else _digits()
        parts: tuple[list[Tensor], ...] = ([], [], [])
        for label in (0, 1):
            own = (y == label).nonzero().squeeze(1)
            own = own[permutation(key(self.seed, self.name, self.base, label), len(own))]
            test, kept = (round(share * len(own)) for share in (self.test_share, self.validation_share))
            for part, rows in zip(parts, (own[test + kept :], own[test : test + kept], own[:test]), strict=True):
                part.append(rows)
        train, validation, test_rows = (torch.cat(part).sort().values for part in parts)
        return (
            Labelled(x[train], y[train]),
            Labelled(x[validation], y[validation]),
            Labelled(x[test_rows], y[test_rows]),
        )

    def _thinned(self, rows: Labelled, part: str) -> Labelled:
        """Return the rows with fewer of the second class."""
        positive = (rows.y == 1).nonzero().squeeze(1)
        if not self.negatives_per_positive or not len(positive):
            return rows
        negatives = len(rows.y) - len(positive)
        wanted = max(1, round(negatives / self.negatives_per_positive))
        require(
            wanted <= len(positive),
            f"negatives_per_positive must be 0 or at least {negatives / len(positive):.2f}, as {self.base} is, not "
            f"{self.negatives_per_positive:g}",
        )
        order = permutation(key(self.seed, self.name, self.base, "kept", part), len(positive))
        keep = rows.y != 1
        keep[positive[order[:wanted]]] = True
        return Labelled(rows.x[keep], rows.y[keep])


def _breast_cancer() -> tuple[Tensor, Tensor]:
    from sklearn.datasets import load_breast_cancer  # noqa: PLC0415 - slow to import

    bunch = load_breast_cancer()
    return torch.from_numpy(bunch.data), 1 - torch.from_numpy(bunch.target).long()  # scikit-learn's 1 is benign


def _digits() -> tuple[Tensor, Tensor]:
    from sklearn.datasets import load_digits  # noqa: PLC0415 - slow to import

    bunch = load_digits()
    return torch.from_numpy(bunch.images / 16.0).float().unsqueeze(1), torch.from_numpy(bunch.target >= 5).long()


def _mnist() -> tuple[Labelled, Labelled, Labelled]:
    found = read_mnist(sources()["mnist"], "mnist_m")
    train, test = (
        Labelled(torch.from_numpy(x.copy()).unsqueeze(1), torch.from_numpy(y >= 5).long())
        for x, y in (found["train"], found["test"])
    )
    kept = VALIDATION_ROWS
    return Labelled(train.x[kept:], train.y[kept:]), Labelled(train.x[:kept], train.y[:kept]), test
