"""The paper's figures and tables, drawn from the results of their runs."""

from __future__ import annotations

from fedmm.reproduction.draw import draw_item
from fedmm.reproduction.items import Item, read_item, read_items
from fedmm.reproduction.results import RunResult, read_results
from fedmm.reproduction.tables import results_table

__all__ = ["Item", "RunResult", "draw_item", "read_item", "read_items", "read_results", "results_table"]
