"""Learns the weights of `adaptive_deadline` in the simulator on the measured engine.

CMA-ES with a diagonal covariance over the weights of a few features (Hansen 2016; package cmaes): each candidate plays
every load on traces of seeds that no measured cell has. Its score is the mean logarithm of its offline throughput over
that of `deadline` as it is set, less a price for violations beyond the limit. It stands apart from the study's other
parts because it knows neither engine nor requests: what a file of weights comes to is told by a function.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from agents.search.optimisers import Cma
from baselines.adaptive_deadline import LAYOUT
from ooco_gym.policy.weights import write_weights

FEATURES = ("constant", "online_rate_10s", "online_decodes", "online_prompt_tokens", "online_waiting_tokens",
            "slack_least", "slack_50", "kv_free", "offline_decodes")
_PRICE = 20.0  # of a share of violations beyond the limit, in units of the score
_SCALE = 0.5


def learn(score: Callable[[Path], Sequence[tuple[float, float, float]]], out: Path, plan: dict[str, Any]) -> Path:
    """Searches, and returns the file of the best weights.

    Args:
        score: from a file of weights to (throughput, that of the rule, violations) of each cell.
        out: folder.
        plan: `generations`, `population`, `limit` (violations that cost nothing), `seed`.
    """
    places = [row * len(LAYOUT.columns) + LAYOUT.columns.index(name) for row in range(len(LAYOUT.rows))
              for name in FEATURES]
    search = Cma(np.zeros(len(places)), 0.5, None, plan["population"], plan["seed"])
    best, kept = 0.0, np.zeros(len(LAYOUT.rows) * len(LAYOUT.columns))
    path, trial = out / "weights.npz", out / "trial.npz"
    write_weights(path, LAYOUT, kept)
    for generation in range(plan["generations"]):
        drawn, values = search.ask(), []
        for numbers in drawn:
            weights = np.zeros(kept.size)
            weights[places] = _SCALE * numbers
            write_weights(trial, LAYOUT, weights)
            values.append(worth(score(trial), plan["limit"]))
            if values[-1] > best:
                best, kept = values[-1], weights
                write_weights(path, LAYOUT, kept)
        search.tell(drawn, np.array(values))
        print(f"generation {generation + 1}: best {best:.4f}, of this one {max(values):.4f}", flush=True)
    return path


def worth(cells: Sequence[tuple[float, float, float]], limit: float) -> float:
    """Mean log ratio of the throughputs (a twentieth of the rule's mean added to both), less the price."""
    added = 0.05 * float(np.mean([rule for _, rule, _ in cells]))
    gain = np.mean([np.log((mine + added) / (rule + added)) for mine, rule, _ in cells])
    return float(gain - _PRICE * np.mean([max(0.0, violated - limit) for _, _, violated in cells]))
