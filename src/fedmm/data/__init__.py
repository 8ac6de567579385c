"""Data sets of two domains, and who holds which share of them; ``DATASETS`` and ``PARTITIONS`` are the tables."""

from __future__ import annotations

from fedmm.data.arrays import Arrays
from fedmm.data.digits import Digits
from fedmm.data.domains import DataSet, DomainPair, Labelled
from fedmm.data.holdings import DatasetRows, Rows, TensorRows, as_rows
from fedmm.data.image_folder import ImageFolder
from fedmm.data.mnist_m import MnistM
from fedmm.data.moons import Moons
from fedmm.data.office31 import Office31
from fedmm.data.partition import (
    PARTITIONS,
    BySite,
    Centralised,
    Dirichlet,
    DisjointClasses,
    Partition,
    PSplit,
    Share,
    SourceTarget,
    TargetSupervised,
)
from fedmm.data.table import Table

DATASETS: dict[str, type[DataSet]] = {
    kind.name: kind for kind in (Digits, Moons, MnistM, Office31, ImageFolder, Arrays, Table)
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
    "ImageFolder",
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
    "as_rows",
]
