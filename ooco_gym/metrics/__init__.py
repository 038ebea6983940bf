"""What came out of a run: quality of online service, offline service, waste; the request table; intervals."""

from ooco_gym.metrics.summary import requests_table, summarise, write_requests

__all__ = ["requests_table", "summarise", "write_requests"]
