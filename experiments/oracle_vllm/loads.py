"""The traces of the comparison: online and offline requests by our generators, and the engine that they meet."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from experiments.oracle_vllm.case import Case
from ooco_gym.errors import unknown
from ooco_gym.workload import Trace, load_workload, merge, workload_mean_rate


@dataclass(frozen=True)
class Load:
    """Requests and an engine's memory.

    Attributes:
        about: in a few words.
        online: workload of the online requests (a name or a mapping), and how many arrive a second.
        offline: the same of the offline ones.
        kv_blocks: the engine's memory in blocks of 16 tokens.
        prefix_caching: whether what prompts share is kept.
    """

    about: str
    online: tuple[Any, float]
    offline: tuple[Any, float]
    kv_blocks: int
    prefix_caching: bool = False

    def trace(self, requests: int, seed: int) -> Trace:
        """The first `requests` requests, of both classes together."""
        seconds = 2.0 * requests / (self.online[1] + self.offline[1])
        parts = [load_workload(name, duration_s=seconds, seed=seed, rate_scale=rate / workload_mean_rate(name))
                 .with_online(online) for (name, rate), online in ((self.online, True), (self.offline, False))]
        return merge(*parts).take(slice(requests))

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
    "shared": Load("prompts that begin alike, nine tenths of their tokens", ("few_shot", 10.0), ("few_shot", 10.0),
                   5_000, prefix_caching=True),
    "shared_saturated": Load("prompts of ten kinds with long answers, memory short", (_REASONING, 8.0),
                             (_REASONING, 8.0), 1_500, prefix_caching=True),
}


def load_named(name: str) -> Load:
    """Returns one of `LOADS`.

    Raises:
        UserError: there is none of this name.
    """
    if name not in LOADS:
        raise unknown("load", name, LOADS)
    return LOADS[name]
