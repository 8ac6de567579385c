"""Write the commented TOML files of a proposed experiment and of a site."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch

from fedmm.config.sites import ELSEWHERE, experiment_anywhere
from fedmm.config.toml import write_toml
from fedmm.core.errors import count_of, require
from fedmm.core.files import data_folder, parse_toml
from fedmm.core.signals.validators import METRICS
from fedmm.models.backbones import BLOCKS
from fedmm.preflight.table_checks import list_some
from fedmm.preflight.table_columns import Columns

LARGE = 72
"""Pixels of a side above which pictures need a pre-trained network."""
_BATCH, _FEWEST = 64, 8
_MANY_SITES, _IN_A_ROUND = 100, 20
_LEAST, _KEPT = 20, 0.2
"""For a site: the fewest rows over which a sum leaves it, and the share of rows kept from training."""
_SLOW_BACKBONE = {"features.backbone": 0.001, "*": 0.01}
_CHOSEN_BY = {
    "": ("target_information", "the best model is kept by this, which needs no labels of the target"),
    "accuracy": ("source_risk", "the best model is kept by this, on the rows to choose by"),
    "auc": ("validation_auroc", "the best model is kept by this, on the rows to choose by"),
    "worst_site": ("", "the last model is kept; validation_worst_accuracy keeps another, by few rows of each site"),
}
_RARE = 10
"""A class is rare if at most one row in this many has it."""
_MOBILENET = "mobilenetv2"
"""The folder of MobileNetV2's weights in the data folder."""


class KeyLine(NamedTuple):
    """A key of a section, its value and a comment; ``off`` lines are commented out, for the user to switch on."""

    key: str
    value: Any
    comment: str = ""
    off: bool = False


@dataclass(frozen=True)
class DetectedData:
    """Data that was detected. kind: the name of the data set that reads it; data: the lines of its section.

    shape: of a row. smallest: rows that the smallest client trains on. by_site: whether the data says who holds each
    row. said: messages on what was found. metric: one of METRICS if there is no target, otherwise empty. sites: their
    number, if a table says so.
    """

    kind: str
    data: tuple[KeyLine, ...]
    shape: tuple[int, ...]
    smallest: int
    by_site: bool
    said: tuple[str, ...] = field(default=())
    metric: str = ""
    sites: int = 0

    @property
    def many_sites(self) -> bool:
        """Whether only a part of the sites works in each round."""
        return self.sites > _MANY_SITES


def write_experiment(found: DetectedData, source: Path, file: Path) -> str:
    """Return the commented TOML of an experiment; raise here if running it would be refused."""
    at_sites = found.kind == ELSEWHERE
    small = _smaller_batch(found.smallest)
    large = len(found.shape) == 3 and min(found.shape[1:]) > LARGE
    batch = min(small, 32) if large else small
    rounds, rate = (100, 0.01) if large else (200, 0.02)
    best_by, why = _CHOSEN_BY[found.metric]
    sections = {
        "run": (
            KeyLine("rounds", rounds, "of communication; stop_by ends earlier"),
            KeyLine("batch_size", batch, f"rows of a local step; the smallest client trains on about {found.smallest}"),
            KeyLine("seed", 0, "one seed, one result"),
            *(_participation(found.sites) if found.metric and found.many_sites else ()),
            KeyLine("device", "auto", "the GPU if there is one"),
            *(() if large else (KeyLine("threads", 1, "such a small network is fastest on one core"),)),
            KeyLine("best_by", best_by, why),
            *((KeyLine("stop_by", best_by, "end early by the same", True),) if best_by else ()),
            *((KeyLine("patience", 50, "rounds without a better value", True),) if best_by else ()),
        ),
        "data": (KeyLine("name", found.kind), *found.data),
        "partition": ()
        if at_sites
        else (
            KeyLine("name", "by_site", "a client for each site")
            if found.by_site
            else KeyLine(
                "name", "source_target", "one client" if found.metric else "one client with labels, one without"
            ),
        ),
        "model": _network(found.shape),
        **_method(found, rate, large=large),
    }
    text = [
        f"# An experiment for {_plain(source.name)}, written by `fedmm init`. Every key may be changed; what is left",
        "# out has its default. Paths are relative to the folder in which you run the command.",
        f"#   fedmm check {_plain(str(file))}    looks at data and settings, and says what the run will need",
        f"#   fedmm run {_plain(str(file))}      trains, and leaves a run folder",
        "",
    ]
    if at_sites:
        text[1:4] = [
            "# out has its default. The coordinator keeps this file; every site has one of its own.",
            f"#   fedmm deploy run {_plain(str(file))}    trains over the federation's sites",
        ]
    content = "\n".join([*text, *_write_sections(sections)])
    experiment_anywhere(parse_toml(content, file))
    return content


