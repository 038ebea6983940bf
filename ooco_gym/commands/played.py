"""What of a user's own trace a command plays, said before anything else."""

from __future__ import annotations

import math

from ooco_gym.report import show_notes
from ooco_gym.scenario import ResolvedScenario, Scenario
from ooco_gym.workload import Trace, trace_files

SEARCHED = "synthetic ones (offline=…) at the rate that is searched"


def say_played(scenario: Scenario | ResolvedScenario, besides: str = "", seeds: int = 1) -> list[str]:
    """Prints what of a scenario's trace file is played, then what its reader repaired or doubts; returns these lines.

    Args:
        scenario: what is played; of a generator nothing is said.
        besides: offline work that the command adds on its own, in words.
        seeds: on how many it is played.
    """
    if not scenario.from_file:
        return []
    known = scenario.resolve()
    trace = known.workload.draw(start_s=known.start_s, duration_s=known.duration_s, seed=known.seed,
                                rate_scale=known.rate_scale)
    line, notes = _words(known, known.promised(trace), besides), list(trace.notes)
    if seeds > 1 and known.rate_scale * known.workload.factor == 1.0 and not (_synthetic(known) or besides):
        notes.append("every seed plays these same requests, so that intervals over seeds say nothing of other days: "
                     "start_s plays other hours, and 'ooco-gym workload fit' makes a generator of such traffic")
    print(line)
    show_notes([f"{note}." for note in notes])
    return [line, *notes]


def _words(known: ResolvedScenario, trace: Trace, besides: str) -> str:
    files, online = trace_files(known.workload), int(trace.online.sum())
    first_s, last_s = min(file.first_s for file in files), max(file.last_s for file in files)
    whole = known.start_s <= first_s and known.start_s + known.duration_s > last_s
    busiest = ", its busiest" * (known.given.start_s is None)
    part = "all of it" if whole else f"{_span(known.duration_s)} from {known.start_s:,.0f} s on{busiest}"
    own = ["its own offline requests"] if online < len(trace) else []
    load = [*own, *_synthetic(known), *([besides] if besides else [])]
    rows = sum(file.rows for file in files)
    return (f"{known.workload.name}: {rows:,} requests in {_span(last_s - first_s)}; played: {part} at scale "
            f"{known.rate_scale * known.workload.factor:g}, {online:,} online and {len(trace) - online:,} offline "
            "requests; offline load: "
            f"{' and '.join(load) or 'none, as no request is offline (offline.rate=… adds synthetic ones)'}")


def _synthetic(known: ResolvedScenario) -> list[str]:
    """The offline load that the scenario adds to the trace's own, in words."""
    load, given = known.offline, known.given.offline
    like = f"synthetic requests (offline={given.get('dataset') or given.get('name') or 'ooc'})"
    if load.mode == "rate":
        return [f"{load.rate:g} {like} a second"] if load.rate else []
    return [f"a backlog of {like}" if load.jobs is None else f"{load.jobs:,} {like} from the start"]


def _span(seconds: float) -> str:
    for unit, length_s in (("days", 86_400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * length_s:
            return f"{seconds / length_s:.3g} {unit}"
    return f"{math.ceil(seconds)} s"
