"""What commands print beside the metrics of a run: its trace, the accuracy of its timing, and warnings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ooco_gym.metrics.summary import infeasible_words
from ooco_gym.perf.engine_clock import EngineClock, clock_line
from ooco_gym.policy import policy_of
from ooco_gym.protocol import KEPT_UP_ONE_RUN
from ooco_gym.report import joined, show_notes
from ooco_gym.report.templates import sentence, sentences
from ooco_gym.scenario import ResolvedScenario, Scenario
from ooco_gym.sim.state import SYNCHRONOUS

WORDS = Path(__file__).with_name("run_notes.j2")
THRASH = 0.25  # evictions per finished offline request that count as thrashing
STEADY_S = 3600.0  # a shorter window cannot show whether the backlog grows
SEARCHED = "synthetic requests (offline=…) at the searched rate"


def warnings_of(summary: Mapping[str, Any]) -> list[str]:
    """Returns the important warnings of a summary, one sentence each."""
    infeasible = infeasible_words(summary["online"].get("infeasible"))
    return sentences(WORDS, "warnings", summary=summary, infeasible=infeasible, thrash=THRASH, kept_up=KEPT_UP_ONE_RUN,
                     steady_s=STEADY_S)


def notes_of(summaries: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Merges warnings and notes of several policies' runs, labelled by policy."""
    said: dict[str, list[str]] = {}
    for label, summary in summaries.items():
        for line in [*warnings_of(summary), *(f"{note}." for note in summary.get("notes") or ())]:
            said.setdefault(line, []).append(f"{label}, seed {summary['seed']}")
    return [f"{'every policy' if len(who) == len(summaries) > 1 else '; '.join(who)}: {line}"
            for line, who in said.items()]


def say_clock(*scenarios: Scenario, policies: Sequence[Any] = ()) -> None:
    """Prints the scenarios' latency models and their errors, one line for each that differs.

    Errors measured on an asynchronous engine are not reported for policies whose engine schedules
    synchronously.
    """
    waiting = [one.name for one in map(policy_of, policies)
               if one.mixed and one.settings()["async_scheduling"] == SYNCHRONOUS]
    lines = []
    for cluster, timing in [(scenario.load_cluster(), scenario.timing) for scenario in scenarios]:
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
    own = [] if trace.online.all() else ["its own offline requests"]
    line = sentence(WORDS, "played", known=known, requests=len(trace), online=int(trace.online.sum()),
                    load=[*own, *_synthetic(known), *([besides] if besides else [])])
    notes = list(trace.notes)
    if seeds > 1 and known.rate_scale * known.workload.factor == 1.0 and not (_synthetic(known) or besides):
        notes.append("every seed runs these same requests, so intervals over seeds do not cover other days: start_s "
                     "selects other hours, and 'ooco-gym workload fit' makes a generator of such traffic")
    print(line)
    show_notes([f"{note}." for note in notes])
    return [line, *notes]


def _synthetic(known: ResolvedScenario) -> list[str]:
    """Returns the offline load that the scenario adds to the trace's own, in words."""
    load, given = known.offline, known.given.offline
    like = f"synthetic requests (offline={given.get('dataset') or given.get('name') or 'ooc'})"
    if load.mode == "rate":
        return [f"{load.rate:g} {like} a second"] if load.rate else []
    return [f"a backlog of {like}" if load.jobs is None else f"{load.jobs:,} {like} from the start"]
