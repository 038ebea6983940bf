"""`ooco-gym demo`: the main job in one go: policies compared on a day, a gate learned and evaluated, one report."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from agents.evaluation import tables
from agents.evaluation.scoring import HEADLINE
from experiments.common.policies import names_of, seeds_of
from ooco_gym.commands.simulate import scenario_of
from ooco_gym.errors import UserError, end_if_interrupted
from ooco_gym.jobs import processes
from ooco_gym.render import RunRecord, report
from ooco_gym.render.comparison import comparison_table, difference_table
from ooco_gym.render.figures import (
    Groups,
    evaluation_figure,
    glance_figure,
    idle_seeds,
    training_figure,
    values_of,
    within_budget,
)
from ooco_gym.render.record import grouped, scenario_name
from ooco_gym.report import Section, Table, percent
from ooco_gym.report.terminal import progress
from ooco_gym.resources import conf_root

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
    from ooco_gym.render import record_of
    from ooco_gym.simulation import simulate

    return record_of(simulate(scenario, policy=policy), policy)


def import_learning() -> None:
    """Imports what training needs while the other process compiles."""
    for package in ("torch", "sb3_contrib"):
        with contextlib.suppress(ImportError):
            __import__(package)


LEAST_SPREAD = 0.2  # of the decisions: validated states closer together draw no curve
WORDS = {"episode_reward": "reward", HEADLINE: "offline service", "violation_rate": "violation rate"}


def gate_section(trained: Mapping[str, Any], evaluation: Mapping[str, Any], options: Mapping[str, Any]) -> Section:
    """The learned gate against the rules on the same held-out windows."""
    commands = [f"ooco-gym train env={options['env'].get('name') or 'gating'} seed={options['train_seed']} "
                f"max_wall_s={options['train_s']:g} out=gate",
                f"ooco-gym evaluate 'policies=[gate,{','.join(options['rules'])}]' episodes={options['episodes']} "
                "out=evaluation"]
    return Section("A first learned gate", [*training_words(trained), *evaluation_words(evaluation)],
                   evaluation_tables(evaluation), [_figure(evaluation), *_training_figures(trained, evaluation)],
                   _note(evaluation), commands)


def found_words(groups: Groups, budget: float, evaluation: Mapping[str, Any],
                trained: Mapping[str, Any] | None) -> str:
    """What was found, in one sentence: which policies keep the online promises, what they serve, what the gate adds."""
    kept = [label for label, members in groups.items() if within_budget(members, budget)]
    served = [f"{label} with {values_of(groups[label], 'offline', 'output_tokens_per_s').mean():,.0f} offline tokens a "
              "second" for label in kept]
    idle = [label for label, members in groups.items() if idle_seeds(members)]
    broken = [f"{label} breaks {percent(values_of(members, 'online', 'violation_rate').mean())}"
              for label, members in groups.items() if label not in (*kept, *idle)]
    broken += [f"{label} has no online request on some seed" for label in idle]
    text = (f"On these requests the online promises (at most {percent(budget, 0)} broken) are kept by "
            f"{' and '.join(served) or 'no policy'}")
    return f"{text}{': ' if broken else ''}{', '.join(broken)}{_gate_words(evaluation, trained)}."


def _gate_words(evaluation: Mapping[str, Any], trained: Mapping[str, Any] | None) -> str:
    """The end of the sentence: where the learned gate stands beside the best rule."""
    if trained is None:
        return ""
    learned = next(one for one in evaluation["policies"] if one["learned"])
    row = next((one for one in evaluation["paired"] if one["policy"] == learned["policy"]
                and one["metric"] == HEADLINE and one["mean_difference"] is not None), None)
    start = f"; a gate that learned for {trained['learning_wall_s']:.0f} s"
    if not learned["feasible"]:
        return f"{start} is not ranked"
    if row is None:
        return ""
    verdict = {"better": "serves more offline work than", "worse": "serves less offline work than"}
    return f"{start} {verdict.get(row['verdict'], 'shows no difference in offline service from')} {row['reference']}"


def missing_section(reason: str, evaluation: Mapping[str, Any]) -> Section:
    """The rules alone, and why no gate was trained."""
    return Section("Gates on held-out windows", [], evaluation_tables(evaluation),
                   [_figure(evaluation)], _note(evaluation), warning=f"No gate was trained: {reason}.")


def _figure(evaluation: Mapping[str, Any]) -> Any:
    return evaluation_figure(evaluation["results"], evaluation["violation_limit"])


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


def evaluation_words(evaluation: Mapping[str, Any]) -> list[str]:
    """Where the learned gate stands: its feasibility, and its paired differences to the best rule."""
    entry = next(one for one in evaluation["policies"] if one["learned"])
    name, reference = entry["policy"], evaluation["reference"]
    limit, upper = evaluation["violation_limit"], entry["violation_upper_limit"]
    lines = []
    if entry["feasible"]:
        ranked = sum(one["rank"] is not None for one in evaluation["policies"])
        lines.append(f"On {evaluation['episodes']} held-out windows the learned gate's violation rate is at most "
                     f"{percent(upper)} (upper limit), within {percent(limit, 0)}; by offline service it is number "
                     f"{entry['rank']} of {ranked} ranked policies.")
    elif upper is None:
        lines.append(f"On {evaluation['episodes']} held-out windows the learned gate's violation rate has no upper "
                     "limit (one window, or no online request): it is not ranked.")
    else:
        lines.append(f"On {evaluation['episodes']} held-out windows the upper limit of the learned gate's violation "
                     f"rate is {percent(upper)}, over {percent(limit, 0)}: it is not ranked.")
    found = {row["metric"]: row for row in evaluation["paired"]
             if row["policy"] == name and row["metric"] in WORDS and row["mean_difference"] is not None}
    if reference is not None and found:
        parts = [_difference_words(row, WORDS[metric]) for metric, row in found.items()]
        lines.append(f"Against {reference}, the best rule here, window by window: {'; '.join(parts)}.")
        if not any(row["verdict"] == "better" for row in found.values()):
            lines.append(f"So the gate does not beat {reference}. It was trained for a demonstration's time only; "
                         "'ooco-gym train' goes on for as long as it is told.")
    same = _alike(evaluation)
    if same:
        lines.append(f"{' and '.join(same)} score the same in every figure: on these windows their gates decide alike.")
    return lines


def evaluation_tables(evaluation: Mapping[str, Any]) -> list[Table]:
    """The evaluation's tables, as the terminal shows them, the policy first."""
    scores = tables.score_table(evaluation, "Held-out windows")
    result = [replace(scores, head=(scores.head[1], scores.head[0], *scores.head[2:]), note=tables.note(evaluation),
                      rows=[(row[1], row[0], *row[2:]) for row in scores.rows], align="lr")]
    if evaluation["paired"]:
        result.append(replace(tables.difference_table(evaluation), align="lr",
                              title=f"Differences to {evaluation['reference']}, window by window"))
    return result


