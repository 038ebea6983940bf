"""What is scheduled: requests, the engine's settings and the policy of ours that stands for them.

`LOADS` are the traces of the comparison, online and offline requests by our generators, with the engine that they meet;
`random_case` makes small cases in which memory binds at every turn: ties, block boundaries, shared beginnings.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ooco_gym.errors import UserError
from ooco_gym.sim.engine_versions import ENGINE_VERSIONS
from ooco_gym.workload import Trace, load_workload, merge, workload_mean_rate
from ooco_gym.workload.context_names import next_turns

POLICIES = {"vllm_fcfs": "fcfs", "vllm_priority": "priority"}
"""Our policies, and what the engine calls them."""
HASH_TOKENS = 512           # tokens of a prompt that one of a trace's hashes stands for
_PS_PER_S = 1e12


@dataclass(frozen=True)
class Case:
    """One run of the comparison.

    Attributes:
        trace: requests; offline ones count less under `vllm_priority`.
        policy: one of `POLICIES`.
        kv_blocks: of the engine, the null block among them.
        max_num_seqs: as the engine's option.
        max_num_batched_tokens: as the engine's option.
        prefix_caching: whether what prompts share is kept.
        block_tokens: tokens of a KV block; a divisor of 512.
        asynchronous: whether an iteration is scheduled while the one before it runs.
        watermark: as the engine's option.
        long_prefill_token_threshold: as the engine's option.
        retention: which content gives way first (`baselines/retention`); other than lru: by our class inside vLLM.
        patience_s: float64[n], time from its arrival at which a request leaves, inf: it stays; None: all stay.
        engine_version: whose schedule ours follows, one of `ENGINE_VERSIONS`; the real one follows its own.

    Raises:
        UserError: an unknown policy, a token budget below the number of sequences (the engine refuses it), or a request
            whose context cannot fit the memory (the engine would wait for ever).
    """

    trace: Trace
    policy: str
    kv_blocks: int
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    prefix_caching: bool = False
    block_tokens: int = 16
    engine_version: str = ENGINE_VERSIONS[0]
    asynchronous: bool = False
    watermark: float = 0.0
    long_prefill_token_threshold: int = 0
    retention: str = "lru"
    patience_s: np.ndarray | None = None

    def __post_init__(self) -> None:
        if self.policy not in POLICIES:
            raise UserError(f"policy '{self.policy}' has no counterpart in the engine; expected one of: "
                            f"{', '.join(POLICIES)}")
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise UserError(f"max_num_batched_tokens={self.max_num_batched_tokens} is below max_num_seqs="
                            f"{self.max_num_seqs}, which the engine refuses")
        # Neither the engine nor the simulator needs memory for the last token.
        whole = self.trace.prompt_tokens.astype(np.int64) + self.trace.output_tokens - 1
        capacity = (self.kv_blocks - 1) * self.block_tokens
        if len(whole) and whole.max() > capacity:
            slot = int(whole.argmax())
            raise UserError(f"request {slot} of '{self.trace.name}' needs {whole[slot]} tokens of KV memory, but "
                            f"kv_blocks={self.kv_blocks} hold {capacity}; give more blocks")

    def settings(self) -> dict[str, Any]:
        """The engine's settings, and how many tokens share a hash."""
        return {"policy": POLICIES[self.policy], "num_blocks": self.kv_blocks, "block_tokens": self.block_tokens,
                "max_num_seqs": self.max_num_seqs, "max_num_batched_tokens": self.max_num_batched_tokens,
                "prefix_caching": self.prefix_caching, "hash_tokens": HASH_TOKENS, "async": self.asynchronous,
                "watermark": self.watermark,
                "long_prefill_token_threshold": self.long_prefill_token_threshold, "retention": self.retention}

    def columns(self) -> dict[str, np.ndarray]:
        """The requests, as the driver reads them."""
        trace, n = self.trace, len(self.trace)
        offsets, values = trace.prefix_hashes or (np.zeros(n + 1, np.int64), np.zeros(0, np.int64))
        following = next_turns(trace)
        total = trace.prompt_tokens.astype(np.int64) + trace.output_tokens
        repeated_by = np.where((following >= 0) & (trace.prompt_tokens[following] >= total), following, -1)
        return {"repeated_by": repeated_by, "arrival_ps": np.rint(trace.arrival_s * _PS_PER_S).astype(np.int64),
                "prompt_tokens": trace.prompt_tokens, "output_tokens": trace.output_tokens,
                "quit_ps": np.zeros(0, np.int64) if self.patience_s is None else np.rint(np.minimum(
                    trace.arrival_s + self.patience_s, 1e6) * _PS_PER_S).astype(np.int64),
                "priority": 1 - trace.online.astype(np.int64), "hash_offsets": offsets, "hash_values": values}


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
                  for name, rate in parts]
        traces = [replace(one, online=np.full(len(one), one is traces[0])) for one in traces]
        trace = merge(*traces).take(slice(requests))
        if self.offline is None:
            trace = replace(trace, online=np.random.Generator(np.random.Philox(seed)).random(len(trace)) < 0.5)
        return trace

    def case(self, policy: str, requests: int, seed: int, engine_version: str = ENGINE_VERSIONS[0]) -> Case:
        """This load under one of our policies."""
        return Case(self.trace(requests, seed), policy, self.kv_blocks, prefix_caching=self.prefix_caching,
                    engine_version=engine_version)


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
_GROUPS, _OWN = 4, 1_000_000


