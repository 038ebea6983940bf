"""Azure LLM inference traces, 2023 and 2024 (github Azure/AzurePublicDataset): dates, context and generated tokens."""

from __future__ import annotations

from ooco_gym.workload.formats.base import Draft, TraceFormat, output_tokens, prompt_tokens
from ooco_gym.workload.tables import Table

_DATE = "a date and time such as 2023-11-16 18:15:46.680590"


def _read(table: Table) -> Draft:
    moments_ns = table.timestamps_ns("TIMESTAMP", _DATE)
    return Draft(arrival_s=(moments_ns - moments_ns.min()) / 1e9, prompt_tokens=prompt_tokens(table, "ContextTokens"),
                 output_tokens=output_tokens(table, "GeneratedTokens", zero_allowed=True), drop_without_output=True,
                 notes=("times count from the first request",))


AZURE = TraceFormat("azure", ("TIMESTAMP", "ContextTokens", "GeneratedTokens"), (), _read)
