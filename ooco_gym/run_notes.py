"""What commands print beside the metrics of a run: its trace, the accuracy of its timing, and warnings."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ooco_gym.metrics.requests import MEMORY, WINDOW
from ooco_gym.metrics.summary import infeasible_words
from ooco_gym.perf.engine_clock import EngineClock
from ooco_gym.perf.validity import clock_line
from ooco_gym.policy import policy_of
from ooco_gym.protocol import KEPT_UP_ONE_RUN
from ooco_gym.report import joined, percent, show_notes
from ooco_gym.scenario import ResolvedScenario, Scenario
from ooco_gym.sim.state import SYNCHRONOUS
from ooco_gym.workload import Trace

THRASH = 0.25  # evictions per finished offline request that count as thrashing
STEADY_S = 3600.0  # a shorter window cannot show whether the backlog grows
SEARCHED = "synthetic requests (offline=…) at the searched rate"


def warnings_of(summary: Mapping[str, Any]) -> list[str]:
    """Returns the important warnings of a summary, one sentence each."""
    online, offline = summary["online"], summary["offline"]
    lines = []
    if online["arrived"] == 0 and "batch" not in summary:
        lines.append("no online request arrived in the window, so there is no violation rate and nothing to rank: "
                     "raise rate_scale, or move the window (start_s, duration_s).")
    if online["undecided"]:
        lines.append(f"{online['undecided']:,} online requests had neither violated their SLO nor finished when the "
                     f"run ended: they are {percent(online['undecided'] / online['arrived'])} of all arrivals and "
                     "could change the result; a larger drain_s decides them.")
    if online["own_slos"] and "classes" not in summary:
        lines.append(f"{online['own_slos']:,} of {online['arrived']:,} online requests are measured against their own "
                     "SLO instead of the cluster's.")
    if "deadlines" in offline:
        lines.append(f"{offline['deadlines']:,} of {offline['arrived']:,} offline requests have a deadline: "
                     f"{offline['deadline_misses']:,} missed it"
                     + f", {offline['deadline_undecided']:,} may still miss "
                       "it" * bool(offline["deadline_undecided"]) + ".")
    if rejected := summary.get("rejected"):
        why = {MEMORY: "an empty instance's KV memory (use more chips)", WINDOW: "the model's context window"}
        lines.append(f"{rejected['online']:,} online and {rejected['offline']:,} offline requests were rejected: their "
                     f"prompt and output, {rejected['shortest_tokens']:,} tokens for the shortest, do not fit "
                     f"{' or '.join(why[one] for one in rejected['reasons'])}.")
    lines += infeasible_words(online.get("infeasible"))
    if unreached := summary.get("sessions", {}).get("turns_not_reached"):
        lines.append(f"{unreached:,} turns of closed sessions never arrived: a turn before them was rejected, or had "
                     "not finished when the run ended.")
    if offline["arrived"] + offline["finished"] and offline["evictions"] > THRASH * max(1, offline["finished"]):
        lines.append(f"memory thrashes: {offline['evictions']:,} evictions and {offline['migrations']:,} pulls for "
                     f"{offline['finished']:,} finished offline requests; each eviction recomputes a whole context.")
    kept_up = offline["kept_up_share"]
    if summary["window_s"] >= STEADY_S and kept_up is not None and kept_up < KEPT_UP_ONE_RUN:
        lines.append(f"the offline backlog grows: of the work that arrived in the second half, only {percent(kept_up)} "
                     "was completed in it.")
    if offline["arrived"] == 0 and offline["finished"] == 0:
        lines.append(_nothing_offline(summary["scenario"]["offline"], offline))
    return lines


def notes_of(summaries: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Merges warnings and notes of several policies' runs, labelled by policy."""
    said: dict[str, list[str]] = {}
    for label, one in summaries.items():
        for line in [*warnings_of(one), *(f"{note}." for note in one.get("notes") or ())]:
            said.setdefault(line, []).append(f"{label}, seed {one['seed']}")
    return [f"{'every policy' if len(who) == len(summaries) > 1 else '; '.join(who)}: {line}"
            for line, who in said.items()]


