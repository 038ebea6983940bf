"""Pictures and pages of what came out of runs. Plotly is imported where a figure is drawn, never with the package."""

from ooco_gym.render.page import Section, report
from ooco_gym.render.record import Record, read_record, record_of, write_samples
from ooco_gym.render.tables import Table

__all__ = ["Record", "Section", "Table", "read_record", "record_of", "report", "write_samples"]
