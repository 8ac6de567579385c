"""Finished runs read back from their folders, drawn and tabulated. Nothing here trains."""

from __future__ import annotations

from fedmm.reporting.figures import draw_comparison, draw_run
from fedmm.reporting.read import Boundary, Comparison, Run, Samples, Series, read_comparison, read_kind, read_run
from fedmm.reporting.strips import SampleBlock, draw_sheet
from fedmm.reporting.tables import SummaryRow, comparison_rows, markdown_table, rich_table, validator_table

__all__ = [
    "Boundary",
    "Comparison",
    "Run",
    "SampleBlock",
    "Samples",
    "Series",
    "SummaryRow",
    "comparison_rows",
    "draw_comparison",
    "draw_run",
    "draw_sheet",
    "markdown_table",
    "read_comparison",
    "read_kind",
    "read_run",
    "rich_table",
    "validator_table",
]
