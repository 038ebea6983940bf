"""Presentation of the outcomes of runs, at the terminal and as a page."""

from ooco_gym.render.outcome import Outcome
from ooco_gym.render.page import outcome_of, write_report

__all__ = ["Outcome", "outcome_of", "write_report"]