def suited_metric(found: Columns) -> str:
    """Say which metric suits a table without a target, and why."""
    rarest, rows = min(found.labels.items(), key=lambda entry: entry[1])
    if len(found.labels) == 2 and _RARE * rows <= found.rows:
        best, why = "auc", f"{rarest!r} is rare, {rows} of {found.rows} rows"
    else:
        best, why = "accuracy", f"the rarest of {len(found.labels)} classes has {rows} of {found.rows} rows"
    return (
        f"--metric {best} suits ({why}); the others are {' and '.join(metric for metric in METRICS if metric != best)}"
    )


def _participation(sites: int) -> tuple[KeyLine, ...]:
    """Let a few of many sites take part in each round; not for use with target sites, which would seldom be drawn."""
    share = math.ceil(1000 * _IN_A_ROUND / sites) / 1000
    return (KeyLine("participation", share, f"of the {sites} sites, about {share * sites:.0f} work in a round"),)


def _method(found: DetectedData, rate: float, *, large: bool) -> dict[str, tuple[KeyLine, ...]]:
    """Return the sections of objective and algorithm."""
    if found.metric == "auc":
        share = KeyLine(
            "positive_share", 0.1, "of the rarer class, where sites hold too few of it to say how many", True
        )
        return {
            "objective": (
                KeyLine(
                    "name", "auc", "ranks the rarer class above the other; compare and tune try the cross entropy too"
                ),
                KeyLine("scaled", True, "rates need not know how rare it is", found.many_sites),
                *((share,) if found.kind == ELSEWHERE else ()),
            ),
            "algorithm": (
                KeyLine("name", "fedmm", "or codasca, coda_plus, fedavg_gda, ...; `fedmm list` shows all"),
                KeyLine("lr_min", rate, "of network, a and b"),
                KeyLine("lr_max", rate, "of alpha"),
            ),
        }
    if found.metric == "worst_site":
        return {
            "objective": (KeyLine("name", "worst_site", "the cross entropy of each site; or auc, with two classes"),),
            "algorithm": (
                KeyLine("name", "fedmm_agnostic", "the worst mixture of the sites; or afl, drfa, q_ffl"),
                KeyLine("lr_min", rate),
                KeyLine("lr_weights", 0.01, "how fast sites with larger losses come to weigh more"),
                KeyLine(
                    "regulariser", "chi_square", "keeps the sites' weights together, with regulariser_weight", True
                ),
            ),
        }
    if found.metric:
        return {
            "objective": (
                KeyLine("name", "source_only", "the cross entropy; nothing is adapted to"),
                KeyLine("class_weights", "balanced", "each class counts the same, however rare", True),
            ),
            "algorithm": (
                KeyLine("name", "fedavg_gda", "or fedmm, scaffold_gda, ...; `fedmm list` shows all"),
                KeyLine("lr_min", rate),
            ),
        }
    return {
        "objective": (
            KeyLine("name", "dann", "or cdan, mdd; source_only to train without adapting"),
            KeyLine("nu_schedule", "dann_warmup", "the classes first, then gradually the alignment of the domains"),
        ),
        "algorithm": (
            KeyLine("name", "fedmm_restrained", "or fedmm, fedavg_gda, ...; `fedmm list` shows all"),
            KeyLine("lr_min", rate, "of features and classifier"),
            KeyLine("lr_max", rate, "of the domain classifier"),
            *((KeyLine("lr_min", _SLOW_BACKBONE, "for a backbone that is not all frozen", True),) if large else ()),
        ),
    }


def _write_sections(sections: Mapping[str, Sequence[KeyLine]]) -> list[str]:
    """Return the lines of commented sections; leave out empty ones."""
    return [line for name, lines in sections.items() if lines for line in (f"[{name}]", *_align(lines), "")]


def _network(shape: tuple[int, ...]) -> tuple[KeyLine, ...]:
    """Choose a built-in network for rows of a shape."""
    if len(shape) != 3:
        return (KeyLine("name", "mlp", "fully connected"), KeyLine("hidden", [128, 64]))
    if min(shape[1:]) <= LARGE:
        return (
            KeyLine("name", "small_cnn", "two strided convolutions, for small pictures; paper_cnn is larger"),
            KeyLine("initialisation", "truncated_normal", "torch's own initialisation is too small to learn quickly"),
        )
    return (
        KeyLine("name", "mobilenet_v2", "needs torchvision; model.name = 'backbone' takes any of timm or torchvision"),
        *_weights(),
        KeyLine("frozen_blocks", BLOCKS, "all of the backbone; with thousands of pictures fewer, and augment = true"),
    )


