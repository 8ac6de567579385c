"""A report of runs to look at: one HTML file that opens anywhere, or pages for a paper."""

from __future__ import annotations

from fedmm.reporting.html.collect import collect_runs
from fedmm.reporting.html.page import write_html
from fedmm.reporting.html.pdf import write_pdf, write_png

__all__ = ["collect_runs", "write_html", "write_pdf", "write_png"]
