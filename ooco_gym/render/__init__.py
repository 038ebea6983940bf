"""Pictures and pages of what came out of runs. Plotly is imported where a figure is drawn, never with the package."""

from ooco_gym.render.comparison import report
from ooco_gym.render.record import RunRecord, read_record, record_of, write_samples

__all__ = ["RunRecord", "read_record", "record_of", "report", "write_samples"]
