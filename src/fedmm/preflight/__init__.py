"""Steps before training: propose an experiment for given data, and check one."""

from __future__ import annotations

from fedmm.preflight.check import Checked, Finding, check
from fedmm.preflight.propose import propose
from fedmm.preflight.table_columns import TableOptions
from fedmm.preflight.write_experiment import DetectedData, write_experiment

__all__ = ["Checked", "DetectedData", "Finding", "TableOptions", "check", "propose", "write_experiment"]
