"""A report of runs to look at: one HTML file that opens anywhere, or pages for a paper."""

from __future__ import annotations

from fedmm.reporting.report.material import gather
from fedmm.reporting.report.page import write_html
from fedmm.reporting.report.paper import write_pdf, write_png

__all__ = ["gather", "write_html", "write_pdf", "write_png"]