def _smaller_batch(rows: int) -> int:
    """Return the largest power of two that is at most a quarter of the rows, limited to 8 to 64."""
    batch = _BATCH
    while batch > max(rows // 4, _FEWEST):
        batch //= 2
    return batch


def _align(lines: Sequence[KeyLine]) -> list[str]:
    """Write lines as ``key = value  # comment``, with aligned comments."""
    pairs = [("# " if line.off else "") + write_toml({"x": {line.key: line.value}}).splitlines()[1] for line in lines]
    width = max((len(pair) for pair in pairs if len(pair) <= 44), default=0)
    return [
        f"{pair:{width}}  # {_plain(line.comment)}" if line.comment else pair
        for pair, line in zip(pairs, lines, strict=True)
    ]


def _plain(comment: str) -> str:
    """Replace the characters that a one-line TOML comment cannot hold."""
    return "".join(letter if letter.isprintable() else "?" for letter in comment)


def count_kept_rows(rows: int) -> tuple[int, bool]:
    """Return how many rows a site should keep from training, and whether it has enough rows for that."""
    kept = max(_LEAST, round(_KEPT * rows))
    return kept, rows >= 2 * kept


def require_metric(metric: str, found: Columns, where: str, advice: str = "") -> None:
    """Refuse a metric of METRICS for a table without the labels that it needs. advice: if there are not two classes."""
    require(
        not found.unlabelled,
        "--metric is for a table in which every row has a label; label or remove the "
        f"{count_of(found.unlabelled, 'row')} of {where} without one",
    )
    require(
        metric != "auc" or len(found.labels) == 2,
        f"--metric auc needs two classes, and column {found.label!r} of {where} has {len(found.labels)}: "
        f"{list_some(found.labels)}{advice}",
    )


def write_site(
    path: Path,
    name: str,
    columns: Columns,
    features: Sequence[str],
    format: Sequence[KeyLine],
    *,
    aside: bool,
) -> str:
    """Return the commented TOML of a site with a table; aside: whether the site keeps labelled rows for validation."""
    kept, enough = count_kept_rows(columns.rows)
    sections = {
        "site": (
            KeyLine("name", name),
            KeyLine("state", f"state/{name}", "what the site keeps; paths are relative to this file"),
        ),
        "data": (
            KeyLine("kind", "table"),
            KeyLine("path", str(path.resolve())),
            KeyLine("domain", "source", "target: no labels, or none that are read; both: rows without are the target"),
            KeyLine("label", columns.label),
            *((KeyLine("validation_rows", kept, "kept from training, to choose by", not enough),) if aside else ()),
            *((KeyLine("classes", dict(columns.classes), "of each label"),) if columns.classes else ()),
            KeyLine("features", list(features), "the columns that may be learnt from, whoever asks"),
            *((KeyLine("id", columns.id, "names the rows; it is not an input"),) if columns.id else ()),
            *((KeyLine("drop", list(columns.drop), "not looked at"),) if columns.drop else ()),
            *format,
            KeyLine("rename", {"mine": features[0]}, "columns with other names here", True),
        ),
        "superlink": (
            KeyLine("address", "link.example.org:9092"),
            KeyLine("certificate", "ca.crt", "of the authority that signed the SuperLink's"),
            KeyLine("key", name, f"made by `fedmm deploy key {name}`"),
            KeyLine("coordinator", "coordinator.pub", "whose messages are answered"),
        ),
        "policy": (
            KeyLine("min_rows", _LEAST, "no sum over fewer rows leaves the site, and no model trained on fewer"),
        ),
    }
    head = f"# The file of the site {name}, written by `fedmm init`; it stays there. `fedmm deploy site` runs it."
    return "\n".join([head, "", *_write_sections(sections)])


def _weights() -> tuple[KeyLine, ...]:
    """Return lines for MobileNetV2's ImageNet weights: a file in the data folder, else torchvision's own."""
    folder = data_folder() / _MOBILENET
    try:
        files = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    except OSError:
        files = []
    for name in files:
        keras = name == "mobilenet_v2_imagenet_keras.safetensors"
        if keras or (name.startswith("mobilenet_v2-") and name.endswith(".pth")):
            line = KeyLine("weights", f"{_MOBILENET}/{name}", "ImageNet's, from the data folder")
            return (line, KeyLine("normalise", "half", "as these weights need it")) if keras else (line,)
    return (KeyLine("weights", "imagenet", "torchvision's own, downloaded once"),)


def list_missing() -> tuple[str, ...]:
    """List what a pre-trained network needs and this machine lacks, one message each."""
    notes = []
    if importlib.util.find_spec("torchvision") is None:
        notes.append("the network needs torchvision, which is not installed: pip install 'fedmm[vision]'")
    kept = Path(torch.hub.get_dir()) / "checkpoints"
    if _weights()[0].value == "imagenet" and not any(kept.glob("mobilenet_v2-*.pth")):
        notes.append(
            "torchvision's ImageNet weights are not on this machine: the first run downloads them (14 MB); without a "
            "network, name a file with model.weights"
        )
    return tuple(notes)
