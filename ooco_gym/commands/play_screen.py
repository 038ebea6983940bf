"""What `ooco-gym play` shows: the cluster in one table, the candidates in units, and the result."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ooco_gym.envs.buffers import CLOCK, FIXED, PARTNER_ACTION
from ooco_gym.envs.decision import actual, asked, figures_of, kinds, meaning
from ooco_gym.envs.features import CANDIDATES, CLUSTER, candidate_table
from ooco_gym.sim import state as s

MOST_INSTANCES = 6  # shown one by one; of more, the sums of each role
_PARTNER = [feature.name for feature in CANDIDATES].index("partner")
_CLUSTER = {feature.name: place for place, feature in enumerate(CLUSTER)}
SHARES = ("violation_rate",)  # of a summary: shown in percent


def decision(env: Any, observation: Mapping[str, Any], number: int) -> Any:
    """The decision that is open, and how the cluster stands."""
    from rich.console import Group
    from rich.rule import Rule

    name, simulation = asked(observation, env.decision_names), env.simulation
    now = simulation.now_s - simulation.window_s[0]
    day = int(env.episodes.buffers.days[0] + simulation.now_s) % 86_400
    clock = f"{day // 3600:02d}:{day // 60 % 60:02d}:{day % 60:02d}"
    cluster = observation["cluster"]
    rates = " / ".join(f"{actual(CLUSTER[_CLUSTER[key]], float(cluster[_CLUSTER[key]])):.1f}"
                       for key in ("online_rate_10s", "online_rate_300s"))
    return Group(
        Rule(f"decision {number}: {name}", style="dim"),
        f"{now:.2f} s of {env.config.window_s:g} s, {clock}; {rates} online requests/s (10 s / 300 s), "
        f"{int(simulation.state.totals.violations)} of {int(simulation.state.totals.online_arrived)} missed an SLO",
        _instances(simulation.state, -1 if kinds()[name].kind >= CLOCK else int(simulation.state.pending.instance)))


def _instances(state: s.State, here: int) -> Any:
    from rich.table import Table

    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for head in ("", "instance", "does", "for"):
        table.add_column(head, no_wrap=True)
    for head in ("online + offline here", "waiting", "KV used"):
        table.add_column(head, justify="right")
    rows = state.instances
    if len(rows) <= MOST_INSTANCES:
        for place, one in enumerate(rows):
            activity = s.ACTIVITY_NAMES[one["activity"]].replace("_", " ")
            table.add_row(">" if place == here else "", f"{place} {s.ROLE_NAMES[one['role']]}", activity,
                          _left(state, one), *_counts(rows[place:place + 1]))
        return table
    for role in dict.fromkeys(rows["role"].tolist()):
        those = rows[rows["role"] == role]
        busy = int((those["activity"] != s.IDLE).sum())
        table.add_row("", f"{len(those)} {s.ROLE_NAMES[role]}", f"{busy} busy", "", *_counts(those))
    return table


def _left(state: s.State, one: Any) -> str:
    """How long the iteration in progress still takes; of a run of steps, nobody knows."""
    if one["activity"] == s.IDLE:
        return ""
    if one["activity"] == s.DECODE and one["steps"] > 1:
        return "a run"
    return f"{(one['end_ps'] - state.clock.now_ps) / 1e9:.0f} ms"


def _counts(rows: np.ndarray) -> list[str]:
    used = 1.0 - rows["free_blocks"].sum() / max(1, rows["total_blocks"].sum())
    held, waiting = ([str(int(rows[key].sum())) for key in keys] for keys in (
        ("urgent_members", "offline_members"), ("online_waiting", "offline_waiting")))
    return [" + ".join(held), " + ".join(waiting), f"{used:.0%}"]


def choices(env: Any, observation: Mapping[str, Any], partner: str, wanted: Any) -> Any:
    """The legal actions, what each means, and what the partner would do."""
    from rich.console import Group
    from rich.text import Text

    name = asked(observation, env.decision_names)
    if env.episodes.controls is not None:
        return _levels(env)
    lines, wanted = [Text(kinds()[name].question, style="bold")], _as_tuned(observation, wanted)
    legal = np.flatnonzero(observation["action_mask"]).tolist()
    offered = [action for action in legal if action >= FIXED]
    for action in legal[: len(legal) - len(offered)]:
        words = meaning(name, action, partner).partition(" (")[0]
        lines.append(Text(f"{action:>3}  {words}{_star(action, wanted, partner)}"))
    if not offered:
        return Group(*lines)
    span = f"{offered[0]}" if len(offered) == 1 else f"{offered[0]}-{offered[-1]}"
    lines.append(Text(f"{span:>3}  {kinds()[name].take}:"))
    return Group(*lines, _candidates(env, observation, offered, wanted, partner))


def _candidates(env: Any, observation: Mapping[str, Any], offered: list[int], wanted: Any, partner: str) -> Any:
    from rich.table import Table

    name = asked(observation, env.decision_names)
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="dim")
    table.add_column("", justify="right", style="bold", min_width=3)
    rows = candidate_table(observation["candidates"])
    figures = [figures_of(name, rows[action - FIXED]) for action in offered]
    instances = kinds()[name].kind == s.ROUTE
    for head in (*(("instance",) if instances else ()), *figures[0]):
        table.add_column(head, justify="right")
    table.add_column("")
    for action, row in zip(offered, figures, strict=True):
        place = [str(int(env.episodes.buffers.chosen[0, action - FIXED]))] if instances else []
        table.add_row(str(action), *place, *row.values(), _star(action, wanted, partner).strip())
    return table


def _as_tuned(observation: Mapping[str, Any], wanted: Any) -> Any:
    """Of a decision by the clock, the candidate at which the partner was tuned; else what it wants."""
    mine = np.flatnonzero(candidate_table(observation["candidates"])[:, _PARTNER])
    return FIXED + int(mine[0]) if wanted == PARTNER_ACTION and len(mine) else wanted


def _star(action: int, wanted: Any, partner: str) -> str:
    return f"  <- {partner}" if action == wanted != PARTNER_ACTION else ""


# --- Control: levels of several parameters --------------------------------------------------------------------------
def standing(env: Any) -> list[int]:
    """At which of its levels each parameter stands."""
    buffers, controls, params = env.episodes.buffers, env.episodes.controls, env.simulation.state.params
    return [int(np.argmin(np.abs(controls.levels[place] - params[buffers.params[place]])))
            for place in range(len(controls.names))]


def _levels(env: Any) -> Any:
    from rich.table import Table

    controls, policy, now = env.episodes.controls, env.simulation.policy, standing(env)
    choices_of = {param.name: param.choices for param in policy.params}
    table = Table(title=kinds()["control"].question, title_justify="left", title_style="bold", box=None,
                  padding=(0, 2, 0, 0), header_style="dim")
    for head in ("parameter", "levels", "stands at", f"{policy.name}'s"):
        table.add_column(head)
    for place, name in enumerate(controls.names):
        values = controls.levels[place, : controls.counts[place]]
        texts = [choices_of[name][int(value)] if choices_of[name] else f"{value:g}" for value in values]
        table.add_row(name, "  ".join(f"{level}: {text}" for level, text in enumerate(texts)), str(now[place]),
                      str(int(controls.tuned[place])))
    return table


def levels_of(env: Any, words: list[str]) -> np.ndarray:
    """Reads `2 2 3 2 2 0`, or `slo_margin=3 …` (the others stay where they are).

    Raises:
        ValueError: neither, or a level that there is not.
    """
    controls = env.episodes.controls
    names, levels = controls.names, standing(env)
    named = [word.partition("=") for word in words]
    if all(sign for _, sign, _ in named):
        pairs = [(name, level) for name, _, level in named]
    elif len(words) == len(names):
        pairs = list(zip(names, words, strict=True))
    else:
        raise ValueError(f"expected {len(names)} levels, or name=level")
    for name, level in pairs:
        if name not in names:
            raise ValueError(f"there is no parameter '{name}'; there are {', '.join(names)}")
        most = int(controls.counts[names.index(name)]) - 1
        if not level.isdecimal() or int(level) > most:
            raise ValueError(f"{name}={level}: levels are 0 to {most}")
        levels[names.index(name)] = int(level)
    return np.array(levels)


# --- The result -----------------------------------------------------------------------------------------------------
def results(mine: Mapping[str, float], alone: Mapping[str, float], partner: str, counts: Mapping[str, int]) -> Any:
    """The figures of the window, beside those of the partner alone."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    title = (f"The whole window: {counts['all']} decisions, by you {counts['yours']}, of these other than {partner}'s "
             f"{counts['different']}")
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("")
    for head in ("with you", f"{partner} alone", "difference"):
        table.add_column(head, justify="right")
    for key, value in mine.items():
        label = key.replace("reward/", "reward: ").replace("_per_s", " per s").replace("_", " ")
        table.add_row(label, _figure(key, value), _figure(key, alone[key]), _figure(key, value - alone[key], "+"))
    return Group(Text(title, style="bold"), table)


def _figure(key: str, value: float, sign: str = "") -> str:
    if key in SHARES:
        return f"{100 * value:{sign}.2f} %"
    if value == 0:
        return "0"
    return f"{value:{sign},.0f}" if abs(value) >= 1000 or value == int(value) else f"{value:{sign}.3f}"
