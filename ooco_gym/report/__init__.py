"""How results look: tables (terminal, Markdown, HTML) and numbers as text, self-contained pages of figures, progress.

Every command and study writes with these modules: `tables`, `pages` and `terminal`. They know nothing of simulation;
what runs came to is in `ooco_gym.render`. Rich and Plotly are imported where something is shown or drawn.
"""

from ooco_gym.report.pages import (
    Section,
    command_line,
    curve,
    errors,
    page,
    plot,
    write_page,
)
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
    plain_table,
    with_interval,
)
from ooco_gym.report.terminal import console, progress, show_notes, track

__all__ = ["NONE", "Column", "Section", "Table", "as_text", "at_least", "command_line", "console", "curve", "duration",
           "errors", "joined", "minus", "number", "page", "percent", "plain_table", "plot", "progress", "show_notes",
           "track", "with_interval", "write_page"]
