"""Features as points in the plane, by t-SNE; what was computed once is kept beside the run."""

from __future__ import annotations

import hashlib
from contextlib import suppress
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from fedmm.core.files import replace_file
from fedmm.reporting.html.collect import Entry
from fedmm.reporting.read import Array

_FILE, _SEED, _ITERATIONS, _PERPLEXITY = "maps.safetensors", 0, 500, 30.0
_WAY = f"t-sne exact, pca, seed {_SEED}, {_ITERATIONS} iterations, perplexity {_PERPLEXITY}"
_FEWEST_ROWS = 8


class Maps:
    """Maps of runs; features that several runs share, as those before training, are mapped once."""

    def __init__(self) -> None:
        self._known: dict[str, Array] = {}

    def of(self, entry: Entry) -> dict[str, Array]:
        """``before`` and ``after``: ``[rows, 2]``; empty for a run that kept no features, or too few."""
        features = {name: entry.exhibits.get(f"map_{name}") for name in ("before", "after")}
        given = {name: np.asarray(each, np.float64) for name, each in features.items() if _usable(each)}
        if len(given) < 2:
            return {}
        digests = {name: _digest(each) for name, each in given.items()}
        path = entry.run.folder / _FILE
        self._known.update(_read(path))
        found = {}
        for name, each in given.items():
            if digests[name] not in self._known:
                self._known[digests[name]] = _plane(each)
            found[name] = self._known[digests[name]]
        _keep(path, {digests[name]: each for name, each in found.items()})
        return found


def _usable(features: Array | None) -> bool:
    return features is not None and features.ndim == 2 and len(features) >= _FEWEST_ROWS and features.shape[1] > 0


def _digest(features: Array) -> str:
    content = _WAY.encode() + str(features.shape).encode() + np.ascontiguousarray(features).tobytes()
    return hashlib.sha256(content).hexdigest()[:32]


def _plane(features: Array) -> Array:
    """Points ``[rows, 2]``, each axis from 0 to 1."""
    if not np.isfinite(features).all() or not features.std():
        return np.zeros((len(features), 2), np.float32)
    if features.shape[1] <= 2:
        points = np.pad(features, ((0, 0), (0, 2 - features.shape[1])))
    else:
        from sklearn.manifold import TSNE  # noqa: PLC0415 - slow to import, and seldom needed

        perplexity = min(_PERPLEXITY, (len(features) - 1) / 3)
        maker = TSNE(
            perplexity=perplexity, init="pca", method="exact", random_state=_SEED, max_iter=_ITERATIONS,
            learning_rate="auto",
        )  # fmt: skip
        points = maker.fit_transform((features / features.std()).astype(np.float32))
    low, high = points.min(axis=0), points.max(axis=0)
    scaled: Array = ((points - low) / np.where(high > low, high - low, 1.0)).astype(np.float32)
    return scaled


def _read(path: Path) -> dict[str, Array]:
    try:
        with safe_open(path, framework="numpy") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is no dict
    except (OSError, SafetensorError, ValueError, KeyError, TypeError):
        return {}


def _keep(path: Path, maps: dict[str, Array]) -> None:
    """Keep maps beside their run; a folder that cannot be written to is left as it is."""
    if _read(path).keys() >= maps.keys():
        return
    with suppress(OSError, SafetensorError), replace_file(path) as partial:
        save_file(maps, partial)
