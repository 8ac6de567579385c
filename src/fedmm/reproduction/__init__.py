"""The paper's figures and tables, drawn from the results of their runs."""

from __future__ import annotations

from fedmm.reproduction.draw import draw_item
from fedmm.reproduction.item import Item, read_item
from fedmm.reproduction.results import PaperRun, read_results
from fedmm.reproduction.summary import results_table

__all__ = ["Item", "PaperRun", "draw_item", "read_item", "read_results", "results_table"]
