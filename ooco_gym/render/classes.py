"""Classes of requests side by side: what each is promised and what became of it, for the terminal and for reports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ooco_gym.report import Table, duration, number, percent
from ooco_gym.report.tables import NONE

_HEAD = ("class", "promise", "arrived", "finished", "violations", "missed", "TTFT P50, P99", "TPOT P50, P99",
         "prompt, output tokens/s")


def class_table(runs: Mapping[str, Sequence[Mapping[str, Any]]]) -> Table | None:
    """What became of each class: means over runs; None where no run names classes.

    Args:
        runs: summaries by policy, of one run each seed.
    """
    rows = []
    for label, summaries in runs.items():
        mine = [one["classes"] for one in summaries if "classes" in one]
        for name in dict.fromkeys(name for classes in mine for name in classes):
            rows.append((label, *_row(name, [classes[name] for classes in mine if name in classes])))
    if not rows:
        return None
    note = ("Violations of offline classes are requests that missed their deadline, of those for which that is "
            "decided; prompt and output tokens are those of requests completed in the window.")
    if len(runs) == 1:
        return Table("Classes of requests", _HEAD, [row[1:] for row in rows], note)
    return Table("Classes of requests", ("policy", *_HEAD), rows, note)


def class_words(classes: Mapping[str, Mapping[str, Any]]) -> str:
    """The promises of a scenario's classes in a sentence."""
    return "; ".join(f"{name}: {promise_of(one)}" for name, one in classes.items())


def promise_of(one: Mapping[str, Any]) -> str:
    """What a class is promised, of a scenario's description or of a summary."""
    if not one["online"]:
        return f"finished within {_long(one['deadline_s'])}" if one["deadline_s"] is not None else "nothing"
    ttft_s, tpot_s = (one.get(f"{key}_slo_s", one.get(f"{key}_s")) for key in ("ttft", "tpot"))
    weight = "" if one["weight"] == 1 else f", weight {one['weight']:g}"
    return f"TTFT {ttft_s:g} s, TPOT {1000 * (tpot_s or 0.0):g} ms{weight}"


def _row(name: str, runs: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    def mean(key: str) -> float | None:
        values = [one[key] for one in runs if one.get(key) is not None]
        return float(np.mean(values)) if values else None

    def both(form: Any, *keys: str) -> str:
        return ", ".join(form(mean(key)) for key in keys) if mean(keys[-1]) is not None else NONE

    counts = [(word, mean(key)) for word, key in (("TTFT", "ttft_misses"), ("TPOT", "tpot_misses"),
                                                 ("deadline", "deadline_misses"), ("open", "deadline_undecided"))]
    missed = ", ".join(f"{word} {number(count)}" for word, count in counts if count is not None)
    return (name, promise_of(runs[0]), number(mean("arrived")), number(mean("finished")),
            percent(mean("violation_rate")), missed or NONE, both(duration, "ttft_p50_s", "ttft_p99_s"),
            both(duration, "tpot_p50_s", "tpot_p99_s"), both(number, "prompt_tokens_per_s", "output_tokens_per_s"))


def _long(seconds: float) -> str:
    return f"{seconds / 3600:g} h" if seconds >= 3600 else f"{seconds:g} s"
