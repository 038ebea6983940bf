"""One simulation, as a worker process runs it. Apart, because stored results are keyed by what this module imports."""

from __future__ import annotations

import time
from typing import Any

from ooco_gym.metrics.summary import summarise
from ooco_gym.report.terminal import remarks
from ooco_gym.scenario import Scenario
from ooco_gym.simulation import simulate

NO_SAMPLES_S = 1e7  # an interval that no run is long enough for: samples over time are not needed here


def simulate_summary(scenario: Scenario, policy: str) -> dict[str, Any]:
    """Simulates one scenario; returns its summary with the CPU time it took, `cpu_s`, and what was remarked."""
    begun = time.process_time()
    with remarks() as said:
        summary = summarise(simulate(scenario, policy=policy, sample_s=NO_SAMPLES_S))
    return {**summary, "cpu_s": time.process_time() - begun, **({"remarks": said} if said else {})}
