"""The record of a simulation's result, which `ooco_gym.metrics` reads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ooco_gym.perf.deployment import validity_warnings
from ooco_gym.scenario import ResolvedScenario
from ooco_gym.sim.edges import Edge
from ooco_gym.workload import Turns


@dataclass(frozen=True)
class RunRecord:
    """Result of a simulation, without metrics. Times in the arrays are picoseconds since the start of the warm-up."""

    scenario: ResolvedScenario
    policy: str
    params: dict[str, Any]
    requests: np.ndarray  # REQUEST[n]
    instances: np.ndarray  # INSTANCE[m]
    itl: np.ndarray  # int64[ITL_BINS], inter-token times of counted online requests (bins of 2 %)
    window_s: tuple[float, float]  # in which service is measured
    counters: dict[str, int]  # `sim.state.Totals`
    samples: dict[str, np.ndarray]  # from `_sample`, time first: (T,) or (T, instances)
    simulated_s: float
    wall_s: float
    notes: tuple[str, ...] = ()  # sentences on what the trace's reader repaired, dropped or doubts
    class_id: np.ndarray | None = None  # int8[n], indices in `scenario.classes`; None without classes
    due_ps: np.ndarray | None = None  # int64[n], deadlines of requests; None if none has one
    turns: Turns | None = None  # dependencies of closed sessions; None if sessions are open
    host_blocks: int | None = None  # of host memory as second tier of the prefix cache; None without one
    arrivals_s: tuple[float, float] | None = None  # in which arriving requests count; None: `window_s`
    done: Edge | None = None  # what was done between the window's edges; None: not recorded
    start_tokens: np.ndarray | None = None  # int32[n], `Edge.computed_tokens` at the window's start
    job: np.ndarray | None = None  # int64[n], `Trace.job`
    least_ps: np.ndarray | None = None  # int64[2, n], `sim.build.least_ps`
    tides: np.ndarray | None = None  # `State.tides` of the intervals that are over; None of a fixed fleet

    @property
    def leaves(self) -> bool:
        """Whether classes let requests leave before they are done."""
        return any(one.leaves for one in self.scenario.classes)

    @property
    def arrival_window_s(self) -> tuple[float, float]:
        """Start and end of the time in which arriving requests count; for a trace simulated to its
        last request's end, the window is longer."""
        return self.arrivals_s or self.window_s

    @property
    def range_warnings(self) -> list[str]:
        """Sentences on sizes of this run beyond the ranges that its chips' numbers were fitted on."""
        served = self.requests["generated_tokens"] > 0
        if not served.any():
            return []
        prompt, context = self.requests["prompt_tokens"][served], self.requests["generated_tokens"][served]
        context += prompt
        sampled = [self.samples[key] for key in ("urgent", "offline") if len(self.samples.get(key, ()))]
        batch = max((int(counts.max()) for counts in sampled), default=None)
        tokens = int(prompt.max())
        budget = self.params.get("max_num_batched_tokens", self.params.get("chunk_size"))
        if budget and all(role == "mixed" for role, _ in self.scenario.deployments):
            tokens = min(tokens, int(budget))  # longer prompts come in chunks
        longest = {"max_batch": batch, "max_tokens": tokens, "max_context": int(context.max())}
        deployments = dict.fromkeys(one for _, one in self.scenario.deployments)
        return list(dict.fromkeys(line for one in deployments for line in validity_warnings(one, **longest)))
