"""The traces of the comparison: online and offline requests by our generators, and the engine that they meet."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from experiments.oracle_vllm.case import Case
from ooco_gym.errors import unknown
from ooco_gym.workload import Trace, load_workload, merge, workload_mean_rate


@dataclass(frozen=True)
class Load:
    """Requests and an engine's memory.

    Attributes:
        about: in a few words.
        online: workload of the online requests (a name or a mapping), and how many arrive a second.
        offline: the same of the offline ones; None: half of the former are offline, drawn at random.
        kv_blocks: the engine's memory in blocks of 16 tokens.
        prefix_caching: whether what prompts share is kept.
    """

    about: str
    online: tuple[Any, float]
    offline: tuple[Any, float] | None
    kv_blocks: int
    prefix_caching: bool = False

    def trace(self, requests: int, seed: int) -> Trace:
        """The first `requests` requests, of both classes together."""
        parts = [self.online] if self.offline is None else [self.online, self.offline]
        seconds = 2.0 * requests / sum(rate for _, rate in parts)
        traces = [load_workload(name, duration_s=seconds, seed=seed, rate_scale=rate / workload_mean_rate(name))
                  .with_online(place == 0) for place, (name, rate) in enumerate(parts)]
        trace = merge(*traces).take(slice(requests))
        if self.offline is None:
            trace = replace(trace, online=np.random.Generator(np.random.Philox(seed)).random(len(trace)) < 0.5)
        return trace

    def case(self, policy: str, requests: int, seed: int) -> Case:
        """This load under one of our policies."""
        return Case(self.trace(requests, seed), policy, self.kv_blocks, prefix_caching=self.prefix_caching)


_REASONING = {"name": "few_shot", "sharing": {"form": "few_shot", "ratio": 0.8, "groups": 10, "zipf": 0.0}, "lengths": {
    "prompt": {"weights": [1.0], "mu": [7.0], "sigma": [0.4], "clip": [600, 4096]},
    "output": {"weights": [1.0], "mu": [5.0], "sigma": [0.8], "clip": [1, 1024]}}}

LOADS = {
    "light": Load("conversations, memory to spare", ("azure_conv_2023", 2.0), ("sharegpt", 1.0), 40_000),
    "saturated": Load("the same, faster than they are served, memory short", ("azure_conv_2023", 8.0),
                      ("sharegpt", 4.0), 3_000),
    "shared": Load("prompts that begin alike, nine tenths of their tokens", ("few_shot", 8.0), None, 5_000,
                   prefix_caching=True),
    "shared_saturated": Load("prompts of ten kinds with long answers, memory short", (_REASONING, 16.0), None, 1_500,
                             prefix_caching=True),
}


def load_named(name: str) -> Load:
    """Returns one of `LOADS`.

    Raises:
        UserError: there is none of this name.
    """
    if name not in LOADS:
        raise unknown("load", name, LOADS)
    return LOADS[name]
