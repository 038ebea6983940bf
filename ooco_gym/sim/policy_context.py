"""Context from which a policy computes its derived parameters: predicted timing, SLO, mean context."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from ooco_gym.perf import CostTable, Deployment, cost_table, decode_latency_ps
from ooco_gym.perf.timing import MixedKernel
from ooco_gym.rounding import steady
from ooco_gym.sim import state as s
from ooco_gym.sim.config import Machine, SimConfig
from ooco_gym.workload import Trace

PREFILL_ENTRIES = 16_385  # longer prefill batches are extrapolated, exactly if the chip is saturated


@lru_cache(maxsize=32)
def table_of(deployment: Deployment, max_batch: int) -> CostTable:
    """Returns the cost table of a deployment, in the size of episodes."""
    return cost_table(deployment, max_batch, PREFILL_ENTRIES - 1)


@dataclass(frozen=True)
class PolicyContext:
    """Predicted timing, SLO and mean context, from which a policy computes derived parameters."""

    strict: CostTable  # of instances that decode
    tpot_s: float
    mean_context_tokens: float
    max_batch: int
    relaxed: CostTable  # of instances that prefill
    block_tokens: int
    chip: str = ""  # the card with the least memory
    memory_bytes: float = 0.0

    def largest_batch(self, share: float) -> int:
        """Largest decode batch at the mean context whose step stays within `share` of the TPOT SLO; at least 1."""
        bound = share * self.tpot_s * s.PS_PER_S
        low, high = 1, self.max_batch
        while low < high:
            middle = (low + high + 1) // 2
            if decode_latency_ps(self.strict, middle, int(middle * self.mean_context_tokens)) <= bound:
                low = middle
            else:
                high = middle - 1
        return low


def policy_context(machines: Sequence[Machine], trace: Trace | np.ndarray, sim: SimConfig) -> PolicyContext:
    """Returns the context for a trace, or for `State.requests`.

    The mean context length weighs each request by its decode steps.
    """
    strict = next((machine for machine in machines if machine.role == "strict"), machines[-1])
    if isinstance(trace, Trace):
        prompt, output = trace.prompt_tokens, trace.output_tokens.astype(np.float64)
    else:
        prompt, output = trace["prompt_tokens"], trace["output_tokens"].astype(np.float64)
    context = prompt + 0.5 * output
    mean = float((context * output).sum() / output.sum()) if len(trace) else 1.0
    decode = _believed(strict.deployment, sim.max_batch, sim.belief_factor)
    prefill = _believed(machines[0].deployment, sim.max_batch, sim.belief_factor)
    chip = min((machine.deployment.chip for machine in machines), key=lambda one: one.memory_bytes)
    return PolicyContext(decode, sim.slo.tpot_s, mean, sim.max_batch, prefill, sim.block_tokens, chip.name,
                         chip.memory_bytes)


@lru_cache(maxsize=32)
def _believed(deployment: Deployment, max_batch: int, factor: float) -> CostTable:
    """A cost table with all latencies times `factor`, the policy's prediction (docs/protocol.md)."""
    table = table_of(deployment, max_batch)
    if factor == 1.0:
        return table
    names = ("decode_lines", "attention_lines", "prefill_ps", "head_ps", "shared_ps")
    scaled = {name: np.rint(getattr(table, name) * factor).astype(np.int64) for name in names}
    seconds = ("roofs_s", "launch_s", "linear_s", "critical_s")
    parts = {name: getattr(table.attention, name) * factor for name in seconds}
    grid = table.attention_grid + steady(np.log2(factor)) if table.attention_grid.size else table.attention_grid
    return table._replace(**scaled, prefill_slope_ps=round(table.prefill_slope_ps * factor),
                          attention=table.attention._replace(**parts), attention_grid=grid,
                          mixed=table.mixed and _scaled(table.mixed, factor),
                          decode_skew=(factor * table.decode_skew[0], table.decode_skew[1]))


def _scaled(mixed: MixedKernel, factor: float) -> MixedKernel:
    """A kernel of chunks and decodes with all times times `factor`."""
    seconds = ("launch_s", "chunk_s", "critical_s", "skew_s")
    return mixed._replace(**{name: factor * getattr(mixed, name) for name in seconds})
