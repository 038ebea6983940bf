"""What came out of runs, for the terminal and as a page. Matplotlib, Plotly and the like are not needed."""

from ooco_gym.render.outcome import Outcome
from ooco_gym.render.page import outcome_of, write_report
from ooco_gym.render.record import RunRecord, read_record, record_of

__all__ = ["Outcome", "RunRecord", "outcome_of", "read_record", "record_of", "write_report"]
