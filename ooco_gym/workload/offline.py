"""Offline load: the work without a deadline that fills what online requests leave free."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from ooco_gym.errors import UserError, unknown
from ooco_gym.workload.checks import number
from ooco_gym.workload.generate import MAX_REQUESTS
from ooco_gym.workload.lengths import LengthModel, generate_lengths
from ooco_gym.workload.spec import load_lengths
from ooco_gym.workload.trace import Trace

OFFLINE_MODES = ("rate", "backlog", "jobs")
"""Requests evenly spaced; more than can be served, there from the start; a finite set, there from the start."""
BACKLOG_JOBS_PER_S = 20.0
"""How many jobs a second a backlog holds unless told: several times what a pair of instances serves of a 7B model."""


def offline_load(mode: str, *, duration_s: float, seed: int, rate: float | None = None, jobs: int | None = None,
                 lengths: LengthModel | Mapping[str, Any] | str | os.PathLike[str] = "ooc_offline",
                 start_s: float = 0.0) -> Trace:
    """Generates offline requests (PROTOCOL: `offline.mode`).

    Request i's lengths depend on (lengths, seed, i) only, in every mode and at every rate, so that rates are paired.

    Args:
        mode: `rate`: request i arrives at `start_s + i / rate`, up to `start_s + duration_s` (not included);
            `backlog`: all are there at `start_s`, and there are more than will be served: `jobs`, or 20 for each
            second of `duration_s`; `jobs`: the finite set of `jobs` requests, all there at `start_s`.
        duration_s: seconds, >= 0.
        seed: any whole number.
        rate: requests per second, >= 0; needed by mode `rate`.
        jobs: how many, >= 0; needed by mode `jobs`.
        lengths: name of `conf/offline`, path of a YAML file, mapping `{prompt, output}`, or a parsed model.
        start_s: seconds, >= 0.

    Returns:
        A trace of offline requests, times absolute.

    Raises:
        UserError: unknown mode, a missing or negative rate or number of jobs.
    """
    if mode not in OFFLINE_MODES:
        raise unknown("offline mode", mode, OFFLINE_MODES)
    start_s = number(start_s, "start_s", 0.0, 1e9)
    duration_s = number(duration_s, "duration_s", 0.0, 1e9)
    if mode == "rate":
        if rate is None:
            raise UserError("offline.rate is missing: offline.mode 'rate' needs requests per second >= 0")
        rate = number(rate, "offline.rate (requests per second)", 0.0, 1e6)
        count = _limited(duration_s * rate, "offline.rate")
        arrival_s = start_s + np.arange(count) / (rate or 1.0)
        arrival_s = arrival_s[arrival_s < start_s + duration_s]
    else:
        if jobs is None and mode == "jobs":
            raise UserError("offline.jobs is missing: offline.mode 'jobs' needs a number of requests >= 0")
        wanted = duration_s * BACKLOG_JOBS_PER_S if jobs is None else number(jobs, "offline.jobs", 0.0, MAX_REQUESTS)
        if jobs is not None and wanted != int(wanted):
            raise UserError(f"offline.jobs must be a whole number, found {jobs!r}")
        arrival_s = np.full(_limited(wanted, "offline.jobs"), start_s)
    model = lengths if isinstance(lengths, LengthModel) else load_lengths(lengths, prefer="offline")
    prompt, output = generate_lengths(model, len(arrival_s), seed, stream="offline")
    return Trace(arrival_s, prompt, output, np.zeros(len(arrival_s), bool), name=f"offline-{mode}")


def _limited(count: float, key: str) -> int:
    if count > MAX_REQUESTS:
        raise UserError(f"{key}: about {count:.3g} offline requests are more than the {MAX_REQUESTS:,} allowed")
    return math.ceil(count)
