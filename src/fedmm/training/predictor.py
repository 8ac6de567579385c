"""A trained model: predictions, features, saving and loading."""

from __future__ import annotations

import copy
import json
import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from fedmm.core.errors import FedmmError, require
from fedmm.core.files import replace_file
from fedmm.core.objective import Outputs
from fedmm.core.problem import Statistics, View, WholeRows
from fedmm.data.row_format import RowFormat
from fedmm.data.rows import DatasetRows, TensorRows
from fedmm.data.tensor_files import checksum
from fedmm.data.transforms import view_from, view_table
from fedmm.models.flat import FlatNetwork
from fedmm.models.network import AdversarialModule, Network
from fedmm.objectives.source_only import SourceOnly

MODEL_FORMAT = "fedmm-model-1"
ARRAYS = RowFormat()
_LARGEST_ROW = 1_000_000_000


class RowsShown:
    """Shows rows to a network for evaluation and prediction.

    stored: the shape of a row as clients hold it. shapes: the accepted shapes; rows of the input shape stay unchanged.
    """

    def __init__(self, view: View, stored: tuple[int, ...]) -> None:
        self.view = view
        self.stored = stored
        self.shapes = tuple(dict.fromkeys((stored, view.shape(stored))))

    def __call__(self, x: Tensor) -> Tensor:
        """Map ``[rows, *stored]``, or rows that already have the input shape, to ``[rows, *input shape]``."""
        return self.view.evaluate(x) if tuple(x.shape[1:]) == self.stored else x


class Predictor:
    """The server's model. Inputs are rows like those it was trained on, in any form that ``fedmm.adapt`` takes.

    For tensors and Datasets it returns tensors; for arrays, DataFrames and lists, numpy arrays. Rows in the shape that
    clients store go through the view used in training; rows in the network's input shape are used unchanged.
    """

    def __init__(
        self,
        function: FlatNetwork,
        z: Tensor,
        statistics: Statistics,
        show: RowsShown | None = None,
        form: RowFormat = ARRAYS,
    ) -> None:
        self._function = function
        self._z = z
        self._statistics = statistics
        self._show = show or RowsShown(WholeRows(), function.input_shape)
        self._form = form

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.classes} classes, rows of shape {self._show.stored})"

    def predict(self, x: Any) -> Any:
        """Return the predicted class of each row, ``[rows]``: int64, or an array of words if labels were words."""
        chosen = self._outputs(x).logits.argmax(dim=-1)
        return self.classes_[chosen.cpu().numpy()] if self._form.classes else _like(x, chosen)

    def predict_proba(self, x: Any) -> Any:
        """Return the predicted class probabilities of each row, ``[rows, classes]``."""
        return _like(x, self._outputs(x).logits.softmax(dim=-1))

    def logits(self, x: Any) -> Any:
        """Return the logits, whose softmax gives the probabilities, ``[rows, classes]``."""
        return _like(x, self._outputs(x).logits)

    def features(self, x: Any) -> Any:
        """Return the features of each row, ``[rows, features]``."""
        return _like(x, self._outputs(x).features)

    def score(self, x: Any, y: Any = None) -> float:
        """Return the accuracy on labelled rows: x and labels y, or a Dataset, a DataLoader or a pair (x, y) alone."""
        held = self._form.rows(x if y is None else (x, y), "score", labelled=True)
        labels = held.labels(torch.arange(len(held)))
        highest = int(labels.max())
        require(highest < self.classes, f"score: the labels hold {highest}, but there are {self.classes} classes")
        predicted = self._outputs(held).logits.argmax(dim=-1)
        return float((predicted.cpu() == labels.cpu()).double().mean())

    @property
    def classes_(self) -> NDArray[Any]:
        """The classes in the order of ``predict_proba``'s columns: words if labels were words, otherwise numbers."""
        return np.array(self._form.classes) if self._form.classes else np.arange(self.classes)

    @property
    def classes(self) -> int:
        """The number of classes."""
        return self._function.classes

    @property
    def dtype(self) -> torch.dtype:
        """The dtype in which the network computes."""
        return self._function.layout.dtype

    @property
    def show(self) -> RowsShown:
        """How rows are shown to the network, and which shapes are accepted."""
        return self._show

    def network(self) -> AdversarialModule:
        """Return a copy of the network with the model's weights and statistics, on the CPU and in evaluation mode."""
        module = copy.deepcopy(self._function.module).cpu()
        for parameter in module.parameters():  # no longer views of one vector
            parameter.data = parameter.data.clone()
            parameter.grad = None
            parameter.requires_grad_(False)
        module.load_state_dict(self.tensors())
        return module.eval()

    def tensors(self) -> dict[str, Tensor]:
        """Return all tensors of the model by name: parameters, running statistics, input mean, random maps."""
        return self._function.state(self._z, self._statistics)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model as a safetensors file; :func:`load_model` reads it back."""
        function = self._function
        about = {
            "format": MODEL_FORMAT,
            "classes": function.classes,
            "input_shape": function.input_shape,
            "centre": function.module.centre,
            "view": view_table(self._show.view),
            "stored_shape": self._show.stored,
            "dtype": str(function.layout.dtype).removeprefix("torch."),
            **self._form.table(),
        }
        try:
            tensors = self.tensors()
            about |= {"sha256": checksum(json.dumps(about), tensors)}  # one entry: several would have no fixed order
            with replace_file(Path(path)) as partial:
                save_file(tensors, partial, metadata={"fedmm": json.dumps(about)})
        except Exception as problem:
            raise FedmmError(f"the model could not be written to {os.fspath(path)}: {problem}") from problem

    def _outputs(self, x: Any) -> Outputs:
        held = self._form.rows(x, "input", labelled=False)
        rows = held.take(torch.arange(len(held))).to(self._function.layout.device)
        shapes = self._show.shapes
        require(
            tuple(rows.shape[1:]) in shapes,
            f"the model takes rows of shape {' or '.join(map(str, shapes))}, not {tuple(rows.shape[1:])}",
        )
        return self._function.evaluate(self._z, self._statistics, self._show(rows))


def _like(x: Any, values: Tensor) -> Any:
    """Return values as a tensor if the rows were tensors or a torch Dataset, otherwise as an array."""
    torches = isinstance(x, Tensor | Dataset | DataLoader | TensorRows | DatasetRows)
    return values if torches else values.cpu().numpy()


def load_model(path: str | os.PathLike[str], model: Network, *, device: torch.device | str = "cpu") -> Predictor:
    """Load a saved model for predictions; ``model`` is the network it was trained with."""
    return _restore(os.fspath(path), *_read(path), model, device)


def rebuild_model(
    path: str | os.PathLike[str],
    build: Callable[[tuple[int, ...], int], Network],
    *,
    device: torch.device | str = "cpu",
) -> Predictor:
    """Load a saved model; ``build`` makes its network from the shape of a row and the number of classes."""
    saved, about = _read(path)
    classes = about.get("classes")
    require(type(classes) is int, f"{os.fspath(path)} does not say how many classes it has")
    return _restore(os.fspath(path), saved, about, build(tuple(about["input_shape"]), int(str(classes))), device)


def _restore(
    file: str, saved: Mapping[str, Tensor], about: Mapping[str, Any], model: Network, device: torch.device | str
) -> Predictor:
    require(
        about.get("centre") == model.centre,
        f"{file} was trained with centre {about.get('centre')!r}, but the network has centre {model.centre!r}",
    )
    sample = torch.zeros((2, *about["input_shape"]))
    dtype = torch.float64 if about.get("dtype") == "float64" else torch.float32
    function = FlatNetwork(model, SourceOnly(), sample, seed=0, dtype=dtype, device=device)
    wanted = function.state(function.start, function.statistics)
    for name in saved:
        ours = name in wanted or name.startswith(("adversary.", "levels.", "map_"))
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
    return Predictor(
        function, function.layout.pack(omega, {}), statistics, _read_view(about, file), _format(about, file)
    )


def _format(about: Mapping[str, Any], file: str) -> RowFormat:
    """Return the form in which the model's rows were given."""
    try:
        form = RowFormat.from_table(about)
        require(len(form.classes) in (0, about.get("classes")), "it does not name all its classes")
    except (FedmmError, LookupError, TypeError, AttributeError) as problem:
        raise FedmmError(f"{file} does not say which form of rows it takes: {problem}") from problem
    return form