def _nothing_offline(load: Mapping[str, Any], offline: Mapping[str, Any]) -> str:
    """Returns a sentence on why no offline request is counted, and the remedy."""
    mode = load.get("mode") or "rate"
    if offline["left"]:
        return (f"no offline request was finished in the window, and {offline['left']:,} were unfinished at its end: "
                "run longer (duration_s).")
    if mode != "rate" and offline["last_finish_s"] is not None:
        return "the whole offline backlog was completed before the window began; offline.jobs=… sets a larger one."
    return (f"no offline work arrived in the window (offline.mode={mode}): offline.rate=1.0 adds one request a second, "
            "and offline.mode=jobs with offline.jobs=1000 adds 1,000 at the start.")


def say_clock(*scenarios: Scenario, policies: Sequence[Any] = ()) -> None:
    """Prints the scenarios' latency models and their errors, one line for each that differs.

    Errors measured on an asynchronous engine are not reported for policies whose engine schedules
    synchronously.
    """
    waiting = [one.name for one in map(policy_of, policies)
               if one.mixed and one.settings()["async_scheduling"] == SYNCHRONOUS]
    lines = []
    for cluster, timing in [(one.load_cluster(), one.timing) for one in scenarios]:
        clock = EngineClock.load(cluster.engine_clock)
        others = waiting if clock.async_scheduling else []
        quoted = not others or len(others) < len(policies)
        line = clock_line([one for _, one in cluster.deployments(timing)], clock, quoted)
        other = f"; {joined(others)}: another engine, for which this latency model was not validated"
        lines.append(line + other * bool(others))
    print(*dict.fromkeys(lines), sep="\n")


def say_played(scenario: Scenario | ResolvedScenario, besides: str = "", seeds: int = 1) -> list[str]:
    """Prints which part of a scenario's trace file is replayed, and what its reader repaired or
    questions.

    `besides` is the offline work that the command adds, in words; `seeds` the number of seeds.
    Returns these lines, none for a generator.
    """
    if not scenario.from_file:
        return []
    known = scenario.resolve()
    trace = known.draw(known.start_s, known.duration_s)
    line, notes = _words(known, known.promised(trace), besides), list(trace.notes)
    if seeds > 1 and known.rate_scale * known.workload.factor == 1.0 and not (_synthetic(known) or besides):
        notes.append("every seed runs these same requests, so intervals over seeds do not cover other days: start_s "
                     "selects other hours, and 'ooco-gym workload fit' makes a generator of such traffic")
    print(line)
    show_notes([f"{note}." for note in notes])
    return [line, *notes]


def _words(known: ResolvedScenario, trace: Trace, besides: str) -> str:
    files, online = known.workload.files, int(trace.online.sum())
    first_s, last_s = known.workload.span_s
    whole = known.start_s <= first_s and known.start_s + known.duration_s > last_s
    busiest = ", its busiest" * (known.given.start_s is None)
    part = "all of it" if whole else f"{_span(known.duration_s)} from {known.start_s:,.0f} s on{busiest}"
    own = ["its own offline requests"] if online < len(trace) else []
    load = [*own, *_synthetic(known), *([besides] if besides else [])]
    rows = sum(file.rows for file in files)
    return (f"{known.workload.name}: {rows:,} requests in {_span(last_s - first_s)}; simulated: {part} at scale "
            f"{known.rate_scale * known.workload.factor:g}, {online:,} online and {len(trace) - online:,} offline "
            "requests; offline load: "
            f"{' and '.join(load) or 'none, as no request is offline (offline.rate=… adds synthetic ones)'}")


def _synthetic(known: ResolvedScenario) -> list[str]:
    """Returns the offline load that the scenario adds to the trace's own, in words."""
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
