"""Synthetic traces: a workload's specification played for any window of time."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from ooco_gym.errors import UserError
from ooco_gym.workload.arrivals import draw_requests
from ooco_gym.workload.checks import number
from ooco_gym.workload.keyed import check_seed
from ooco_gym.workload.sessions import Chat
from ooco_gym.workload.sharing import BLOCK_TOKENS, hash_blocks, mixed
from ooco_gym.workload.spec import WorkloadSpec, load_spec
from ooco_gym.workload.trace import Trace

MAX_REQUESTS = 100_000_000


def generate(spec: WorkloadSpec | Mapping[str, Any] | str | os.PathLike[str], *, start_s: float = 0.0,
             duration_s: float, seed: int, rate_scale: float = 1.0, stream: str | None = None) -> Trace:
    """Generates the online requests that arrive in `[start_s, start_s + duration_s)`.

    The same (spec, seed, stream) is one endless realisation: a window holds exactly the requests that a longer one
    has there, and with a smaller `rate_scale` exactly a random part of those of a larger one, at the same times and
    with the same lengths.

    Args:
        spec: name of an embedded workload, path of a YAML file, mapping, or a parsed specification.
        start_s: seconds from midnight, >= 0; beyond 86,400 the tide goes on with the next day, bursts are new.
        duration_s: seconds, >= 0.
        seed: any whole number.
        rate_scale: multiplies the mean rate, >= 0.
        stream: keys the random numbers beside the seed; the workload's name unless given.

    Returns:
        A trace of online requests; arrival times are absolute (`start_s` is not subtracted).

    Raises:
        UserError: an unknown workload, an impossible parameter, or more than 100 million requests asked for.
    """
    workload = load_spec(spec)
    start_s = number(start_s, "start_s", 0.0, 1e9)
    duration_s = number(duration_s, "duration_s", 0.0, 1e9)
    rate_scale = number(rate_scale, "rate_scale", 0.0, 1e6)
    expected = workload.arrivals.mean_rate_per_s * rate_scale * duration_s
    if expected > MAX_REQUESTS:
        raise UserError(f"workload '{workload.name}' would have about {expected:.3g} requests in {duration_s:g} s at "
                        f"rate_scale {rate_scale:g}; at most {MAX_REQUESTS:,} are generated at once")
    if duration_s == 0 or rate_scale == 0:
        return Trace(np.zeros(0), np.zeros(0, np.int32), np.zeros(0, np.int32), name=workload.name)
    return play(workload, start_s=start_s, duration_s=duration_s, seed=check_seed(seed),
                stream=stream or workload.name, rate_scale=rate_scale)


def play(workload: WorkloadSpec, *, start_s: float, duration_s: float, seed: int, stream: str,
         rate_scale: float = 1.0) -> Trace:
    """Returns what `generate` does; arguments are not checked."""
    window = {"start_s": start_s, "duration_s": duration_s, "seed": seed, "stream": stream, "rate_scale": rate_scale}
    sharing, salt = workload.sharing, f"{stream}/{seed}/hashes"
    if isinstance(sharing, Chat):
        arrival_s, prompt, output, number, own = sharing.draw(workload.arrivals, workload.lengths, **window)
        hashes = hash_blocks(prompt, prompt // BLOCK_TOKENS, number, own, salt, sharing.common_blocks)
        return Trace(arrival_s, prompt, output, session=mixed(number, salt), prefix_hashes=hashes, name=workload.name)
    columns: list[tuple[np.ndarray, ...]] = [(np.zeros(0), *(np.zeros(0, kind) for kind in (
        np.int32, np.int32, np.int64, np.int64, np.int64)))]
    for arrival_s, draws, numbers in draw_requests(workload.arrivals, **window):
        prompt, output = workload.lengths.draw(draws)
        shared = group = np.zeros(0, np.int64)
        if sharing is not None:
            prompt, shared, group = sharing.prompts(workload.lengths, numbers, seed, stream)
        columns.append((arrival_s, prompt, output, shared, group, numbers))
    arrival_s, prompt, output, shared, group, numbers = (np.concatenate(x) for x in zip(*columns, strict=True))
    hashes = None if sharing is None else hash_blocks(prompt, shared, group, numbers, salt)
    return Trace(arrival_s, prompt, output, prefix_hashes=hashes, name=workload.name)
