"""Build the encoding of a table's columns into an ONNX model, which then takes columns as they are written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from fedmm.core.errors import require
from fedmm.data.columns import Column, encode_columns
from fedmm.data.domains import Input

Raw = Mapping[str, "np.ndarray[Any, Any]"]
"""Columns by name: float64 ``[rows, 1]`` with NaN for missing values, or words ``[rows, 1]``."""
_UNSEEN = "a word that no row had"


def columns_of(given: Input | None) -> tuple[Column, ...]:
    """Return the columns that a model can encode itself; none if rows are not a table, or sites scale differently."""
    return () if given is None or given.per_site else given.table_columns


def raw_rows(columns: Sequence[Column], x: Tensor) -> tuple[Raw, Tensor]:
    """Return columns like those that rows ``[rows, numbers]`` were made from, and the run's own encoding of them.

    The first row has no values and the second has unknown words. Dates are days since 1970.
    """
    import pandas  # noqa: PLC0415 - an optional dependency, without which there are no tables

    found: dict[str, np.ndarray[Any, Any]] = {}
    at = 0
    for column in columns:
        part = x[:, at : at + column.width].double().numpy()
        at += column.width
        if column.levels:
            words = np.array([*column.levels, _UNSEEN], dtype=object)
            found[column.name] = np.array(["", _UNSEEN, *words[part.argmax(axis=1)]], dtype=object)[:, None]
        else:
            values = part[:, 0] * column.deviation + column.mean
            found[column.name] = np.array([np.nan, column.mean, *values])[:, None]
    frame = pandas.DataFrame({name: values[:, 0] for name, values in found.items()})
    return found, encode_columns(frame, [replace(column, date="") for column in columns], Path("rows"))


def with_preparation(network: Any, columns: Sequence[Column], input_name: str, outputs: Sequence[str]) -> Any:
    """Return the ONNX model ``network`` with an input for each column instead of one for rows of numbers."""
    from onnx import TensorProto, compose, helper, numpy_helper  # noqa: PLC0415 - an optional dependency

    for column in columns:
        taken = column.name in outputs
        require(not taken, f"the column {column.name!r} has the name of a model output; export to another format")
    nodes, inputs, constants, parts = [], [], [], []

    def constant(name: str, value: np.ndarray[Any, Any]) -> str:
        constants.append(numpy_helper.from_array(value, name))
        return name

    def node(kind: str, taken: Sequence[str], gives: str, **options: Any) -> str:
        nodes.append(helper.make_node(kind, list(taken), [gives], **options))
        return gives

    for number, column in enumerate(columns):
        here = f"prepare/{number}/"
        kind = TensorProto.STRING if column.levels else TensorProto.DOUBLE
        inputs.append(helper.make_tensor_value_info(column.name, kind, ["rows", 1]))
        if column.levels:
            places = list(range(len(column.levels)))
            which = node(
                "LabelEncoder", [column.name], f"{here}place", domain="ai.onnx.ml", keys_strings=list(column.levels),
                values_int64s=places, default_int64=len(places),
            )  # fmt: skip
            axis = constant(f"{here}axis", np.array([1], np.int64))
            flat = node("Squeeze", [which, axis], f"{here}flat")
            parts.append(
                node("Gather", [constant(f"{here}eye", np.eye(column.width, dtype=np.float32)), flat], f"{here}one")
            )
            continue
        missing = node("IsNaN", [column.name], f"{here}missing")
        centred = node("Sub", [column.name, constant(f"{here}mean", np.array(column.mean))], f"{here}centred")
        scaled = node("Div", [centred, constant(f"{here}deviation", np.array(column.deviation))], f"{here}scaled")
        known = node("Where", [missing, constant(f"{here}zero", np.array(0.0)), scaled], f"{here}known")
        parts.append(node("Cast", [known], f"{here}number", to=TensorProto.FLOAT))
        if column.indicator:
            parts.append(node("Cast", [missing], f"{here}indicator", to=TensorProto.FLOAT))
    node("Concat", parts, "prepare/rows", axis=1)
    width = sum(column.width for column in columns)
    rows = helper.make_tensor_value_info("prepare/rows", TensorProto.FLOAT, ["rows", width])
    graph = helper.make_graph(nodes, "prepare", inputs, [rows], constants)
    versions = [*network.opset_import, helper.make_opsetid("ai.onnx.ml", 2)]
    prepare = helper.make_model(graph, opset_imports=versions, ir_version=network.ir_version)
    network = compose.add_prefix(network, "network/", rename_outputs=False)
    network.opset_import.append(helper.make_opsetid("ai.onnx.ml", 2))
    return compose.merge_models(prepare, network, io_map=[("prepare/rows", f"network/{input_name}")])