def random_case(seed: int, engine_version: str = ENGINE_VERSIONS[0]) -> Case:
    """A case of up to 24 requests; every second one with prefix caching."""
    draws = np.random.Generator(np.random.Philox(seed))
    n, caching = int(draws.integers(2, 25)), seed % 2 == 1
    arrival_s = np.sort(np.round(draws.choice([0.0, 0.5, 3.0]) * draws.random(n), 1))
    grain, longest = int(draws.choice([1, 16, 64, HASH_TOKENS])), int(draws.choice([20, 60, 1500]))
    prompt = np.maximum(1, draws.integers(1, longest, n) // grain * grain)
    output = draws.integers(1, int(draws.choice([3, 40, 120])), n)
    needed = int((-(-(prompt + output + 1) // 16)).max())
    tokens = int(draws.choice([64, 200, 2048]))
    hashes = shared_hashes(draws, prompt) if caching else None
    trace = Trace(arrival_s, prompt, output, draws.random(n) < 0.5, prefix_hashes=hashes, name=f"small {seed}")
    return Case(trace, tuple(POLICIES)[seed // 2 % 2], needed + 1 + int(draws.choice([0, 0, 1, 3, 12])),
                int(draws.choice([2, 3, 5, 24])), tokens, caching, engine_version=engine_version)


def conversations(draws: np.random.Generator, trace: Trace) -> Trace:
    """The trace with its requests in conversations: a prompt is the turn before, its answer, and a bit more."""
    prompt, session, hashes, last = trace.prompt_tokens.copy(), np.arange(len(trace)), [], {}
    for slot in range(len(trace)):
        known: list[int] = []
        if last and draws.random() < 0.6:
            earlier = last[int(draws.choice(list(last)))]
            session[slot] = session[earlier]
            prompt[slot] = prompt[earlier] + trace.output_tokens[earlier] + draws.integers(60)
            known = hashes[earlier][: prompt[earlier] // HASH_TOKENS]
        last[int(session[slot])] = slot
        blocks = -(-int(prompt[slot]) // HASH_TOKENS)
        hashes.append([*known, *(_OWN + 1000 * slot + k for k in range(len(known), blocks))])
    offsets = np.cumsum([0, *map(len, hashes)])
    values = np.array([value for one in hashes for value in one], np.int64)
    return replace(trace, prompt_tokens=prompt, session=session, prefix_hashes=(offsets, values))


def shared_hashes(draws: np.random.Generator, prompt: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Each prompt begins like its group's, for a number of blocks; one in ten has no hashes."""
    values: list[int] = []
    offsets = [0]
    for slot, tokens in enumerate(prompt.tolist()):
        blocks = -(-tokens // HASH_TOKENS) if draws.random() < 0.9 else 0
        group, alike = int(draws.integers(_GROUPS)), int(draws.integers(blocks + 1))
        values += [1000 * group + k if k < alike else _OWN + 1000 * slot + k for k in range(blocks)]
        offsets.append(len(values))
    return np.array(offsets, np.int64), np.array(values, np.int64)
