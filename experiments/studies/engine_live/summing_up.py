"""What the cells come to: the simulator's order against the engine's, its gains against the measured ones, tables."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.stats import kendalltau

BASE = "vllm_priority"
_SLACK = 1e-9


def _score(figures: dict[str, float], budget: float) -> float:
    """Offline throughput where the violations stay within the budget; else, negative, how far they are beyond it."""
    over = figures["violation_rate"] - budget
    return figures["offline_tokens_per_s"] if over <= _SLACK else -over


def ranking(found: dict[str, Any]) -> list[dict[str, Any]]:
    """For each load the schedulers in order of offline throughput within the violation budget (those beyond it last, by
    their violations), measured and predicted, and Kendall's tau between both."""
    budget, rows = found["promise"]["budget"], []
    for load in found["loads"]:
        runs = [run for run in found["runs"] if run["load"] == load]
        scores = {kind: {run["scheduler"]: _score(run[kind], budget) for run in runs}
                  for kind in ("measured", "predicted")}
        orders = {kind: sorted(scores[kind], key=scores[kind].__getitem__, reverse=True) for kind in scores}
        names = list(scores["measured"])
        tau = kendalltau([scores["measured"][name] for name in names], [scores["predicted"][name] for name in names])
        plain = kendalltau(*([run[kind]["offline_tokens_per_s"] for run in runs] for kind in scores))
        rows.append({"load": load, "kendall_tau": float(np.asarray(tau)[0]),
                     "same": orders["measured"] == orders["predicted"],
                     "kendall_tau_throughput": float(np.asarray(plain)[0]), **orders})
    return rows


def ratios(found: dict[str, Any]) -> list[dict[str, Any]]:
    """Offline throughput over vLLM's by priority, measured and predicted, and whether the predicted gain is within a
    third of the measured one."""
    rows = []
    for load in found["loads"]:
        runs = {run["scheduler"]: run for run in found["runs"] if run["load"] == load}
        for name, run in runs.items():
            if name == BASE or BASE not in runs:
                continue
            one = {kind: run[kind]["offline_tokens_per_s"] / max(1e-9, runs[BASE][kind]["offline_tokens_per_s"])
                   for kind in ("measured", "predicted")}
            gain = {kind: value - 1.0 for kind, value in one.items()}
            near = abs(gain["predicted"] - gain["measured"]) <= abs(gain["measured"]) / 3.0
            rows.append({"load": load, "scheduler": name, **one, "gain_within_a_third": near})
    return rows


def table(found: dict[str, Any]) -> str:
    """The figures as Markdown."""
    lines = ["| load | scheduler | offline tokens/s | sim. | violations | sim. | TTFT P50 ms | sim. | P99 | sim. | "
             "TPOT P50 ms | sim. | preemptions | sim. |", "|---|---|" + "---:|" * 12]
    for run in sorted(found["runs"], key=lambda run: list(found["loads"]).index(run["load"])):
        cells = []
        for key, scale, form in (("offline_tokens_per_s", 1, ".0f"), ("violation_rate", 100, ".1f"),
                                 ("ttft_p50_s", 1e3, ".0f"), ("ttft_p99_s", 1e3, ".0f"), ("tpot_p50_s", 1e3, ".1f"),
                                 ("preemptions", 1, ".0f")):
            low, high = (scale * one for one in run["spread"][key])
            spread = f" ({low:{form}}–{high:{form}})" if key in ("offline_tokens_per_s", "violation_rate") else ""
            unit = " %" if key == "violation_rate" else ""
            cells += [f"{scale * run['measured'][key]:{form}}{unit}{spread}",
                      f"{scale * run['predicted'][key]:{form}}{unit}"]
        lines.append(f"| {run['load']} | {run['scheduler']} | " + " | ".join(cells) + " |")
    lines += ["", "| load | order measured | order predicted | Kendall's tau | of throughput alone |",
              "|---|---|---|---:|---:|"]
    for one in found["ranking"]:
        lines.append(f"| {one['load']} | {', '.join(one['measured'])} | {', '.join(one['predicted'])} | "
                     f"{one['kendall_tau']:.2f} | {one['kendall_tau_throughput']:.2f} |")
    lines += ["", "| load | scheduler | offline throughput over vllm_priority | predicted | gain within a third |",
              "|---|---|---:|---:|---|"]
    for one in found["ratios"]:
        lines.append(f"| {one['load']} | {one['scheduler']} | {one['measured']:.2f} | {one['predicted']:.2f} | "
                     f"{'yes' if one['gain_within_a_third'] else 'no'} |")
    return "\n".join(lines) + "\n"
