"""Metrics of a run: quality of online service, offline service, waste; the request table; intervals."""

from ooco_gym.metrics.requests import requests_table, write_requests
from ooco_gym.metrics.summary import summarise

__all__ = ["requests_table", "summarise", "write_requests"]
