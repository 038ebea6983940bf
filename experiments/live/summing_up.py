"""What the cells come to: the simulator's order against the engine's, its gains against the measured ones, tables."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.stats import kendalltau

BASE, AS_SLOW, STREAMED = "vllm_priority", "predicted_as_slow", "offline_streamed_tokens_per_s"
KINDS = ("measured", "predicted", AS_SLOW)
_SLACK = 1e-9


def _score(figures: dict[str, float], budget: float) -> float:
    """Offline throughput where the violations stay within the budget; else, negative, how far they are beyond it."""
    over = figures["violation_rate"] - budget
    return figures[STREAMED] if over <= _SLACK else -over


def ranking(found: dict[str, Any]) -> list[dict[str, Any]]:
    """For each load the schedulers in order of offline throughput within the violation budget (those beyond it last, by
    their violations), measured and predicted, and Kendall's tau between both."""
    budget, rows = found["promise"]["budget"], []
    for load in found["loads"]:
        runs = [run for run in found["runs"] if run["load"] == load]
        scores = {kind: {run["scheduler"]: _score(run[kind], budget) for run in runs} for kind in KINDS}
        orders = {kind: sorted(scores[kind], key=scores[kind].__getitem__, reverse=True) for kind in scores}
        tokens = {kind: [run[kind][STREAMED] for run in runs] for kind in KINDS}
        row: dict[str, Any] = {"load": load}
        for kind, mark in (("predicted", ""), (AS_SLOW, "_as_slow")):
            row |= {f"kendall_tau{mark}": _tau([*scores["measured"].values()], [*scores[kind].values()]),
                    f"same{mark}": orders["measured"] == orders[kind],
                    f"kendall_tau_throughput{mark}": _tau(tokens["measured"], tokens[kind])}
        rows.append({**row, **orders})
    return rows


def _tau(ours: list[float], theirs: list[float]) -> float:
    return float(np.asarray(kendalltau(ours, theirs))[0])


def ratios(found: dict[str, Any]) -> list[dict[str, Any]]:
    """Offline throughput over vLLM's by priority, measured and predicted, and whether the predicted gain is within a
    third of the measured one."""
    rows = []
    for load in found["loads"]:
        runs = {run["scheduler"]: run for run in found["runs"] if run["load"] == load}
        for name, run in runs.items():
            if name == BASE or BASE not in runs:
                continue
            one = {kind: run[kind][STREAMED] / max(1e-9, runs[BASE][kind][STREAMED]) for kind in KINDS}
            gain = {kind: value - 1.0 for kind, value in one.items()}
            near = {kind: abs(gain[kind] - gain["measured"]) <= abs(gain["measured"]) / 3.0 for kind in KINDS}
            rows.append({"load": load, "scheduler": name, **one, "gain_within_a_third": near["predicted"],
                         "gain_within_a_third_as_slow": near[AS_SLOW]})
    return rows


def table(found: dict[str, Any]) -> str:
    """The figures as Markdown."""
    lines = ["| load | scheduler | offline output tokens/s, streamed | sim. | violations | sim. | TTFT P50 ms | sim. | "
             "P99 | sim. | TPOT P50 ms | sim. | preemptions | sim. |", "|---|---|" + "---:|" * 12]
    for run in sorted(found["runs"], key=lambda run: list(found["loads"]).index(run["load"])):
        cells = []
        for key, scale, form in ((STREAMED, 1, ".0f"), ("violation_rate", 100, ".1f"),
                                 ("ttft_p50_s", 1e3, ".0f"), ("ttft_p99_s", 1e3, ".0f"), ("tpot_p50_s", 1e3, ".1f"),
                                 ("preemptions", 1, ".0f")):
            low, high = (scale * one for one in run["spread"][key])
            spread = f" ({low:{form}}–{high:{form}})" if key in (STREAMED, "violation_rate") else ""
            unit = " %" if key == "violation_rate" else ""
            cells += [f"{scale * run['measured'][key]:{form}}{unit}{spread}",
                      f"{scale * run['predicted'][key]:{form}}{unit}"]
        lines.append(f"| {run['load']} | {run['scheduler']} | " + " | ".join(cells) + " |")
    lines += ["", "| load | order measured | order predicted | Kendall's tau | of throughput alone | order predicted "
              "as slow | Kendall's tau |", "|---|---|---|---:|---:|---|---:|"]
    for one in found["ranking"]:
        lines.append(f"| {one['load']} | {', '.join(one['measured'])} | {', '.join(one['predicted'])} | "
                     f"{one['kendall_tau']:.2f} | {one['kendall_tau_throughput']:.2f} | {', '.join(one[AS_SLOW])} | "
                     f"{one['kendall_tau_as_slow']:.2f} |")
    lines += ["", "| load | scheduler | slowness | offline output tokens/s, streamed | as slow | "
              "throughput over vllm_priority | predicted | gain within a third | predicted as slow | gain within a "
              "third |",
              "|---|---|---|---:|---:|---:|---:|---|---:|---|"]
    runs = {(run["load"], run["scheduler"]): run for run in found["runs"]}
    for one in found["ratios"]:
        run = runs[one["load"], one["scheduler"]]
        yes = ["yes" if one[key] else "no" for key in ("gain_within_a_third", "gain_within_a_third_as_slow")]
        lines.append(f"| {one['load']} | {one['scheduler']} | {min(run['slowness']):.2f}–{max(run['slowness']):.2f} | "
                     f"{run['measured'][STREAMED]:.0f} | {run[AS_SLOW][STREAMED]:.0f} | "
                     f"{one['measured']:.2f} | {one['predicted']:.2f} | {yes[0]} | {one[AS_SLOW]:.2f} | {yes[1]} |")
    return "\n".join(lines) + "\n"
