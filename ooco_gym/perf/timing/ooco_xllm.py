"""`timing=ooco_xllm`: the roofline exactly as the open-source engine xLLM computes it (`perf_model.cpp`).

A form is one file of this package, so this short one is separate.
"""

from __future__ import annotations

import numpy as np

from ooco_gym.perf.timing import Phase, Shard, ooco

LINK_BYTES_PER_S = 10e9
"""The engine's constant for every link, kept to reproduce its numbers. With it communication
dominates 72B on four chips, so `timing=ooco` takes the chip's own link."""


class Form(ooco.Form):
    """As `ooco`, except: no overhead; links of 10 GB/s without latency; an all-reduce moves `bytes
    * (tp - 1) / tp`; the LM head is not divided over chips; key/value heads are not replicated."""

    def overhead_s(self, shard: Shard, phase: Phase) -> float:
        """Zero: the engine stores overheads and never adds them."""
        return 0.0

    def allreduce_s(self, shard: Shard, payload_bytes: np.ndarray) -> np.ndarray:
        """The engine's form: one way of the ring."""
        return self.transfer_s(shard, payload_bytes * (shard.tp - 1) / shard.tp)

    def transfer_s(self, shard: Shard, payload_bytes: np.ndarray) -> np.ndarray:
        """The engine's constant for any chip, without latency."""
        return payload_bytes / LINK_BYTES_PER_S

    def head_width(self, shard: Shard) -> int:
        """The whole vocabulary, which reproduces the engine's numbers for 72B."""
        return shard.model.vocab

    def replicated(self, shard: Shard, kv_bytes: float) -> float:
        """Key/value bytes divided by the chips, as the engine does."""
        return kv_bytes * min(shard.model.kv_heads / shard.tp, 1.0)
