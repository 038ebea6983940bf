"""`ooco-gym experiment turning`: what turning the parameters of `deadline` could be worth, by looking ahead.

Every `every_s` each instance is looked at: nothing moved, and each parameter of `ADJUSTED` moved by each of some steps,
is kept for `every_s` and played on for `horizon_s` (`experiments.common.probing`); what scores best is done. The score
is service (with what is credited for unfinished work) less a price, in reference GPU-seconds, for each violation. On
the true future it is clairvoyant: it knows arrivals and lengths, which no policy does. On `samples` drawn futures
(`agents.lookahead.rollout.Futures`) it knows what the workload's model knows. An action of `Batching-v0` lasts an
iteration; these last seconds, which is what a setting of `deadline` means, and what `adaptive_deadline` decides. The
windows are those of an environment's test split; differences are to the best heuristic, window by window
(docs/headroom.md).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from agents.environments import make_env, split_seeds
from agents.lookahead.rollout import Futures
from experiments.common.output import rounded, write_texts
from experiments.common.probing import PARAMETERS, Probes, turn_now
from ooco_gym.errors import UserError, is_number
from ooco_gym.files import write_json
from ooco_gym.jobs import cores
from ooco_gym.metrics.statistics import interval
from ooco_gym.policy import get_policy
from ooco_gym.report import Column, Table, console, percent, with_interval
from ooco_gym.report.terminal import progress
from ooco_gym.resources import load_yaml
from ooco_gym.scenario import Scenario
from ooco_gym.sim.state import PS_PER_S
from ooco_gym.simulation import Simulation, simulate

if TYPE_CHECKING:
    from omegaconf import DictConfig

POLICY, TURNS = "adaptive_deadline", "deadline"
_TIE = 1e-9
_FUTURES = 8  # traces from which futures are drawn


def policy_of(partner: Any) -> dict[str, Any]:
    """`adaptive_deadline` without weights, of the parameters of a partner that is `deadline`.

    Raises:
        UserError: the partner is another policy.
    """
    policy = get_policy(partner)
    if policy.name != TURNS:
        raise UserError(f"turning looks ahead over the parameters of '{TURNS}'; this environment's partner is "
                        f"'{policy.name}': take partner={TURNS}, or turning=null")
    return {"name": POLICY, **policy.values}


def turned(scenario: Scenario, partner: Any, settings: Mapping[str, Any], price: float, samples: int = 0,
           seed: int = 0) -> dict[str, float]:
    """Plays a window by looking ahead.

    Args:
        scenario: the window.
        partner: `deadline`, with its parameters.
        settings: `every_s`, `horizon_s` and `steps` (by how many of its steps a parameter may be moved).
        price: reference GPU-seconds of offline service that a violation is held to cost.
        samples: futures that are drawn at a look; 0: the true one.
        seed: of the drawn futures.

    Returns:
        `offline_reference_gpu_s_per_s`, `violation_rate`, `looks` and `moves` (looks after which something was moved).

    Raises:
        UserError: futures of these requests cannot be drawn.
    """
    simulation = Simulation(scenario, policy_of(partner))
    options = [(0, 0.0), *((place, float(step)) for place in range(len(PARAMETERS)) for step in settings["steps"])]
    futures = Futures(SimpleNamespace(simulations=[simulation], windows=[(int(scenario.seed), seed)]), seed,  # type: ignore[arg-type]  # what it reads of episodes
                      _FUTURES) if samples else None
    probes = Probes(simulation, len(options), template=simulation.state if futures is None else futures.state)
    now_s, end_s = simulation.window_s
    every_s, horizon_s, looks, moved = float(settings["every_s"]), float(settings["horizon_s"]), 0, 0
    while now_s < end_s:
        simulation.advance(now_s)
        for instance in range(len(simulation.state.instances)):
            moves = [(instance, place, step) for place, step in options]
            drawn = [simulation.state] if futures is None else futures.draw(simulation.state, samples)
            worth = np.zeros(len(moves))
            for state in drawn:
                played = probes.play(moves, every_s, min(horizon_s, end_s - now_s), state)
                worth += played[:, 0] - price * played[:, 1]
            best = int(np.argmax(worth > worth.max() - _TIE))
            turn_now(simulation, moves[best], now_s + every_s)
            looks, moved = looks + 1, moved + (best > 0)
        now_s += every_s
    simulation.advance()
    totals = simulation.state.totals
    return {"offline_reference_gpu_s_per_s": totals.service_ps / PS_PER_S / scenario.duration_s,
            "violation_rate": totals.violations / max(1, totals.online_arrived), "looks": looks, "moves": moved}


def main(cfg: DictConfig) -> dict[str, Any]:
    """Plays the test windows of `cfg.turning.env` with heuristics and with turned parameters; writes both figures.

    Raises:
        UserError: a value that is none, or an environment whose partner is not `deadline`.
    """
    from agents.settings import plain

    options = plain(cfg.turning)
    _check(options)
    config = {**load_yaml("env", options["env"]), "window_s": options["window_s"]}
    env: Any = make_env(config).unwrapped
    partner = env.config.partner
    policy_of(partner)
    seeds = split_seeds(config, "test")
    listed = [env.config.window(int(seeds[i % len(seeds)]), i // len(seeds)) for i in range(int(options["windows"]))]
    players: dict[str, Any] = {str(one): None for one in ("partner", *options["heuristics"])}
    for price in options["prices"]:
        players[f"turned, true future, price {price:g}"] = (float(price), 0)
        if options["samples"]:
            players[f"turned, drawn futures, price {price:g}"] = (float(price), int(options["samples"]))

    with progress("turning", len(listed) * len(players)) as bar, ThreadPoolExecutor(cores()) as executor:
        def play(job: tuple[str, int]) -> dict[str, float]:
            name, place = job
            found = (_plain(listed[place], partner if name == "partner" else name) if players[name] is None else
                     turned(listed[place], partner, options, *players[name], seed=place))
            bar.advance()
            return found
        jobs = [(name, place) for name in players for place in range(len(listed))]
        played = dict(zip(jobs, executor.map(play, jobs), strict=True))
    rows = rows_of({name: [played[name, place] for place in range(len(listed))] for name in players},
                   [name for name, how in players.items() if how is None], float(options["violations"]))
    table = table_of(rows)
    out = Path(cfg.out)
    write_texts({out / "turning.md": table.markdown() + "\n"})
    write_json(out / "turning.json", {"env": options["env"], "rows": rounded(rows)})
    table.show(console())
    return {"env": options["env"], "rows": rounded(rows)}


def _plain(scenario: Scenario, policy: Any) -> dict[str, float]:
    summary = simulate(scenario, policy).summary
    return {"offline_reference_gpu_s_per_s": summary["offline"]["reference_gpu_s_per_s"],
            "violation_rate": summary["online"]["violation_rate"] or 0.0}


def rows_of(played: Mapping[str, Sequence[Mapping[str, float]]], heuristics: Sequence[str], budget: float
            ) -> list[dict[str, Any]]:
    """Means with intervals, and differences to the heuristic with the most service of those within the budget (or, if
    none is, the fewest violations)."""
    service, violated = ({name: np.array([one[key] for one in runs]) for name, runs in played.items()}
                         for key in ("offline_reference_gpu_s_per_s", "violation_rate"))
    best = max(heuristics, key=lambda name: (min(0.0, budget - violated[name].mean()), service[name].mean()))
    return [{"policy": name, "service": _mean(service[name]), "violations": _mean(violated[name]), "best": name == best,
             "gain": _mean(service[name] - service[best]), "relative": float(service[name].mean()
                                                                             / service[best].mean() - 1.0),
             "more_violations": _mean(violated[name] - violated[best]), "windows": len(service[name])}
            for name in played]


def _mean(values: np.ndarray) -> list[float]:
    return [float(one) for one in interval(values)]


def table_of(rows: Sequence[Mapping[str, Any]]) -> Table:
    """All policies, a row each."""
    def shown(key: str, form: str) -> Any:
        return lambda row: with_interval(*row[key], form=form)
    columns = [Column("policy", lambda row: row["policy"] + (" (best heuristic)" if row["best"] else ""), align="l"),
               Column("offline ref. GPU-s/s", shown("service", ".3f")),
               Column("violations", shown("violations", ".2%")), Column("gain", shown("gain", "+.3f")),
               Column("in share", lambda row: percent(row["relative"], 1, "+")),
               Column("more violations", shown("more_violations", "+.2%"))]
    return Table.of(columns, rows)


def _check(options: Mapping[str, Any]) -> None:
    for key, least in (("windows", 1), ("samples", 0)):
        if not isinstance(options[key], int) or options[key] < least:
            raise UserError(f"turning.{key}={options[key]!r} must be a whole number of at least {least}")
    for key in ("every_s", "horizon_s", "window_s"):
        if not is_number(options[key]) or options[key] <= 0:
            raise UserError(f"turning.{key}={options[key]!r} must be a positive number of seconds")
    for key in ("steps", "prices"):
        if not isinstance(options[key], list) or not options[key] or not all(map(is_number, options[key])):
            raise UserError(f"turning.{key}={options[key]!r} must be a list of numbers")
