"""Studies of figures and claims on made-up results, which have a number for every name: nothing is simulated."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from experiments import plays, study
from experiments.registry import Figure, Test

ROWS = {plays.over_time: ("hour",), plays.traffic: ("hour",), plays.roofline: ("phase", "size", "context")}


def _measured(points: Any, seeds: Any, hold: Any, jobs: Any) -> Any:
    found = []
    for point in points:
        run = point.run.func if isinstance(point.run, partial) else point.run
        one: Any = {}
        if run in ROWS:
            labels = {"hour": (1.0, 2.0, 3.0), "phase": ("prefill", "decode"), "size": plays.SIZES,
                      "context": (0, *plays.CONTEXTS)}
            at: list[dict[str, Any]] = [{}]
            for axis in ROWS[run]:
                at = [{**one, axis: label} for one in at for label in labels[axis]]
            one = {"rows": [{"at": each, **dict.fromkeys(NAMES, 1.0 + 0.1 * place)} for place, each in enumerate(at)]}
        found.append((point, [one for _ in seeds]))
    return found


NAMES = ("online_per_s", "swing", "expected_most", "covered", "kv_share", "online_active", "offline_active", "hit_rate",
         "online_total_tokens_per_s", "offline_total_tokens_per_s", "latency_s", "tokens_per_s", "compute_share",
         "saturation_tokens")


def answers_of(figure: Figure, monkeypatch: Any, quick: bool = False) -> tuple[list[Test], study.Study]:
    """A figure's tests on made-up results, and its study; its points are those that would be simulated."""
    monkeypatch.setattr(study, "measure", _measured)
    crossed = {"rate": np.ones(4), "total_tokens_per_s": np.ones(4)}
    monkeypatch.setattr(study, "_crossed", lambda found: crossed)
    monkeypatch.setattr(study, "_number", lambda name, found: found.get(name, 1.0 + 0.01 * len(name)))
    jobs: Any = None
    one = study.Study(figure, jobs, (1, 2), quick)
    with np.errstate(all="ignore"):
        return one.tests(), one
