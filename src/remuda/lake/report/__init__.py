"""The report: one HTML page with plots, made from the tables of the lake.

`gather` asks Spark for small aggregates and puts them into `ReportData`; `render` makes the page from that
alone, so a page can be made, and tested, without Spark. `plots/` are functions from the data to inline SVG;
`markup.py` is the only place that writes a tag, and it escapes everything that is not markup already.
"""

from remuda.lake.report.data import ReportData
from remuda.lake.report.gathering import gather
from remuda.lake.report.page import render

__all__ = ["ReportData", "gather", "render"]
