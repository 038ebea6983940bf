"""`ooco-gym demo`: the main job in one go: policies compared on a day, a gate learned and evaluated, one report."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agents.evaluation.scoring import HEADLINE
from experiments.common.policies import names_of, seeds_of
from ooco_gym.again import command_line
from ooco_gym.commands.simulate import scenario_of
from ooco_gym.errors import UserError, end_if_interrupted
from ooco_gym.jobs import processes
from ooco_gym.render import RunRecord, outcome_of, record_of, write_report
from ooco_gym.render.reading import evaluated
from ooco_gym.report import Axis, Panel, Section, Series, percent
from ooco_gym.report.terminal import progress
from ooco_gym.resources import load_yaml

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from ooco_gym.scenario import Scenario

def warm_up(scenario: Scenario, policies: Sequence[str], env: Mapping[str, Any]) -> None:
    """Compiles, for every process, what the comparison and the environment need: plays a minute of each policy, and
    makes one environment.

    Raises:
        UserError: a scenario that cannot be played, or no such environment.
    """
    from agents.environments import make_env
    from ooco_gym.simulation import simulate

    for policy in policies:
        simulate(scenario.with_(duration_s=60.0, warmup_s=0.0, drain_s=0.0), policy=policy)
    made = make_env(env)
    made.reset(seed=0)
    made.close()


def simulate_record(scenario: Scenario, policy: str) -> RunRecord:
    """Simulates one scenario and keeps what the report needs of it."""
    from ooco_gym.simulation import simulate

    return record_of(simulate(scenario, policy=policy), policy)


def import_learning() -> None:
    """Imports what training needs while the other process compiles."""
    for package in ("torch", "sb3_contrib"):
        with contextlib.suppress(ImportError):
            __import__(package)


LEAST_SPREAD = 0.2  # of the decisions: validated states closer together draw no curve


def gate_section(trained: Mapping[str, Any], options: Mapping[str, Any]) -> Section:
    """How the gate was learned, and how to learn it again."""
    commands = [command_line("train", _training(options, "gate"), "gate"),
                command_line("evaluate", _evaluation(options, ["gate", *options["rules"]]))]
    return Section("A first learned gate", training_words(trained), charts=_curve(trained), commands=commands,
                   note="Training against the clock gives another gate on another machine.")


def _gate_words(evaluation: Mapping[str, Any], trained: Mapping[str, Any] | None) -> str:
    """Where the learned gate stands beside the best rule, in a sentence."""
    if trained is None:
        return ""
    learned = next(one for one in evaluation["policies"] if one["learned"])
    row = next((one for one in evaluation["paired"] if one["policy"] == learned["policy"]
                and one["metric"] == HEADLINE and one["mean_difference"] is not None), None)
    start = f" A gate that learned for {trained['learning_wall_s']:.0f} s"
    if trained["imitation"] and trained["best"] and not trained["best"]["timesteps"]:
        start += f", still the copy of {trained['imitation']['rule']} that it began as,"
    if not learned["feasible"]:
        return f"{start} is late too often to be ranked."
    if row is None:
        return ""
    verdict = {"better": "serves more offline work than", "worse": "serves less offline work than"}
    return f"{start} {verdict.get(row['verdict'], 'shows no difference in offline service from')} `{row['reference']}`."


def training_words(trained: Mapping[str, Any]) -> list[str]:
    """How long was trained, and which policy was kept."""
    lines = [f"A gate (which waiting offline request a relaxed instance starts, or none) was trained by "
             f"{trained['agent']} on {trained['env']} for {trained['wall_s']:.0f} s: {trained['timesteps']:,} "
             f"decisions in {trained['episodes']:,} finished episodes."]
    copied, best = trained.get("imitation"), trained["best"]
    if copied:
        lines.append(f"It began as a copy of the gate of {copied['rule']} ({copied['decisions']:,} decisions watched, "
                     f"{percent(copied['agreement'], 0)} answered alike), so being close to it is where it started.")
    if best:
        lines.append(f"Of {len(trained['validation'])} validated states, that after {best['timesteps']:,} decisions "
                     "was kept.")
    return lines


def _curve(trained: Mapping[str, Any]) -> list[Panel]:
    """How validation went, where it was done at different times."""
    history = trained["validation"]
    steps = [float(one["timesteps"]) for one in history] or [0.0]
    if max(steps) - min(steps) < LEAST_SPREAD * max(1.0, *steps):
        return []
    return [Panel(title, Axis("decisions"), Axis(), [Series(steps, [factor * one[key] for one in history])])
            for key, title, factor in (("reward", "reward of an episode in validation", 1.0),
                                       ("violation_rate", "late online requests in validation (%)", 100.0))]


SCHEMA = "ooco-gym/demo/1"
REPORT_FILE = "report.html"
ENDLESS = 10**9  # decisions: the clock ends training
VALIDATION_S = 300.0  # of a window: it is validated several times within a minute
TITLE = "Online and offline requests on one cluster: what three policies make of a day, and a first learned gate"


def main(cfg: DictConfig) -> dict[str, Any]:
    """Runs the command; returns its summary (`docs/outputs.md`).

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
    with processes(1) as pool:
        ready = pool.submit(warm_up, scenario, policies, options["env"])
        asked = {name: [pool.submit(simulate_record, scenario.with_(seed=seed), name) for seed in seeds]
                 for name in policies}
        if reason is None:
            import_learning()
        with progress("compiling the simulator, the first time only"):
            ready.result()
        walls["start"] = time.monotonic() - begun
        trained = None if reason else _train(options, out)
        end_if_interrupted(trained)
        walls["train"] = time.monotonic() - begun - sum(walls.values())
        records = _collect(asked)
    walls["compare"] = time.monotonic() - begun - sum(walls.values())
    if reason:
        console.print(f"[yellow]note[/yellow] no gate is trained: {reason}", highlight=False)
    evaluation = _evaluate(options, out, trained)
    walls["evaluate"] = time.monotonic() - begun - sum(walls.values())
    compared = outcome_of(records)
    compared.show()
    gate = [gate_section(trained, options)] if trained else [
        Section("A first learned gate", warning=f"No gate was trained: {reason}.")]
    path = write_report(out / REPORT_FILE, [compared, *evaluated(evaluation, options)], [command_line("demo", options)],
                        records, title=TITLE if trained else "", sections=gate,
                        lead=f"{compared.answer()}{_gate_words(evaluation, trained)}")
    walls["report"] = time.monotonic() - begun - sum(walls.values())
    Console(soft_wrap=True).print(f"report: {path}", highlight=False, markup=False)
    return {"schema": SCHEMA, "scenario": scenario.describe(), "seeds": list(seeds),
            "comparison": [{"policy": one.label, "seed": one.seed, **{part: one.summary[part] for part in (
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

    return train(_training(options, str(out / "gate")))


def _training(options: Mapping[str, Any], out: str) -> dict[str, Any]:
    """The configuration of the training."""
    settings = {key: value for key, value in load_yaml("", "train").items() if key != "defaults"}
    return {**settings, "env": options["env"], "agent": options["agent"], "logger": options["logger"],
            "seed": options["train_seed"], "max_wall_s": float(options["train_s"]), "total_timesteps": ENDLESS,
            "checkpoint_every_steps": None, "overwrite": True, "out": out,
            "validation": {**settings["validation"], "window_s": VALIDATION_S}}


def _evaluate(options: Mapping[str, Any], out: Path, trained: Mapping[str, Any] | None) -> dict[str, Any]:
    """Plays the held-out windows, with the learned gate where there is one; prints its tables."""
    from agents.evaluation.evaluate import main as evaluate

    policies = [*([str(out / "gate")] if trained else []), *options["rules"]]
    return evaluate({**_evaluation(options, policies), "out": str(out / "evaluation")})


def _evaluation(options: Mapping[str, Any], policies: Sequence[str]) -> dict[str, Any]:
    """The configuration of the evaluation."""
    settings = {key: value for key, value in load_yaml("", "evaluate").items() if key != "defaults"}
    return {**settings, "env": options["env"], "policies": list(policies), "episodes": options["episodes"],
            "workers": options["workers"]}


def _collect(asked: Mapping[str, Sequence[Future[RunRecord]]]) -> list[RunRecord]:
    """Waits for the records of the comparison."""
    futures = [future for some in asked.values() for future in some]
    with progress("simulating the comparison", len(futures)) as bar:
        records = []
        for future in futures:
            records.append(future.result())
            bar.advance()
    return records