def _read_view(about: Mapping[str, Any], file: str) -> RowsShown | None:
    """Return how the model's rows were shown; None if the view was not one that a file can name."""
    if not about.get("view"):
        return None
    try:
        return RowsShown(view_from(about["view"]), tuple(about["stored_shape"]))
    except (FedmmError, LookupError, TypeError, AttributeError) as problem:
        raise FedmmError(f"{file} does not say which form of rows it takes: {problem}") from problem


def _read(path: str | os.PathLike[str]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    try:
        with safe_open(path, framework="pt") as file:
            saved = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            about = json.loads((file.metadata() or {}).get("fedmm", "{}"))
    except Exception as problem:
        raise FedmmError(
            f"{os.fspath(path)} cannot be read as a safetensors file, so it is damaged or of another kind; copy it "
            f"again, or save the model again ({problem})"
        ) from problem
    ours = isinstance(about, dict) and about.get("format") == MODEL_FORMAT
    require(ours, f"{os.fspath(path)} is not a model saved by fedmm")
    written, found = about.pop("sha256", None), checksum(json.dumps(about), saved)
    whole = written in (None, found)
    require(
        whole and _is_shape(about.get("input_shape")),
        f"{os.fspath(path)} has been changed since it was saved; save it again",
    )
    return saved, about


def _is_shape(value: Any) -> bool:
    """Return whether a value is a possible shape of a row."""
    sizes = isinstance(value, list) and all(type(size) is int and size > 0 for size in value)
    return sizes and math.prod(value) <= _LARGEST_ROW
