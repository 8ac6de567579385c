"""The paper's figures and tables, drawn from the results of their runs."""

from __future__ import annotations

from fedmm.reporting.paper.draw import draw_item
from fedmm.reporting.paper.item import Item, read_item
from fedmm.reporting.paper.results import PaperRun, read_results
from fedmm.reporting.paper.summary import results_table

__all__ = ["Item", "PaperRun", "draw_item", "read_item", "read_results", "results_table"]
