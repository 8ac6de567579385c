"""Data sets of two domains, and partitions that deal their rows to clients; see ``DATASETS`` and ``PARTITIONS``."""

from __future__ import annotations

from fedmm.data.datasets.arrays import Arrays
from fedmm.data.datasets.digits import Digits
from fedmm.data.datasets.image_folder import ImageFolder
from fedmm.data.datasets.mnist_m import MnistM
from fedmm.data.datasets.moons import Moons
from fedmm.data.datasets.office31 import Office31
from fedmm.data.datasets.table import Table
from fedmm.data.datasets.unbalanced import Unbalanced
from fedmm.data.datasets.usps import Usps
from fedmm.data.domains import DataSet, DomainPair, Labelled
from fedmm.data.partition import (
    PARTITIONS,
    BySite,
    Centralised,
    Dirichlet,
    DisjointClasses,
    Iid,
    LabelSorted,
    Partition,
    PSplit,
    Share,
    SourceTarget,
    TargetSupervised,
)
from fedmm.data.rows import DatasetRows, Rows, TensorRows, as_rows

DATASETS: dict[str, type[DataSet]] = {
    kind.name: kind
    for kind in (
        Digits,
        Moons,
        MnistM,
        Usps,
        Unbalanced,
        Office31,
        ImageFolder,
        Arrays,
        Table,
    )
}

__all__ = [
    "Arrays",
    "BySite",
    "Centralised",
    "DATASETS",
    "DataSet",
    "DatasetRows",
    "Digits",
    "Dirichlet",
    "DisjointClasses",
    "DomainPair",
    "Iid",
    "ImageFolder",
    "LabelSorted",
    "Labelled",
    "MnistM",
    "Moons",
    "Office31",
    "PARTITIONS",
    "PSplit",
    "Partition",
    "Rows",
    "Share",
    "SourceTarget",
    "Table",
    "TargetSupervised",
    "TensorRows",
    "Unbalanced",
    "Usps",
    "as_rows",
]
