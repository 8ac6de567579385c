"""Use finished runs: predict, calibrate, evaluate and export."""

from __future__ import annotations

from fedmm.inference.calibrate import Calibration, calibrate
from fedmm.inference.evaluate import Evaluation, evaluate, rows_named
from fedmm.inference.export import Exported, export_model
from fedmm.inference.load_run import FinishedRun, open_run
from fedmm.inference.predict import Predicted, open_rows, predict_rows, prediction_file

__all__ = [
    "Calibration",
    "Evaluation",
    "Exported",
    "FinishedRun",
    "Predicted",
    "calibrate",
    "evaluate",
    "export_model",
    "open_rows",
    "open_run",
    "predict_rows",
    "prediction_file",
    "rows_named",
]
