"""Export a run's model as one file for other programs, in ONNX, TorchScript or safetensors, and verify the file."""

from __future__ import annotations

import io
import json
import logging
import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor, nn

from fedmm._version import __version__
from fedmm.config.dataclass_io import as_table
from fedmm.core.errors import FedmmError, first_line, require
from fedmm.core.files import atomic_write
from fedmm.core.seeding import key
from fedmm.core.validation import one_of
from fedmm.data.columns import Column
from fedmm.data.inputs import input_table
from fedmm.data.readers.table_formats import TABLES
from fedmm.data.tensor_files import checksum
from fedmm.data.transforms import view_table
from fedmm.inference.load_run import FinishedRun
from fedmm.inference.onnx_tables import Raw, columns_of, raw_rows, with_preparation
from fedmm.inference.predict import calibrated_logits
from fedmm.models.backbones import Normalise
from fedmm.models.network import AdversarialModule
from fedmm.training.predictor import MODEL_FORMAT, RowsShown, rebuild_model

FORMAT = "fedmm-export-1"
INPUT_NAME, OUTPUT_NAMES = "x", ("probabilities", "logits")
_ROWS_CHECKED = 64
_LARGEST_ONNX = 2_000_000_000
"""Bytes; a protobuf file cannot hold more."""
_ROUNDING = 2.0**-21
"""Relative margin of a threshold below the probability that it must find, since the file computes in float32."""

Probabilities = Callable[[Any], Tensor]


class ExportedNetwork(nn.Module):
    """Maps stored rows to class probabilities and logits: view, scaling of bytes, centring, features and task head.

    temperature, bias: the run's calibration, as in :func:`~fedmm.inference.predict.calibrated_logits`.
    """

    def __init__(
        self, network: AdversarialModule, show: RowsShown, temperature: float = 1.0, bias: float = 0.0
    ) -> None:
        super().__init__()
        network.drop_adversary()
        self.network = network
        self._show = show
        self._temperature, self._bias = temperature, bias

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return probabilities and logits, each ``[rows, classes]``, of rows ``[rows, *stored]``."""
        logits = calibrated_logits(self.network(self._show(x)).logits, self._temperature, self._bias)
        return logits.softmax(dim=-1), logits


@dataclass(frozen=True)
class Format:
    """How a model is written and read back, and how far its probabilities may differ from the run's own."""

    ending: str
    tolerance: float
    write: Callable[[FinishedRun, Tensor, Mapping[str, Any], Path], None]
    read: Callable[[Path, FinishedRun], Probabilities]


@dataclass(frozen=True)
class Exported:
    """The file that was written: its description, the number of rows compared, and the largest difference found."""

    path: Path
    about: Mapping[str, Any]
    rows: int
    difference: float
    tolerance: float


def export_model(run: FinishedRun, format: str, path: Path, *, overwrite: bool = False) -> Exported:
    """Write the model as ``format``, load the file again and compare; leave no file if its probabilities differ.

    overwrite: replace an existing file.
    """
    one_of("--format", format, tuple(FORMATS))
    require(
        format != "safetensors" or not _calibration(run),
        "a safetensors file holds weights alone, so calibrated probabilities need --format onnx or torchscript",
    )
    run.require_rows_of_files()
    own = path.resolve().parent == run.folder.resolve() and path.match("model*.safetensors")
    require(not own, f"{path} is a model that the run keeps; name another file")
    table = path.name.lower().endswith(TABLES)
    require(not table, f"{path} would be a table by its name; name a model, such as model{FORMATS[format].ending}")
    chosen = FORMATS[format]
    rows = _rows(run)
    columns = columns_of(run.input) if format == "onnx" else ()
    raw, rows = raw_rows(columns, rows) if columns else (None, rows)
    about = describe(run, rows, format)
    with atomic_write(path, overwrite=overwrite) as partial:
        with _third_parties_silent():
            chosen.write(run, rows, about, partial)
            difference = _difference(run, rows, raw, chosen.read(partial, run))
        require(
            difference <= chosen.tolerance,
            f"the {format} model gives probabilities that differ by {difference:.2g}, above {chosen.tolerance:g}, from "
            "the run's own; nothing was written, export it in another format",
        )
    return Exported(path, about, len(rows), difference, chosen.tolerance)


def describe(run: FinishedRun, rows: Tensor, format: str) -> dict[str, Any]:
    """Return the metadata that the file holds besides the model: its inputs, outputs and origin."""
    about = {
        "format": FORMAT,
        "fedmm": __version__,
        "label": run.experiment.label,
        "checkpoint": run.checkpoint,
        "round": run.round,
        "chosen_by": run.chosen_by,
        "class_names": list(run.class_names),
        "takes": _takes(run, rows, columns_of(run.input) if format == "onnx" else ()),
        "gives": {name: ["rows", len(run.class_names)] for name in OUTPUT_NAMES},
        "calibration": _calibration(run),
        "model": as_table(run.experiment.model),
        "view": view_table(run.predictor.show.view),
        "tolerance": FORMATS[format].tolerance,
    }
    plain: dict[str, Any] = json.loads(json.dumps(about))
    return plain


