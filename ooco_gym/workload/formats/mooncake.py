"""Mooncake traces (github kvcache-ai/Mooncake): JSON lines with milliseconds, lengths and prefix block hashes."""

from __future__ import annotations

from ooco_gym.workload.formats.base import Clock, Draft, TraceFormat, output_tokens, prompt_tokens, read_ticks
from ooco_gym.workload.tables import Table

_CLOCK = Clock("ms")


def _read(table: Table) -> Draft:
    hashes = None
    if "hash_ids" in table.columns:
        hashes = table.integer_lists("hash_ids", "a list of whole numbers")
    return Draft(ticks=read_ticks(table, "timestamp", _CLOCK), clock=_CLOCK,
                 prompt_tokens=prompt_tokens(table, "input_length"),
                 output_tokens=output_tokens(table, "output_length", zero_allowed=True), prefix_hashes=hashes,
                 drop_without_output=True)


MOONCAKE = TraceFormat("mooncake", ("timestamp", "input_length", "output_length"), ("hash_ids",), _read)
