"""`ooco-gym simulate`: one policy on one scenario; writes summary, request table and page."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ooco_gym.metrics import summarise, write_requests
from ooco_gym.metrics.costs import chips_of, cost_figures
from ooco_gym.metrics.requests import MEMORY, WINDOW
from ooco_gym.metrics.summary import keeps_prefixes
from ooco_gym.perf.engine_clock import EngineClock
from ooco_gym.perf.validity import clock_line
from ooco_gym.policy import policy_of
from ooco_gym.protocol import KEPT_UP_ONE_RUN
from ooco_gym.render import outcome_of, write_report
from ooco_gym.render.deciding import conditions, depths
from ooco_gym.render.page import class_table, conditions_table, policy_words
from ooco_gym.report import Table, as_text, at_least, console, duration, joined, number, percent, show_notes
from ooco_gym.resources import load_yaml
from ooco_gym.scenario import CLUSTER, TRACE_CLUSTER, ResolvedScenario, Scenario
from ooco_gym.sim.state import SYNCHRONOUS
from ooco_gym.simulation import simulate
from ooco_gym.workload import Trace, from_file, of_trace

if TYPE_CHECKING:
    from omegaconf import DictConfig


SCHEMA = "ooco-gym/simulate/2"  # of a run's summary
PAGE_FILE, REQUESTS_FILE = "simulate.html", "requests.parquet"
NO_ONLINE = "no online request"
CLUSTERS_OWN = "cluster"  # conf/slo/cluster.yaml: the cluster's own preset
OPEN = "default"  # conf/open/cluster, conf/open/offline: left to workload and policy
SAMPLES = 240  # of queues and memory over a short window
THRASH = 0.25  # evictions per finished offline request that count as thrashing
STEADY_S = 3600.0  # a shorter window cannot show whether the backlog grows
SEARCHED = "synthetic ones (offline=…) at the rate that is searched"


def main(cfg: DictConfig) -> dict[str, Any]:
    """Runs the command; returns its summary (`docs/outputs.md`)."""
    from omegaconf import OmegaConf
    from rich.console import Console


    policy: Any = OmegaConf.to_container(cfg.policy) if OmegaConf.is_config(cfg.policy) else str(cfg.policy)
    scenario = scenario_of(cfg, mixed=policy_of(policy).mixed).resolve()
    said = say_played(scenario)
    say_clock(scenario.given, policies=[policy])
    with Console(stderr=True).status("simulating"):
        run = simulate(scenario, policy=policy, sample_s=min(60.0, max(1.0, scenario.duration_s / SAMPLES)))
    found = summarise(run)
    found["cost"] = cost_figures(found, chips_of(run.scenario.deployments), cfg.price_per_chip_hour)
    summary = {"schema": SCHEMA, **found, "params": run.params, "scenario": scenario.describe(),
               **({"played": said[0]} if said else {})}
    write_requests(run, Path(cfg.out) / REQUESTS_FILE)
    lines = warnings_of(summary)
    _, another_load = scenario.scale
    if another_load:
        lines.append(f"{another_load}.")
    lines += [line if line.endswith("?") else f"{line}." for line in run.notes if line not in said]
    earlier = [f"{line}." for line in (*scenario.remarks, *run.range_warnings, *said[1:])]  # also on the page
    config: dict[str, Any] = OmegaConf.to_container(cfg, resolve=True)  # type: ignore[assignment]
    outcome = outcome_of(run, summary, policy_words(config), [*lines, *earlier])
    result_table(summary).show()
    classes = [table] if (table := class_table(summary)) else []
    for table in classes:
        table.turned().show()
    console().print(outcome.answer(), highlight=False)
    show_notes([line for line in outcome.notes if line not in earlier])
    write_report(Path(cfg.out) / PAGE_FILE, [outcome], more=classes, conditions=conditions_table(summary),
                 lead=f"{conditions(run.scenario, cfg.price_per_chip_hour)} {cost_words(found['cost']).capitalize()}.",
                 plots=depths(run))
    return summary


def scenario_of(cfg: DictConfig, mixed: bool = False) -> Scenario:
    """Returns the scenario of a command's configuration; an open cluster becomes one of `mixed`
    instances if set.

    Raises:
        UserError: an impossible value of a scenario.
    """
    from omegaconf import OmegaConf

    options: dict[str, Any] = OmegaConf.to_container(cfg, resolve=True)  # type: ignore[assignment]
    given = {key: value for key, value in options.items() if key in Scenario.__dataclass_fields__}
    trace = from_file(of_trace(given["workload"]))
    cluster = load_yaml("cluster", TRACE_CLUSTER if trace else CLUSTER)
    usual = {"cluster": load_yaml("cluster", cluster["twin"]) if mixed else cluster,
             "offline": load_yaml("offline", "ooc")}
    for group in left_open(given):
        said = {key: value for key, value in given[group].items() if value is not None and key != "name"}
        alone = trace and group == "offline" and set(said) <= {"own"}  # no synthetic load is requested
        given[group] = said or None if alone else {**usual[group], **said}
    if isinstance(given.get("slo"), Mapping):
        given["slo"] = _slo(given)
    return Scenario.from_config(given)


def left_open(options: Mapping[str, Any]) -> dict[str, None]:
    """Returns the scenario fields that a command's configuration leaves to workload and policy."""
    return {group: None for group in ("cluster", "offline")
            if isinstance(options.get(group), Mapping) and options[group].get("name") == OPEN}