def _calibration(run: FinishedRun) -> dict[str, float | None]:
    """Return the calibration, whose temperature and bias the model applies itself; empty if it is uncalibrated.

    threshold: the probability from which on the second of two classes is predicted; applying it is up to the reader.
    """
    if (run.temperature, run.bias, run.log_odds_threshold) == (1.0, 0.0, None):
        return {}
    threshold = None if run.threshold is None else run.threshold * (1.0 - _ROUNDING)
    return {"temperature": run.temperature, "bias": run.bias, "threshold": threshold}


def _takes(run: FinishedRun, rows: Tensor, columns: Sequence[Column]) -> dict[str, Any]:
    """Describe the model's input: stored rows or, if the model prepares a table itself, the table's columns."""
    inside = _inside(run, rows)
    if columns:
        kinds = {column.name: "string" if column.levels else "float64" for column in columns}
        inside = ["columns are scaled and words become numbers as in training", *inside]
        return {"columns": kinds, "shape": ["rows", 1], "inside": inside, "prepared_by": None}
    return {
        "name": INPUT_NAME,
        "shape": ["rows", *run.predictor.show.stored],
        "dtype": str(rows.dtype).removeprefix("torch."),
        "inside": inside,
        "prepared_by": None if run.input is None else input_table(run.input),
    }


def _inside(run: FinishedRun, rows: Tensor) -> list[str]:
    """List in words, and in order, what the exported model itself does to its input."""
    show, network = run.predictor.show, run.predictor.network()
    centre = network.centre
    steps = []
    if show.shapes[-1] != show.stored:
        steps.append(f"the centre of each row is cut out, of shape {list(show.shapes[-1])}")
    if rows.dtype == torch.uint8:
        steps.append("bytes are divided by 255")
    if centre == "train_mean":
        steps.append(f"the mean of the training inputs, {float(network.input_mean):.6g}, is subtracted")
    elif centre == "image_mean":
        steps.append("each row's own mean is subtracted")
    elif centre == "batch_mean":
        steps.append("the mean of the whole batch is subtracted, so a prediction depends on its batch")
    for layer in network.modules():
        if isinstance(layer, Normalise):
            steps.append(f"channels are normalised: {layer.extra_repr()}")
    return steps


def _rows(run: FinishedRun) -> Tensor:
    """Return rows to compare on: some that the run kept, else random ones of the same shape."""
    kept = run.sample_rows()
    if kept is None or not len(kept):
        generator = torch.Generator().manual_seed(key(run.experiment.run.seed, "export"))
        drawn = torch.rand((8, *run.predictor.show.stored), generator=generator)
        kept = drawn.mul(255).to(torch.uint8) if kept is not None and kept.dtype == torch.uint8 else drawn
    if kept.dtype != torch.uint8:
        kept = kept.to(torch.float32)
    spread = torch.linspace(0, len(kept) - 1, min(len(kept), _ROWS_CHECKED)).round().long()
    return kept[spread] if len(kept) > 1 else kept.repeat(2, *(1,) * (kept.dim() - 1))


def _difference(run: FinishedRun, rows: Tensor, raw: Raw | None, exported: Probabilities) -> float:
    """Return the largest difference of a probability, on all rows at once and on one: any batch size must work.

    raw: the columns that the rows were made from, if the model takes columns.
    """
    found = []
    for part in (slice(None), slice(1)):
        given = rows[part] if raw is None else {name: values[part] for name, values in raw.items()}
        logits = calibrated_logits(run.predictor.logits(rows[part]), run.temperature, run.bias)
        own = logits.softmax(dim=-1).cpu().double()
        found.append((exported(given).double() - own).abs().max())
    worst = float(torch.stack(found).max())
    return math.inf if math.isnan(worst) else worst


@contextmanager
def _third_parties_silent() -> Iterator[None]:
    """Silence libraries' warnings to developers, and turn their exceptions into an error of one sentence."""
    before = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except (FedmmError, OSError, MemoryError):
        raise
    except Exception as problem:  # exporters raise exceptions of any kind
        reason = first_line(problem)
        raise FedmmError(f"the network cannot be exported in this format: {reason}") from problem
    finally:
        logging.disable(before)


def _network(run: FinishedRun) -> ExportedNetwork:
    """Return the network in float32, which every program supports."""
    network = run.predictor.network().float()
    return ExportedNetwork(network, run.predictor.show, run.temperature, run.bias).eval()


# ONNX -----------------------------------------------------------------------------------------------------------------