def _difference_words(row: Mapping[str, Any], what: str) -> str:
    rate = row["metric"] == "violation_rate"

    def text(value: float) -> str:
        return f"{100 * value:+z.2f}" if rate else f"{value:+z.3g}"

    bracket = "" if row["ci_low"] is None else f" ({text(row['ci_low'])} to {text(row['ci_high'])})"
    unit = " points" if rate else ""
    return f"{what} {text(row['mean_difference'])}{unit}{bracket}, {row['verdict']}"


def _alike(evaluation: Mapping[str, Any]) -> list[str]:
    """Rules whose figures are all equal, the first such set."""
    figures: dict[tuple[float, ...], list[str]] = {}
    for entry in evaluation["policies"]:
        mine = tuple(row["mean"] for row in evaluation["results"] if row["policy"] == entry["policy"])
        figures.setdefault(mine, []).append(entry["policy"])
    return next((names for names in figures.values() if len(names) > 1), [])


def _training_figures(trained: Mapping[str, Any], evaluation: Mapping[str, Any]) -> Sequence[Any]:
    """How validation went, where it was done at different times."""
    history = trained["validation"]
    steps = [one["timesteps"] for one in history] or [0]
    if max(steps) - min(steps) < LEAST_SPREAD * max(1, max(steps)):
        return []
    return [training_figure(history, evaluation["violation_limit"])]


def _note(evaluation: Mapping[str, Any]) -> str:
    return (f"Points are means over {evaluation['episodes']} windows of held-out seeds, bars their intervals. "
            "All policies play the same windows; all other decisions are the partner's. Training against the clock "
            "gives another gate on another machine.")


SCHEMA = "ooco-gym/demo/1"
REPORT_FILE = "report.html"
ENDLESS = 10**9  # decisions: the clock ends training
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
    groups = grouped(records)
    budget = float(records[0].scenario["protocol"]["violation_budget"])
    tables = [table for table in (comparison_table(groups, budget), difference_table(groups)) if table is not None]
    for table in tables:
        table.turned().show(console)
    gate = [gate_section(trained, evaluation, options)] if trained else [missing_section(str(reason), evaluation)]
    path = report(out / REPORT_FILE, records, gate, title=TITLE if trained else None,
                  lead=found_words(groups, budget, evaluation, trained),
                  first=Section("", (), (), [glance_figure(groups, budget)], _made(records, seeds)))
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


def _collect(asked: Mapping[str, Sequence[Future[RunRecord]]]) -> list[RunRecord]:
    """Waits for the records of the comparison."""
    futures = [future for some in asked.values() for future in some]
    with progress("simulating the comparison", len(futures)) as bar:
        records = []
        for future in futures:
            records.append(future.result())
            bar.advance()
    return records


def _made(records: Sequence[RunRecord], seeds: Sequence[int]) -> str:
    first = records[0]
    return (f"Hatched: not ranked, as it breaks too many promises. Made by 'ooco-gym demo'. "
            f"{scenario_name(first.scenario)}, {first.window_s / 3600:.3g} h, "
            f"{len(seeds)} paired seed{'s' if len(seeds) > 1 else ''}; every figure comes from the simulator, none is "
            "measured on hardware.")
