"""A trained model: predictions, features, and its file."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from fedmm.core.errors import FedmmError, require
from fedmm.core.objective import Outputs
from fedmm.core.problem import Statistics
from fedmm.core.views import View, WholeRows
from fedmm.data.holdings import as_rows
from fedmm.data.views import view_from, view_table
from fedmm.engines.tensor_files import checksum
from fedmm.models.flat import FlatNetwork
from fedmm.models.network import Network
from fedmm.objectives.source_only import SourceOnly

_FORMAT = "fedmm-model-1"
_LARGEST_ROW = 1_000_000_000


class RowsShown:
    """Rows as a network that measures or predicts sees them.

    stored: the shape of a row as clients hold it; shapes: those that are taken, rows of the last one as they are.
    """

    def __init__(self, view: View, stored: tuple[int, ...]) -> None:
        self.view = view
        self.stored = stored
        self.shapes = tuple(dict.fromkeys((stored, view.shape(stored))))

    def __call__(self, x: Tensor) -> Tensor:
        """``[rows, *stored]``, or rows that are shown already, to ``[rows, *input shape]``."""
        return self.view.evaluate(x) if tuple(x.shape[1:]) == self.stored else x


class Predictor:
    """The server's model. Inputs are arrays, tensors or Datasets of rows like those it was trained on.

    Rows as the clients store them are shown through the view of its training; those of the network's own input shape
    are used as they are.
    """

    def __init__(self, function: FlatNetwork, z: Tensor, statistics: Statistics, show: RowsShown | None = None) -> None:
        self._function = function
        self._z = z
        self._statistics = statistics
        self._show = show or RowsShown(WholeRows(), function.input_shape)

    def predict(self, x: Any) -> Tensor:
        """The predicted class of each row: int64 ``[rows]``."""
        return self._outputs(x).logits.argmax(dim=-1)

    def predict_proba(self, x: Any) -> Tensor:
        """The predicted class probabilities of each row: ``[rows, classes]``."""
        return self._outputs(x).logits.softmax(dim=-1)

    def features(self, x: Any) -> Tensor:
        """The features of each row: ``[rows, features]``."""
        return self._outputs(x).features

    def tensors(self) -> dict[str, Tensor]:
        """The whole model by name: parameters, running statistics, input mean, random maps."""
        return self._function.state(self._z, self._statistics)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model as a safetensors file; :func:`load_model` reads it back."""
        function = self._function
        about = {
            "format": _FORMAT,
            "classes": function.classes,
            "input_shape": function.input_shape,
            "centre": function.module.centre,
            "view": view_table(self._show.view),
            "stored_shape": self._show.stored,
            "dtype": str(function.layout.dtype).removeprefix("torch."),
        }
        try:
            tensors = self.tensors()
            about |= {"sha256": checksum(json.dumps(about), tensors)}  # one entry: several would come in any order
            save_file(tensors, path, metadata={"fedmm": json.dumps(about)})
        except Exception as problem:
            raise FedmmError(f"the model could not be written to {os.fspath(path)}: {problem}") from problem

    def _outputs(self, x: Any) -> Outputs:
        held = as_rows(x, "input", labelled=False)
        rows = held.take(torch.arange(len(held))).to(self._function.layout.device)
        shapes = self._show.shapes
        require(
            tuple(rows.shape[1:]) in shapes,
            f"the model takes rows of shape {' or '.join(map(str, shapes))}, not {tuple(rows.shape[1:])}",
        )
        return self._function.evaluate(self._z, self._statistics, self._show(rows))


def load_model(path: str | os.PathLike[str], model: Network, *, device: torch.device | str = "cpu") -> Predictor:
    """The model of a saved file, for predictions; ``model`` is the network it was trained with."""
    file = os.fspath(path)
    saved, about = _read(path)
    require(
        about.get("centre") == model.centre,
        f"{file} was trained with centre {about.get('centre')!r}, but the network has centre {model.centre!r}",
    )
    sample = torch.zeros((2, *about["input_shape"]))
    dtype = torch.float64 if about.get("dtype") == "float64" else torch.float32
    function = FlatNetwork(model, SourceOnly(), sample, seed=0, dtype=dtype, device=device)
    wanted = function.state(function.start, function.statistics)
    for name in saved:
        ours = name in wanted or name.startswith(("adversary.", "map_"))
        require(ours, f"{file} holds a tensor {name!r} that this network lacks")
    for name, tensor in wanted.items():
        require(name in saved, f"{file} lacks the tensor {name!r} of this network")
        require(
            tensor.shape == saved[name].shape,
            f"tensor {name!r} of {file} has shape {tuple(saved[name].shape)}, not {tuple(tensor.shape)}",
        )
    known = {name: saved[name].to(device) for name in wanted}
    function.module.load_state_dict(known)
    omega = {block.name: known[block.name] for block in function.layout.blocks}
    statistics = {name: known[name] for name in function.statistics}
    return Predictor(function, function.layout.pack(omega, {}), statistics, _shown(about, file))


def _shown(about: Mapping[str, Any], file: str) -> RowsShown | None:
    """How the model's rows were shown; a view that is not in the table is forgotten, and its input shape remains."""
    if not about.get("view"):
        return None
    try:
        return RowsShown(view_from(about["view"]), tuple(about["stored_shape"]))
    except (FedmmError, LookupError, TypeError, AttributeError) as problem:
        raise FedmmError(f"{file} does not say in what form it takes rows: {problem}") from problem


def _read(path: str | os.PathLike[str]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    try:
        with safe_open(path, framework="pt") as file:
            saved = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            about = json.loads((file.metadata() or {}).get("fedmm", "{}"))
    except Exception as problem:
        raise FedmmError(f"{os.fspath(path)} cannot be read as a safetensors file: {problem}") from problem
    ours = isinstance(about, dict) and about.get("format") == _FORMAT
    require(ours, f"{os.fspath(path)} is not a model saved by fedmm")
    written, found = about.pop("sha256", None), checksum(json.dumps(about), saved)
    whole = written in (None, found)
    require(whole and _is_shape(about.get("input_shape")), f"{os.fspath(path)} was changed since it was saved")
    return saved, about


def _is_shape(value: Any) -> bool:
    """Whether a row may have that shape."""
    sizes = isinstance(value, list) and all(type(size) is int and size > 0 for size in value)
    return sizes and math.prod(value) <= _LARGEST_ROW
