"""BurstGPT traces (github HPMLL/BurstGPT): CSV with seconds, tokens and, in later versions, sessions."""

from __future__ import annotations

from ooco_gym.workload.formats.base import Clock, Draft, TraceFormat, output_tokens, prompt_tokens, read_ticks
from ooco_gym.workload.tables import Table
from ooco_gym.workload.trace import NO_SESSION

_CLOCK = Clock("s")


def _read(table: Table) -> Draft:
    session = None
    if "Session ID" in table.columns:
        session = table.integers("Session ID", "a whole number >= 0, or nothing", 0, 2**63 - 1, missing=NO_SESSION)
    return Draft(ticks=read_ticks(table, "Timestamp", _CLOCK), clock=_CLOCK,
                 prompt_tokens=prompt_tokens(table, "Request tokens"),
                 output_tokens=output_tokens(table, "Response tokens", zero_allowed=True), session=session,
                 drop_without_output=True)


BURSTGPT = TraceFormat("burstgpt", ("Timestamp", "Request tokens", "Response tokens"),
                       ("Model", "Total tokens", "Log Type", "Session ID", "Elapsed time"), _read)
