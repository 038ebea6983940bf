"""Two schedules of one case, step by step: how far they agree, and what the requests saw."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.oracle.cases import Case

Played = dict[str, np.ndarray]
LATENCIES = ("ttft_mean_s", "ttft_p99_s", "tpot_mean_s", "tpot_p99_s", "makespan_s")


@dataclass(frozen=True)
class Agreement:
    """How far two schedules agree.

    Attributes:
        steps: of the real scheduler.
        identical: its steps for which ours, of the same number, schedules the same tokens of the same requests, and
            before which the same requests have lost their memory.
        same_times: its steps that begin and end with ours, to the picosecond.
        preemptions: of the real scheduler, and of ours.
        first: what differs in the first step that does; empty where none does.
    """

    steps: int
    identical: int
    same_times: int
    preemptions: tuple[int, int]
    first: str

    @property
    def whole(self) -> bool:
        return not self.first


def agreement(real: Played, ours: Played) -> Agreement:
    """Compares the steps of two schedules."""
    total = (len(real["start_ps"]), len(ours["start_ps"]))
    shorter, identical, first = min(total), 0, ""
    for step, wrong, lost in _differences(real, ours, shorter):
        if not wrong and lost[0] == lost[1]:
            identical += 1
        elif not first:
            first = _told(step, wrong, lost)
    if not first and total[0] != total[1]:
        first = f"step {shorter}: the real scheduler makes {total[0]} steps, ours {total[1]}"
    same = (real["start_ps"][:shorter] == ours["start_ps"][:shorter]) & (
        real["end_ps"][:shorter] == ours["end_ps"][:shorter])
    if not first and not same.all():
        first = f"step {int(np.argmin(same))}: the same tokens at other times"
    return Agreement(total[0], identical, int(same.sum()), (len(real["preempted_slot"]), len(ours["preempted_slot"])),
                     first)


def latencies(case: Case, played: Played) -> dict[str, float]:
    """`LATENCIES` in seconds, and the share of prompt tokens found in memory at the first admission."""
    columns = case.columns()
    ttft = 1e-12 * (played["first_token_ps"] - columns["arrival_ps"])
    more = columns["output_tokens"] > 1
    tpot = 1e-12 * (played["finish_ps"] - played["first_token_ps"])[more] / (columns["output_tokens"][more] - 1)
    figures = [*_mean_and_p99(ttft), *_mean_and_p99(tpot),
               1e-12 * float(played["finish_ps"].max() - columns["arrival_ps"][0])]
    return {**dict(zip(LATENCIES, figures, strict=True)),
            "cached_share": float(played["cached_tokens"].sum() / columns["prompt_tokens"].sum())}


def differences(real: dict[str, float], ours: dict[str, float]) -> dict[str, float]:
    """By how much ours differ, in percent of the real ones."""
    return {key: 100.0 * (ours[key] / real[key] - 1.0) if real[key] else 0.0 for key in LATENCIES}


def report(case: Case, real: Played, ours: Played) -> dict[str, Any]:
    """Everything that is said of a run."""
    found, measured = agreement(real, ours), (latencies(case, real), latencies(case, ours))
    return {"requests": len(case.trace), "steps": found.steps, "identical_steps": found.identical,
            "identical_times": found.same_times, "identical": found.whole, "preemptions_real": found.preemptions[0],
            "preemptions_ours": found.preemptions[1], "first_difference": found.first or None, "real": measured[0],
            "ours": measured[1], "difference_percent": differences(*measured)}


def _mean_and_p99(values: np.ndarray) -> tuple[float, float]:
    if not len(values):
        return 0.0, 0.0
    return float(values.mean()), float(np.percentile(values, 99))


def _differences(real: Played, ours: Played,
                 steps: int) -> Iterator[tuple[int, dict[int, tuple[int, int]], tuple[list[int], list[int]]]]:
    """Of each step: its number, tokens by slot where they differ, and the slots that lost memory; each (real, ours)."""
    now: tuple[dict[int, int], dict[int, int]] = ({}, {})
    readers = [(_by_step(one, ("change_slot", "change_tokens")), _by_step(one, ("preempted_slot",)))
               for one in (real, ours)]
    differ: set[int] = set()
    for step in range(steps):
        lost: tuple[list[int], list[int]] = ([], [])
        changed: set[int] = set()
        for side, (changes, preempted) in enumerate(readers):
            for slot, tokens in changes.get(step, ()):
                now[side][slot] = tokens
                changed.add(slot)
            lost[side].extend(slot for slot, in preempted.get(step, ()))
        for slot in changed:
            if now[0].get(slot, 0) == now[1].get(slot, 0):
                differ.discard(slot)
            else:
                differ.add(slot)
        yield step, {slot: (now[0].get(slot, 0), now[1].get(slot, 0)) for slot in sorted(differ)}, lost


def _by_step(played: Played, columns: tuple[str, ...]) -> dict[int, list[tuple[int, ...]]]:
    rows: dict[int, list[tuple[int, ...]]] = {}
    values = zip(*(played[key].tolist() for key in columns), strict=True)
    for step, row in zip(played[f"{columns[0].split('_')[0]}_step"].tolist(), values, strict=True):
        rows.setdefault(step, []).append(row)
    return rows


def _told(step: int, wrong: dict[int, tuple[int, int]], lost: tuple[list[int], list[int]]) -> str:
    parts = [f"request {slot} gets {real} tokens, ours gives {ours}" for slot, (real, ours) in list(wrong.items())[:3]]
    if len(wrong) > 3:
        parts.append(f"and {len(wrong) - 3} more")
    if lost[0] != lost[1]:
        parts.append(f"preempted are {lost[0]}, by ours {lost[1]}")
    return f"step {step}: {', '.join(parts)}"
