"""`ooco-gym simulate`: one policy on one scenario; writes summary, request table and page."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ooco_gym.from_config import scenario_of
from ooco_gym.metrics import summarise, write_requests
from ooco_gym.metrics.costs import chips_of, cost_figures
from ooco_gym.metrics.summary import keeps_prefixes
from ooco_gym.policy import policy_of
from ooco_gym.render import outcome_of, write_report
from ooco_gym.render.deciding import conditions, depths
from ooco_gym.render.page import class_table, conditions_table, policy_words
from ooco_gym.report import Table, as_text, at_least, console, duration, number, percent, show_notes
from ooco_gym.run_notes import say_clock, say_played, warnings_of
from ooco_gym.simulation import simulate

if TYPE_CHECKING:
    from omegaconf import DictConfig


SCHEMA = "ooco-gym/simulate/2"  # of a run's summary
PAGE_FILE, REQUESTS_FILE = "simulate.html", "requests.parquet"
NO_ONLINE = "no online request"
SAMPLES = 240  # of queues and memory over a short window


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


Rows = list[tuple[str, str]]


def result_table(summary: Mapping[str, Any]) -> Table:
    """Returns a table of a summary's main metrics."""
    kinds = ("offline",) if "batch" in summary else ("online", "offline")
    rows = _batch_rows(summary["batch"]) if "batch" in summary else _online_rows(summary)
    rows.append(("offline requests", f"{summary['offline']['arrived']:,} arrived, {summary['offline']['finished']:,} "
                                     "finished in the window, warm-up arrivals included"))
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
