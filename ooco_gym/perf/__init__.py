"""Latency of a batch on a chip, and what fits: specifications, roofline, cost tables (OOCO, section
3.3)."""

from ooco_gym.perf.chip import ChipSpec, list_chips, load_chip
from ooco_gym.perf.deployment import Deployment
from ooco_gym.perf.model import ModelSpec, list_models, load_model
from ooco_gym.perf.table import (
           CostTable,
           cost_table,
           decode_latency_ps,
           mixed_latency_ps,
           prefill_alone_ps,
           prefill_latency_ps,
)
from ooco_gym.perf.timing import list_timings

__all__ = ["ChipSpec", "CostTable", "Deployment", "ModelSpec", "cost_table", "decode_latency_ps", "list_chips",
           "list_models", "list_timings", "load_chip", "load_model", "mixed_latency_ps", "prefill_alone_ps",
           "prefill_latency_ps"]
