"""Azure LLM inference traces, 2023 and 2024 (github Azure/AzurePublicDataset): dates, context and generated tokens."""

from __future__ import annotations

from ooco_gym.workload.formats.base import Clock, Draft, TraceFormat, output_tokens, prompt_tokens, read_ticks
from ooco_gym.workload.tables import Table

_CLOCK = Clock("date")


def _read(table: Table) -> Draft:
    return Draft(ticks=read_ticks(table, "TIMESTAMP", _CLOCK), clock=_CLOCK,
                 prompt_tokens=prompt_tokens(table, "ContextTokens"),
                 output_tokens=output_tokens(table, "GeneratedTokens", zero_allowed=True), drop_without_output=True)


AZURE = TraceFormat("azure", ("TIMESTAMP", "ContextTokens", "GeneratedTokens"), (), _read)
