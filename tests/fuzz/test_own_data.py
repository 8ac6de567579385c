"""A user's own files, damaged: archives, tables and what a run remembers of them are refused, or give rows."""

from __future__ import annotations

import gzip
import io
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from fuzz.hostile import VALUES, answered, damaged, damaged_text, examples
from hypothesis import given
from hypothesis import strategies as st

from fedmm.data.columns import Column
from fedmm.data.datasets.arrays import Arrays
from fedmm.data.datasets.table import Table
from fedmm.data.inputs import ArrayInput, ImageInput, TableInput, build_input, input_table
from fedmm.runs.run_folder import read_input

INPUTS = [
    input_table(ImageInput(("a", "b"), 8, 6)),
    input_table(ArrayInput(("a", "b"), (3,), False)),
    input_table(TableInput(("a", "b"), (Column("age", 1.0, 2.0), Column("city", levels=("x",))), "sick")),
]
CSV = "who age city sick\n" + "".join(f"p{n} {n} {'xy'[n % 2]} {'ab'[n % 2] if n < 8 else ''}\n" for n in range(12))


def archive(compressed: bool) -> bytes:
    stream = io.BytesIO()
    x, y = np.arange(24.0).reshape(8, 3), np.array(["a", "b"] * 4)
    (np.savez_compressed if compressed else np.savez)(stream, source_x=x, source_y=y, target_x=x)
    return stream.getvalue()


ARCHIVES = [archive(compressed=True), archive(compressed=False)]


@given(st.sampled_from(ARCHIVES).flatmap(damaged))
@examples(40)
def test_damaged_archives(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "damaged.npz"
    path.write_bytes(content)
    pair = answered(Arrays(file=str(path)).load)
    assert pair is None or bool(torch.isfinite(pair.source.x).all())


@given(damaged_text(CSV.encode()), st.booleans())
@examples(40)
def test_damaged_tables(tmp_path_factory: pytest.TempPathFactory, content: bytes, zipped: bool) -> None:
    pytest.importorskip("pandas")
    path = tmp_path_factory.getbasetemp() / ("damaged.csv.gz" if zipped else "damaged.csv")
    path.write_bytes(gzip.compress(content) if zipped else content)
    pair = answered(Table(file=str(path), label="sick", id="who", separator=" ").load)
    assert pair is None or bool(torch.isfinite(torch.cat([pair.source.x, pair.target.x])).all())


@given(st.sampled_from(INPUTS), st.data())
@examples(60)
def test_inputs_that_were_changed(
    tmp_path_factory: pytest.TempPathFactory, table: dict[str, object], data: st.DataObject
) -> None:
    changed = {**table, data.draw(st.sampled_from([*table, "else"])): data.draw(VALUES)}
    answered(lambda: build_input(changed))
    folder = tmp_path_factory.getbasetemp()
    whole = json.dumps({"format": "fedmm-input-1", "class_names": ["a", "b"], "input": table}).encode()
    Path(folder / "input.json").write_bytes(data.draw(damaged_text(whole)))
    answered(lambda: read_input(folder))
