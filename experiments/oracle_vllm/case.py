"""What is scheduled: a trace, the engine's settings, and the policy of ours that stands for them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ooco_gym.errors import UserError
from ooco_gym.workload import Trace

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

    def __post_init__(self) -> None:
        if self.policy not in POLICIES:
            raise UserError(f"policy '{self.policy}' has no counterpart in the engine; expected one of: "
                            f"{', '.join(POLICIES)}")
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise UserError(f"max_num_batched_tokens={self.max_num_batched_tokens} is below max_num_seqs="
                            f"{self.max_num_seqs}, which the engine refuses")
        # The engine needs no memory for the last token; our simulator turns away what leaves none for one more.
        whole = self.trace.prompt_tokens.astype(np.int64) + self.trace.output_tokens + 1
        room = (self.kv_blocks - 1) * self.block_tokens
        if len(whole) and whole.max() > room:
            slot = int(whole.argmax())
            raise UserError(f"request {slot} of '{self.trace.name}' needs {whole[slot]} tokens of KV memory, but "
                            f"kv_blocks={self.kv_blocks} hold {room}; give more blocks")

    def settings(self) -> dict[str, Any]:
        """The engine's settings, and how many tokens share a hash."""
        return {"policy": POLICIES[self.policy], "num_blocks": self.kv_blocks, "block_tokens": self.block_tokens,
                "max_num_seqs": self.max_num_seqs, "max_num_batched_tokens": self.max_num_batched_tokens,
                "prefix_caching": self.prefix_caching, "hash_tokens": HASH_TOKENS}

    def columns(self) -> dict[str, np.ndarray]:
        """The requests, as the driver reads them."""
        trace, n = self.trace, len(self.trace)
        offsets, values = trace.prefix_hashes or (np.zeros(n + 1, np.int64), np.zeros(0, np.int64))
        return {"arrival_ps": np.rint(trace.arrival_s * _PS_PER_S).astype(np.int64),
                "prompt_tokens": trace.prompt_tokens, "output_tokens": trace.output_tokens,
                "priority": 1 - trace.online.astype(np.int64), "hash_offsets": offsets, "hash_values": values}
