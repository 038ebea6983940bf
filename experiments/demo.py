"""`ooco-gym demo`: the main job in one go: policies compared on a day, a gate learned and evaluated, one report."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from experiments import background
from experiments.gate_story import gate_section, missing_section
from experiments.options import names_of, seeds_of
from ooco_gym.commands.simulate import scenario_of
from ooco_gym.errors import UserError
from ooco_gym.render import Record, report
from ooco_gym.render.comparison import comparison_table, difference_table
from ooco_gym.render.record import grouped, scenario_name
from ooco_gym.report.terminal import progress
from ooco_gym.resources import conf_root

if TYPE_CHECKING:
    from omegaconf import DictConfig

SCHEMA = "ooco-gym/demo/1"
REPORT_FILE = "report.html"
ENDLESS = 10**9  # decisions: the clock ends training
TITLE = "Online and offline requests on one cluster: what three policies make of a day, and a first learned gate"


def main(cfg: DictConfig) -> dict[str, Any]:
    """Runs the command; returns its summary (`docs/results.md`).

    The comparison is simulated in a process of its own while this one trains; both wait until that process has
    compiled the simulator, which only a first start has to.

    Raises:
        UserError: a setting that no policy, scenario or environment can have.
    """
    from omegaconf import OmegaConf
    from rich.console import Console

    options: dict[str, Any] = OmegaConf.to_container(cfg, resolve=True)  # type: ignore[assignment]
    begun, out, console = time.monotonic(), Path(options["out"]), Console()
    policies, seeds = names_of({**options, "policy": None}, "policies", "policy"), seeds_of(options["seeds"])
    scenario = scenario_of(cfg)
    scenario = scenario.with_(rate_scale=scenario.online_scale())
    reason = _why_not_learn(options)
    walls: dict[str, float] = {}
    with background.process() as pool:
        ready = pool.submit(background.warm_up, scenario, policies, options["env"])
        asked = {name: [pool.submit(background.simulate_record, scenario.with_(seed=seed), name) for seed in seeds]
                 for name in policies}
        if reason is None:
            background.import_learning()
        with progress("compiling the simulator, the first time only"):
            ready.result()
        walls["start"] = time.monotonic() - begun
        trained = None if reason else _train(options, out)
        walls["train"] = time.monotonic() - begun - sum(walls.values())
        records = _collect(asked)
    walls["compare"] = time.monotonic() - begun - sum(walls.values())
    if reason:
        console.print(f"[yellow]note[/yellow] no gate is trained: {reason}", highlight=False)
    evaluation = _evaluate(options, out, trained)
    walls["evaluate"] = time.monotonic() - begun - sum(walls.values())
    groups = grouped(records)
    budget = float(records[0].scenario["protocol"]["violation_budget"])
    tables = [table for table in (comparison_table(groups, budget), difference_table(groups)) if table is not None]
    for table in tables:
        table.turned().show(console)
    gate = [gate_section(trained, evaluation, options)] if trained else [missing_section(str(reason), evaluation)]
    path = report(out / REPORT_FILE, records, gate, title=TITLE if trained else None, lead=_lead(records, seeds))
    walls["report"] = time.monotonic() - begun - sum(walls.values())
    Console(soft_wrap=True).print(f"report: {path}", highlight=False, markup=False)
    return {"schema": SCHEMA, "scenario": scenario.describe(), "seeds": list(seeds),
            "comparison": [{"policy": one.label, "seed": one.seed, **{room: one.summary[room] for room in (
                "online", "offline", "instances")}} for one in records],
            "train": trained, "evaluation": evaluation, "report": REPORT_FILE, "wall_s": walls}


def _why_not_learn(options: Mapping[str, Any]) -> str | None:
    """None where a gate is to be trained and can be; else the reason, in words."""
    from agents.settings import require

    if not isinstance(options["train_s"], (int, float)) or options["train_s"] < 0:
        raise UserError(f"train_s={options['train_s']!r} must be a number of seconds, at least 0")
    if options["train_s"] == 0:
        return "train_s=0 leaves learning out"
    try:
        require("train")
    except UserError as error:
        return str(error)
    return None


def _train(options: Mapping[str, Any], out: Path) -> dict[str, Any]:
    """Trains as `ooco-gym train` does, with its configuration, until the clock ends it."""
    from agents.learning.train import main as train

    settings = yaml.safe_load((conf_root() / "train.yaml").read_text(encoding="utf-8"))
    del settings["defaults"]
    return train({**settings, "env": options["env"], "agent": options["agent"], "logger": options["logger"],
                  "seed": options["train_seed"], "max_wall_s": float(options["train_s"]), "total_timesteps": ENDLESS,
                  "checkpoint_every_steps": None, "overwrite": True, "out": str(out / "gate")})


def _evaluate(options: Mapping[str, Any], out: Path, trained: Mapping[str, Any] | None) -> dict[str, Any]:
    """Plays the held-out windows, with the learned gate where there is one; prints its tables."""
    from agents.evaluation.evaluate import main as evaluate

    policies = [*([str(out / "gate")] if trained else []), *options["rules"]]
    settings = yaml.safe_load((conf_root() / "evaluate.yaml").read_text(encoding="utf-8"))
    del settings["defaults"]
    return evaluate({**settings, "env": options["env"], "policies": policies, "episodes": options["episodes"],
                     "workers": options["workers"], "out": str(out / "evaluation")})


def _collect(asked: Mapping[str, Sequence[Future[Record]]]) -> list[Record]:
    """Waits for the records of the comparison."""
    futures = [future for some in asked.values() for future in some]
    with progress("simulating the comparison", len(futures)) as bar:
        records = []
        for future in futures:
            records.append(future.result())
            bar.advance()
    return records


def _lead(records: Sequence[Record], seeds: Sequence[int]) -> str:
    first = records[0]
    return (f"Made by 'ooco-gym demo'. {scenario_name(first.scenario)}, {first.window_s / 3600:.3g} h, "
            f"{len(seeds)} paired seed{'s' if len(seeds) > 1 else ''}; every figure comes from the simulator, none is "
            "measured on hardware.")
