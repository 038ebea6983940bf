"""Presentation of results: tables (terminal, Markdown, HTML), numbers as text, self-contained
pages, progress.

All commands and studies use `tables`, `pages` and `terminal`, which are independent of the
simulation; outcomes of runs are in `ooco_gym.render`. Rich and Plotly are imported on first use.
"""

from ooco_gym.report.pages import Section, curve, errors, plot, write_page
from ooco_gym.report.tables import (
    NONE,
    Column,
    Table,
    as_text,
    at_least,
    duration,
    joined,
    minus,
    number,
    percent,
    with_interval,
)
from ooco_gym.report.terminal import console, progress, show_notes, track

__all__ = ["NONE", "Column", "Section", "Table", "as_text", "at_least", "console", "curve", "duration", "errors",
           "joined", "minus", "number", "percent", "plot", "progress", "show_notes", "track",
           "with_interval", "write_page"]
