"""The request table of a run as Arrow: one row a request, the content of `requests.parquet`."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import numpy as np

from ooco_gym.files import atomic_write
from ooco_gym.metrics.quality import judge
from ooco_gym.metrics.summary import rules_of
from ooco_gym.sim.state import FINISHED, PS_PER_S

if TYPE_CHECKING:
    import pyarrow as pa

    from ooco_gym.simulation import Run


def requests_table(run: Run, everything: bool = False) -> pa.Table:
    """Builds the table of a run's requests.

    Args:
        run: a finished run.
        everything: also the requests of warm-up and drain, whose arrivals lie outside the measured window.

    Returns:
        A table with the columns `id` (int32, index among all requests of the run), `class` ("online" or "offline"),
        `arrival_s` (float64, like the other times in seconds since the start of the measured window), `prompt_tokens`,
        `output_tokens` (int32), `first_token_s`, `finish_s` (float64, null where it has not come to that),
        `generated_tokens` (int32), `wasted_tokens` (int64), `evictions`, `migrations` (int32) and `violated` (bool;
        always false for offline requests). Equal runs give equal bytes.
    """
    import pyarrow as pa

    requests = run.requests
    violated = judge(requests, rules_of(run)).violated & (requests["online"] == 1)
    rows = np.arange(len(requests)) if everything else np.flatnonzero(requests["counted"] == 1)
    chosen, start_ps = requests[rows], round(run.window_s[0] * PS_PER_S)
    started, finished = chosen["generated_tokens"] >= 1, chosen["status"] == FINISHED
    classes = pa.DictionaryArray.from_arrays(pa.array(chosen["online"].astype(np.int8)), ["offline", "online"])
    return pa.table({
        "id": pa.array(rows.astype(np.int32)),
        "class": classes.cast(pa.string()),
        "arrival_s": pa.array((chosen["arrival_ps"] - start_ps) / PS_PER_S),
        "prompt_tokens": _plain(chosen, "prompt_tokens"),
        "output_tokens": _plain(chosen, "output_tokens"),
        "first_token_s": pa.array((chosen["first_token_ps"] - start_ps) / PS_PER_S, mask=~started),
        "finish_s": pa.array((chosen["finish_ps"] - start_ps) / PS_PER_S, mask=~finished),
        "generated_tokens": _plain(chosen, "generated_tokens"),
        "wasted_tokens": _plain(chosen, "wasted_tokens"),
        "evictions": _plain(chosen, "evictions"),
        "migrations": _plain(chosen, "migrations"),
        "violated": pa.array(violated[rows]),
    })


def write_requests(run: Run, path: str | os.PathLike[str]) -> None:
    """Writes `requests_table(run)` as Parquet, atomically."""
    from pyarrow import parquet

    with atomic_write(path) as temporary:
        parquet.write_table(requests_table(run), temporary)


def _plain(requests: np.ndarray, field: str) -> pa.Array:
    import pyarrow as pa

    return pa.array(np.ascontiguousarray(requests[field]))