def _write_onnx(run: FinishedRun, rows: Tensor, about: Mapping[str, Any], path: Path) -> None:
    try:
        import onnx  # noqa: PLC0415 - an optional dependency
        import onnxscript  # noqa: F401, PLC0415 - an optional dependency, which torch's exporter needs
    except ImportError as problem:
        raise _missing() from problem
    program = torch.onnx.export(
        _network(run),
        (rows,),
        dynamo=True,
        input_names=[INPUT_NAME],
        output_names=list(OUTPUT_NAMES),
        dynamic_shapes={"x": {0: torch.export.Dim("rows")}},
        external_data=False,
        verbose=False,
    )
    assert program is not None
    model = program.model_proto
    _forget_origin(model)
    columns = columns_of(run.input)
    if columns:
        model = with_preparation(model, columns, INPUT_NAME, OUTPUT_NAMES)
    onnx.helper.set_model_props(model, {"fedmm": json.dumps(about), "class_names": json.dumps(about["class_names"])})
    require(
        model.ByteSize() < _LARGEST_ONNX,
        "the model is too large for one ONNX file of 2 GB; export it as torchscript or safetensors",
    )
    onnx.checker.check_model(model)
    path.write_bytes(model.SerializeToString())


def _forget_origin(model: Any) -> None:
    """Remove the exporter's notes on the file and line of this machine that each node comes from."""
    for part in (model.graph, *model.functions):
        for node in part.node:
            del node.metadata_props[:]
            node.ClearField("doc_string")
        for value in (*part.value_info, *getattr(part, "initializer", ()), *_values(part)):
            del value.metadata_props[:]
            value.ClearField("doc_string")
        del part.metadata_props[:]


def _values(part: Any) -> list[Any]:
    """Return the inputs and outputs of a graph; none for a function, which only has their names."""
    return [value for value in (*part.input, *part.output) if not isinstance(value, str)]


def _read_onnx(path: Path, run: FinishedRun) -> Probabilities:
    try:
        import onnxruntime  # noqa: PLC0415 - an optional dependency
    except ImportError as problem:
        raise _missing() from problem
    onnxruntime.set_default_logger_severity(3)
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])

    def probabilities(given: Any) -> Tensor:
        columns = given if isinstance(given, dict) else {INPUT_NAME: given.numpy()}
        return torch.from_numpy(session.run([OUTPUT_NAMES[0]], columns)[0])

    return probabilities


def _missing() -> FedmmError:
    return FedmmError("the format 'onnx' needs onnx, onnxscript and onnxruntime: pip install 'fedmm[export]'")


# TorchScript ----------------------------------------------------------------------------------------------------------


def _write_torchscript(run: FinishedRun, rows: Tensor, about: Mapping[str, Any], path: Path) -> None:
    with torch.no_grad():
        traced = torch.jit.trace(_network(run), (rows,), check_trace=False)  # type: ignore[no-untyped-call]
    content = io.BytesIO()
    torch.jit.save(traced, content, _extra_files={"fedmm.json": json.dumps(about)})
    path.write_bytes(content.getvalue())


def _read_torchscript(path: Path, run: FinishedRun) -> Probabilities:
    loaded = torch.jit.load(str(path), map_location="cpu")  # type: ignore[no-untyped-call]

    def probabilities(x: Tensor) -> Tensor:
        with torch.no_grad():
            found: Tensor = loaded(x)[0]
        return found

    return probabilities


# safetensors ----------------------------------------------------------------------------------------------------------


def _write_safetensors(run: FinishedRun, rows: Tensor, about: Mapping[str, Any], path: Path) -> None:
    """Write the features, task head and input mean by name; :func:`fedmm.load_model` reads the file too."""
    network, show = run.predictor.network(), run.predictor.show
    network.drop_adversary()
    tensors = {
        name: tensor.contiguous() for name, tensor in network.state_dict().items() if name not in network.map_names
    }
    ours = {
        **about,
        "format": MODEL_FORMAT,
        "classes": run.predictor.classes,
        "input_shape": list(show.shapes[-1]),
        "centre": network.centre,
        "stored_shape": list(show.stored),
        "dtype": str(run.predictor.dtype).removeprefix("torch."),
    }
    ours |= {"sha256": checksum(json.dumps(ours), tensors)}
    metadata = {"fedmm": json.dumps(ours), "class_names": json.dumps(about["class_names"])}
    path.write_bytes(save(tensors, metadata))


def _read_safetensors(path: Path, run: FinishedRun) -> Probabilities:
    model = run.experiment.model.untrained()
    return rebuild_model(path, lambda shape, classes: model.build(shape, classes, 0)).predict_proba


FORMATS: dict[str, Format] = {
    "onnx": Format(".onnx", 1e-4, _write_onnx, _read_onnx),
    "torchscript": Format(".pt", 1e-5, _write_torchscript, _read_torchscript),
    "safetensors": Format(".safetensors", 0.0, _write_safetensors, _read_safetensors),
}
"""ONNX runtimes fuse layers and so round differently; TorchScript runs torch's own; safetensors holds the weights."""
