"""`ooco-gym simulate`: one policy on one scenario; writes summary, request table and page."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ooco_gym.metrics import summarise, write_requests
from ooco_gym.metrics.costs import chips_of, cost_metrics, price_of
from ooco_gym.policy import policy_of
from ooco_gym.render import outcome_of, write_report
from ooco_gym.render.page import class_table, conditions, conditions_table, depths, policy_words
from ooco_gym.run_notes import say_clock, say_played, warnings_of
from ooco_gym.scenario import scenario_of
from ooco_gym.simulation import simulate

if TYPE_CHECKING:
    from omegaconf import DictConfig


SCHEMA = "ooco-gym/simulate/2"  # of a run's summary
PAGE_FILE, REQUESTS_FILE = "simulate.html", "requests.parquet"
SAMPLES = 240  # of queues and memory over a short window


def main(cfg: DictConfig) -> dict[str, Any]:
    """Runs the command; returns its summary (`docs/outputs.md`)."""
    from omegaconf import OmegaConf
    from rich.console import Console

    price = price_of(cfg)
    policy: Any = OmegaConf.to_container(cfg.policy) if OmegaConf.is_config(cfg.policy) else str(cfg.policy)
    scenario = scenario_of(cfg, mixed=policy_of(policy).mixed).resolve()
    said = say_played(scenario)
    say_clock(scenario.given, policies=[policy])
    with Console(stderr=True).status("simulating"):
        run = simulate(scenario, policy=policy, sample_s=min(60.0, max(1.0, scenario.duration_s / SAMPLES)))
    found = summarise(run)
    found["cost"] = cost_metrics(found, chips_of(run.scenario.deployments), price)
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
    print(f"{summary['simulated_s'] / 3600:.2f} h simulated in {summary['wall_s']:.2f} s")
    replace(outcome, notes=lines).show()  # the others were printed earlier
    if classes := class_table(summary):
        classes.turned().show()
    write_report(Path(cfg.out) / PAGE_FILE, [outcome], more=[classes], conditions=conditions_table(summary),
                 lead=conditions(run.scenario, price), plots=depths(run))
    return summary
