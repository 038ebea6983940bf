"""One simulation of the study: its summary, and hit rate, active requests and memory over time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ooco_gym.errors import UserError

if TYPE_CHECKING:
    from ooco_gym.scenario import Scenario
    from ooco_gym.sim.driver import Run

BIN_S = 900.0


def simulate_served(scenario: Scenario, policy: str) -> dict[str, Any]:
    """Simulates a scenario; returns its summary with `curves` (`curves_of`). A worker process runs this."""
    from ooco_gym.metrics.summary import summarise
    from ooco_gym.sim.driver import simulate

    run = simulate(scenario, policy=policy, sample_s=BIN_S)
    return {**summarise(run), "curves": curves_of(run)}


def curves_of(run: Run) -> dict[str, list[float | None]]:
    """Figures of each quarter of an hour of the measured window.

    `hit_rate` is the share of prompt tokens found in the prefix cache, of the offline requests whose first token came
    in that time (None: there was none). Active requests and the share of memory that they hold are the samples that
    follow its end (the last one, where none does).
    """
    from ooco_gym.sim.state import PS_PER_S

    if "t_s" not in run.samples:
        raise UserError("echo.duration_s: the run is shorter than the interval of its samples; take 600 or more")
    begin_s, end_s = run.window_s
    edges_s = np.arange(begin_s, end_s + 1.0, BIN_S)
    offline = run.requests[(run.requests["online"] == 0) & (run.requests["first_token_ps"] > 0)]
    place = np.digitize(offline["first_token_ps"] / PS_PER_S, edges_s) - 1
    inside = (place >= 0) & (place < len(edges_s) - 1)
    bins = len(edges_s) - 1
    prompts = np.bincount(place[inside], offline["prompt_tokens"][inside], bins)
    found = np.bincount(place[inside], np.maximum(offline["cached_tokens"], 0)[inside], bins)
    online = run.requests[run.requests["online"] == 1]
    arrivals = np.histogram(online["arrival_ps"] / PS_PER_S, edges_s)[0] / BIN_S
    at = np.minimum(np.searchsorted(run.samples["t_s"], edges_s[1:] - 1e-6), len(run.samples["t_s"]) - 1)
    return {"t_s": (edges_s[:-1] + BIN_S / 2 - begin_s).tolist(),
            "hit_rate": [float(a / b) if b else None for a, b in zip(found, prompts, strict=True)],
            "online_per_s": arrivals.tolist(),
            **{name: run.samples[key][at].sum(axis=1).tolist() for name, key in (("online_active", "urgent"),
                                                                               ("offline_active", "offline"))},
            "kv_share": run.samples["kv_share"][at].mean(axis=1).tolist()}