def of_cell(base: Scenario, cell: Mapping[str, Any], options: Mapping[str, Any]) -> Scenario:
    """Returns the scenario with a cell's fields; if the cell has a trace file, open fields are set for a trace."""
    trace = "workload" in cell and from_file(of_trace(cell["workload"]))
    return base.with_(**{**(left_open(options) if trace else {}), **cell})


def _slo(given: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Returns the composed SLO; values that are set replace those of the cluster's preset."""
    values = {key: value for key, value in given["slo"].items() if value is not None}
    if values.get("name") != CLUSTERS_OWN:
        return values
    del values["name"]
    return {**vars(Scenario.from_config({**given, "slo": None}).read_slo()), **values} if values else None


Rows = list[tuple[str, str]]


def result_table(summary: Mapping[str, Any]) -> Table:
    """Returns a table of a summary's main metrics."""
    kinds = ("offline",) if "batch" in summary else ("online", "offline")
    rows = _batch_rows(summary["batch"]) if "batch" in summary else _online_rows(summary)
    rows.append(("offline requests", f"{summary['offline']['arrived']:,} arrived, {summary['offline']['finished']:,} "
                                     "finished in the window"))
    for kind in kinds:
        one = summary[kind]
        rows.append((f"{kind} tokens", f"{one['output_tokens_per_s']:,.0f} output and "
                     f"{one['prompt_tokens_per_s']:,.0f} prompt tokens/s completed, "
                     f"{as_text(one['computed_tokens_per_s'], ',.0f')} tokens/s computed"))
    if keeps_prefixes(summary["params"]):
        rows += [(f"found in the prefix cache, {kind}", percent(summary[kind]["hit_rate"])) for kind in kinds]
    if "kv_offloading" in summary:
        rows.append(("found in host memory alone", percent(summary["kv_offloading"]["hit_rate"])))
    rows += _offline_rows(summary["offline"])
    if rejected := summary.get("rejected"):
        rows.append(("rejected requests", f"{rejected['online']:,} online, {rejected['offline']:,} offline"))
    rows.append(("computed, of the chips' peak", percent(summary["utilization"]["compute_share"])))
    for index, one in enumerate(summary["instances"][:8]):
        rank = f", rank {one['rank']}" if "rank" in one else ""
        rows.append((f"instance {index} ({one['role']}{rank})", f"runs {percent(one['busy_share'])} of the time, "
                     f"KV memory {percent(one['kv_mean_share'])} full"))
    if summary.get("cost"):
        rows.append(("cost", cost_words(summary["cost"])))
    return Table(f"{summary['policy']}, seed {summary['seed']}: {summary['simulated_s'] / 3600:.2f} h simulated in "
                 f"{summary['wall_s']:.2f} s", ("", ""), rows, align="l")


def _batch_rows(batch: Mapping[str, Any]) -> Rows:
    """Returns when a trace of offline requests alone was done, or its unfinished requests."""
    if batch["left"]:
        return [("left at the end", f"{batch['left']:,} offline requests")]
    return [("all done after", f"{duration(batch['makespan_s'])}, {number(batch['output_tokens_per_s'])} output and "
                               f"{number(batch['total_tokens_per_s'])} total tokens/s until then")]


def _online_rows(summary: Mapping[str, Any]) -> Rows:
    """Returns the window, if it lasted until the last request, and the metrics of online requests."""
    online, rows = summary["online"], []

    def times(key: str) -> str:
        cells = []
        for part in ("mean", "P50", "P90", "P99"):
            name = f"{key}_{part.lower()}_s"
            cells.append(f"{part} {at_least(duration(online[name]), name in online['censored'])}")
        return ", ".join(cells)

    if summary["window_s"] != summary["arrivals_s"]:
        left = online["arrived"] - online["finished"] + summary["offline"]["left"]
        if rejected := summary.get("rejected"):
            left -= rejected["online"] + rejected["offline"]
        until = f"when drain_s ran out, {left:,} request{'s' * (left != 1)} unfinished"
        rows.append(("measured window", f"{duration(summary['window_s'])}, ended "
                     f"{until if left else 'with the last request'}; arrivals in {duration(summary['arrivals_s'])}"))
    arrived = f"{online['arrived']:,} arrived, {online['finished']:,} finished"
    if online["unserved"]:
        arrived += f", {online['unserved']:,} without a token"
    if online["undecided"]:
        arrived += f", {online['undecided']:,} undecided"
    return [
        *rows, ("online requests", arrived),
        ("late online requests", percent(online["violation_rate"]) if online["arrived"] else NO_ONLINE),
        ("late, worst 10 minutes", percent(online["worst_10min_violation_rate"])),
        ("kept, of all that arrived", f"TTFT {percent(online['ttft_attainment'])}, TPOT "
                                      f"{percent(online['tpot_attainment'])}"),
        ("TTFT", times("ttft")),
        ("TPOT from first token", times("tpot")),
        ("TPOT from first decode", times("tpot_decode"))]


def _offline_rows(offline: Mapping[str, Any]) -> Rows:
    """Returns the metrics of offline work."""
    return [
        ("offline work", f"{offline['reference_gpu_s_per_s']:.3f} reference GPU-s per second"),
        ("computed again", f"{offline['wasted_tokens_per_s']:,.0f} tokens and {offline['wasted_gpu_s_per_s']:.3f} "
                           "GPU-s per second"),
        ("evictions, interrupted prefills", f"{offline['evictions']:,}, {offline['interruptions']:,}"),
        ("moved to strict instances", f"{offline['migrations']:,} offline requests"),
        ("offline queueing, P99", at_least(duration(offline["age_p99_s"]), "age_p99_s" in offline["censored"]))]


def cost_words(cost: Mapping[str, Any]) -> str:
    """Returns the cost of a run's chips, in words."""
    of_all = f", all of them {number(cost['of_all'])}" if "of_all" in cost else ""
    money = f" and cost {number(cost['per_million_tokens'])}{of_all}" if "per_hour" in cost else ""
    return f"a million tokens take {number(cost['chip_hours_per_million_tokens'])} chip-hours{money}"


def warnings_of(summary: Mapping[str, Any]) -> list[str]:
    """Returns the important warnings of a summary, one sentence each."""
    online, offline = summary["online"], summary["offline"]
    lines = []
    if online["arrived"] == 0 and "batch" not in summary:
        lines.append("no online request arrived in the window, so there is no violation rate and nothing to rank: "
                     "raise rate_scale, or move the window (start_s, duration_s).")
    if online["undecided"]:
        lines.append(f"{online['undecided']:,} online requests were neither late nor finished when the run ended: they "
                     f"are {percent(online['undecided'] / online['arrived'])} of those that arrived, and could still "
                     "turn a verdict; a larger drain_s decides them.")
    if online["own_slos"] and "classes" not in summary:
        lines.append(f"{online['own_slos']:,} of {online['arrived']:,} online requests are held against an SLO of "
                     "their own, not the cluster's.")
    if "deadlines" in offline:
        lines.append(f"{offline['deadlines']:,} of {offline['arrived']:,} offline requests have a deadline: "
                     f"{offline['deadline_misses']:,} missed it"
                     + f", {offline['deadline_undecided']:,} could still" * bool(offline["deadline_undecided"]) + ".")
    if rejected := summary.get("rejected"):
        why = {MEMORY: "the memory of an instance even alone: take more chips", WINDOW: "the model's window"}
        lines.append(f"{rejected['online']:,} online and {rejected['offline']:,} offline requests were rejected: "
                     f"prompt and output, the shortest of them of {rejected['shortest_tokens']:,} tokens, do not fit "
                     f"{' or '.join(why[one] for one in rejected['reasons'])}.")
    if unreached := summary.get("sessions", {}).get("turns_not_reached"):
        lines.append(f"{unreached:,} turns of closed sessions never came: a turn before them was rejected, or had not "
                     "finished when the run ended.")
    if offline["arrived"] + offline["finished"] and offline["evictions"] > THRASH * max(1, offline["finished"]):
        lines.append(f"memory thrashes: {offline['evictions']:,} evictions and {offline['migrations']:,} pulls for "
                     f"{offline['finished']:,} finished offline requests; each eviction recomputes a whole context.")
    kept_up = offline["kept_up_share"]
    if summary["window_s"] >= STEADY_S and kept_up is not None and kept_up < KEPT_UP_ONE_RUN:
        lines.append(f"the offline backlog grows: of what arrived in the second half, only "
                     f"{percent(kept_up)} was completed in it.")
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
        return (f"no offline request was finished in the window, and {offline['left']:,} were left at its end: play "
                "longer (duration_s).")
    if mode != "rate" and offline["last_finish_s"] is not None:
        return "all of the offline backlog was done before the window began; offline.jobs=… sets a larger one."
    return (f"no offline work came in the window (offline.mode={mode}): offline.rate=1.0 asks for one request a "
            "second, offline.mode=jobs with offline.jobs=1000 for so many from the start on.")


# --- Timing model ---------------------------------------------------------------------------------------------------
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
        lines.append(line + f"; {joined(others)}: another engine, no run of which was held against this clock" * bool(
            others))
    print(*dict.fromkeys(lines), sep="\n")


# --- Report on the user's trace, printed first ---------------------------------------------------------------------
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
        notes.append("every seed plays these same requests, so that intervals over seeds say nothing of other days: "
                     "start_s plays other hours, and 'ooco-gym workload fit' makes a generator of such traffic")
    print(line)
    show_notes([f"{note}." for note in notes])
    return [line, *notes]


def _words(known: ResolvedScenario, trace: Trace, besides: str) -> str:
    files, online = known.workload.files, int(trace.online.sum())
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
