"""`ooco-gym play`: a person makes the decisions of an environment, beside what its partner makes of the window.

The first part is the game, the second what it shows: the cluster, the legal actions in units, and the result.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ooco_gym.envs.buffers import CLOCK, FIXED, PARTNER_ACTION
from ooco_gym.envs.decision import actual, asked, figures_of, kinds, meaning
from ooco_gym.envs.features import CANDIDATES, candidate_table
from ooco_gym.errors import UserError, whole_number
from ooco_gym.policy import spelling_of
from ooco_gym.report import Table, percent, progress
from ooco_gym.sim import state as s

if TYPE_CHECKING:
    from omegaconf import DictConfig
    from rich.table import Table as RichTable

KEYS = "a number; Enter: as {partner}; p N: {partner} plays N decisions; q: {partner} plays the rest"
CONTROL_KEYS = "a level for each parameter, or name=level; " + KEYS.partition("; ")[2]
MOST_INSTANCES = 6  # shown one by one; of more, the sums of each role
_PARTNER = [feature.name for feature in CANDIDATES].index("partner")
SHARES = ("violation_rate",)  # of a summary: shown in percent


def main(cfg: DictConfig) -> dict[str, Any]:
    """Runs the command; returns its summary.

    Raises:
        UserError: no such environment, or a value that it cannot have.
    """
    from rich.console import Console

    steps = whole_number("steps", cfg.steps) if cfg.steps is not None else None
    env, alone = (_make(cfg) for _ in range(2))
    game = Game(env, Console(highlight=False), whole_number("seed", cfg.seed), whole_number("window", cfg.window))
    game.play(steps)
    with progress(f"{game.partner} alone"):
        reference = _partner_alone(alone, game.window)
    mine = env.summary()
    results(mine, reference, game.partner, game.counts()).show(game.console, frame="none")
    return {"env": env.spec.id, "seed": game.window[0], "window": game.window[1], "partner": game.partner,
            "decisions": game.counts(), "actions": game.actions, "you": mine, "partner_alone": reference}


class Game:
    """One window, decision by decision.

    Attributes:
        actions: what was taken so far: replays the window.
    """

    def __init__(self, env: Any, console: Any, seed: int, window: int) -> None:
        self.env, self.console, self.window = env, console, (seed, window)
        self.observation, _ = env.reset(seed=seed, options={"window": window})
        self.partner = env.simulation.policy.name
        self.actions: list[Any] = []
        self.own, self.differing, self.over = 0, 0, False
        self.reward = 0.0

    def asked(self) -> str:
        """Which kind of decision is open; '' where none is."""
        return asked(self.observation, self.env.decision_names)

    def counts(self) -> dict[str, int]:
        """Decisions in all, those that the person took, and those of them that differ from the partner's."""
        return {"all": len(self.actions), "yours": self.own, "different": self.differing}

    def play(self, steps: int | None) -> None:
        """Asks until the window ends, the input does, or `steps` decisions were taken; the partner plays the rest."""
        left = 0  # decisions that the partner was told to take
        while not self.over and (steps is None or len(self.actions) < steps) and self.asked():
            if left:
                left -= 1
                self._step(self._as_partner())
                continue
            answer = self._ask()
            if answer is None:
                break
            if isinstance(answer, int):
                left = answer
            else:
                self._own(answer[0])
        if not self.asked() and not self.actions:
            self.console.print("no decision is asked in this window: take another one (window=, seed=, window_s=)")
        with progress(f"{self.partner} plays the rest"):
            while not self.over:
                self._step(self._as_partner())

    def _own(self, action: Any) -> None:
        self.own += 1
        self.differing += not np.array_equal(action, self._as_partner()) and not np.array_equal(action, self.wanted())
        self._step(action)
        self.console.print(f"  reward {self.reward:+.3f}", style="dim")

    def _step(self, action: Any) -> None:
        self.observation, self.reward, terminated, truncated, _ = self.env.step(action)
        self.actions.append(np.asarray(action).tolist())
        self.over = terminated or truncated

    def _as_partner(self) -> Any:
        """The action that does what the partner would do: in the midst of picks, its next one."""
        action = self.env.partner_action()
        if self.env.episodes.controls is None and self.asked():
            if not self.observation["action_mask"][action]:
                return self.wanted()
        return action

    def wanted(self) -> Any:
        """The candidate (or the *no*) that the partner would take; its own action where it has no name for it."""
        return self.env.rule_action(spelling_of(self.env.config.partner))

    def _ask(self) -> Any:
        """Shows the decision and reads lines until one answers it.

        Returns:
            (action,), or how many decisions the partner is to take, or None: stop.
        """
        self.console.print(decision(self.env, self.observation, len(self.actions) + 1))
        self.console.print(choices(self.env, self.observation, self.partner, self.wanted()))
        keys = (KEYS if self.env.episodes.controls is None else CONTROL_KEYS).format(partner=self.partner)
        while True:
            line = _read(self.console, f"{keys} > " if self.own == 0 else "> ")
            if line is None or line in ("q", "quit"):
                return None
            try:
                return self._answer(line)
            except ValueError as error:
                self.console.print(f"  {error} ({keys})", style="yellow")

    def _answer(self, line: str) -> Any:
        words = line.split()
        if not words:
            return (self._as_partner(),)
        if words[0] == "p":
            return _count(words[1:])
        if self.env.episodes.controls is not None:
            return (levels_of(self.env, words),)
        legal = np.flatnonzero(self.observation["action_mask"]).tolist()
        if len(words) != 1 or not words[0].isdecimal():
            raise ValueError(f"'{line}' is no answer")
        if int(words[0]) not in legal:
            raise ValueError(f"{words[0]} is not legal here; legal are {', '.join(map(str, legal))}")
        return (int(words[0]),)


def _count(words: list[str]) -> int:
    """How many decisions `p N` gives to the partner; one where N is left out."""
    if not words:
        return 1
    if len(words) != 1 or not words[0].isdecimal() or not int(words[0]):
        raise ValueError(f"'p {' '.join(words)}': N must be a whole number of at least 1")
    return int(words[0])


def _read(console: Any, prompt: str) -> str | None:
    """One line of the user's, or of what is piped in (shown, so that the output reads like a game); None at its end."""
    if sys.stdin is not None and sys.stdin.isatty():
        try:
            return console.input(prompt, markup=False).strip()
        except EOFError:
            return None
    line = sys.stdin.readline() if sys.stdin is not None else ""
    console.print(f"{prompt}{line.strip()}", markup=False)
    return line.strip() if line else None


def _partner_alone(env: Any, window: tuple[int, int]) -> dict[str, float]:
    env.reset(seed=window[0], options={"window": window[1]})
    over = False
    while not over:
        _, _, _, over, _ = env.step(env.partner_action())
    return env.summary()


def _make(cfg: DictConfig) -> Any:
    """The environment that a configuration describes, with all that its `env` part says."""
    import gymnasium as gym
    from omegaconf import OmegaConf

    from ooco_gym.envs import ENVIRONMENTS, imported, is_ours
    from ooco_gym.envs.config import NOT_ARGUMENTS
    from ooco_gym.errors import unknown

    spec = cfg.env if isinstance(cfg.env, str) else OmegaConf.to_container(cfg.env, resolve=True)
    if not isinstance(spec, Mapping):
        raise UserError(f"env={spec} is no configuration; expected a name from conf/env/ or a YAML file")
    name = str(spec.get("id"))
    if not is_ours(name):
        raise unknown("environment", name, list(ENVIRONMENTS))
    arguments = {str(key): value for key, value in spec.items() if key not in NOT_ARGUMENTS}
    if arguments.get("action") == "box":
        raise UserError("env.action=box: the game offers candidates to choose from; leave action=discrete")
    arguments |= {key: cfg[key] for key in ("window_s", "warmup_s", "partner", "shift") if cfg[key] is not None}
    return gym.make(gym.spec(imported(name)), disable_env_checker=True, **arguments).unwrapped


# --- What is shown ----------------------------------------------------------------------------------------------------
def decision(env: Any, observation: Mapping[str, Any], number: int) -> Any:
    """The decision that is open, and how the cluster stands."""
    from rich.console import Group
    from rich.rule import Rule

    name, simulation = asked(observation, env.decision_names), env.simulation
    now = simulation.now_s - simulation.window_s[0]
    day = int(env.episodes.buffers.days[0] + simulation.now_s) % 86_400
    clock = f"{day // 3600:02d}:{day // 60 % 60:02d}:{day % 60:02d}"
    seen = zip(env.episodes.features, observation["cluster"], strict=True)
    rates = " / ".join(f"{actual(feature, float(value)):.1f}" for feature, value in seen
                       if feature.name in ("online_rate_10s", "online_rate_300s"))
    return Group(
        Rule(f"decision {number}: {name}", style="dim"),
        f"{now:.2f} s of {env.config.window_s:g} s, {clock}; {rates} online requests/s (10 s / 300 s), "
        f"{int(simulation.state.totals.violations)} of {int(simulation.state.totals.online_arrived)} missed an SLO",
        _instances(simulation.state, -1 if kinds()[name].kind >= CLOCK else int(simulation.state.pending.instance)))


def _instances(state: s.State, here: int) -> RichTable:
    instances, rows = state.instances, []
    if len(instances) <= MOST_INSTANCES:
        for index, one in enumerate(instances):
            activity = s.ACTIVITY_NAMES[one["activity"]].replace("_", " ")
            rows.append((">" if index == here else "", f"{index} {s.ROLE_NAMES[one['role']]}", activity,
                         _left(state, one), *_counts(instances[index:index + 1])))
    else:
        for role in dict.fromkeys(instances["role"].tolist()):
            members = instances[instances["role"] == role]
            busy = int((members["activity"] != s.IDLE).sum())
            rows.append(("", f"{len(members)} {s.ROLE_NAMES[role]}", f"{busy} busy", "", *_counts(members)))
    head = ("", "instance", "does", "for", "online + offline here", "waiting", "KV used")
    return Table("", head, rows, align="llllr").view(frame="none", unbroken=4)


def _left(state: s.State, one: Any) -> str:
    """How long the iteration in progress still takes; not known of a run of steps."""
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


def _candidates(env: Any, observation: Mapping[str, Any], offered: list[int], wanted: Any, partner: str) -> RichTable:
    name = asked(observation, env.decision_names)
    candidates, instances = candidate_table(observation["candidates"]), kinds()[name].kind == s.ROUTE
    figures = [figures_of(name, candidates[action - FIXED]) for action in offered]
    rows = [(action, *([env.episodes.buffers.chosen[0, action - FIXED]] if instances else []), *row.values(),
             _star(action, wanted, partner).strip()) for action, row in zip(offered, figures, strict=True)]
    head = ("", *(("instance",) if instances else ()), *figures[0], "")
    return Table("", head, rows, align="r" * (len(head) - 1) + "l").view(frame="none", unbroken=1)


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
    return [int(np.argmin(np.abs(controls.levels[index] - params[buffers.params[index]])))
            for index in range(len(controls.names))]


def _levels(env: Any) -> RichTable:
    controls, policy, rows = env.episodes.controls, env.simulation.policy, []
    choices_of = {param.name: param.choices for param in policy.params}
    for index, (name, level) in enumerate(zip(controls.names, standing(env), strict=True)):
        values = controls.levels[index, : controls.counts[index]]
        texts = [choices_of[name][int(value)] if choices_of[name] else f"{value:g}" for value in values]
        rows.append((name, "  ".join(f"{at}: {text}" for at, text in enumerate(texts)), level,
                     int(controls.tuned[index])))
    head = ("parameter", "levels", "stands at", f"{policy.name}'s")
    return Table(kinds()["control"].question, head, rows, align="l").view(frame="none")


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
def results(mine: Mapping[str, float], alone: Mapping[str, float], partner: str, counts: Mapping[str, int]) -> Table:
    """The figures of the window, beside those of the partner alone."""
    title = (f"The whole window: {counts['all']} decisions, by you {counts['yours']}, of these other than {partner}'s "
             f"{counts['different']}")
    rows = [(key.replace("reward/", "reward: ").replace("_per_s", " per s").replace("_", " "), _figure(key, value),
             _figure(key, alone[key]), _figure(key, value - alone[key], "+")) for key, value in mine.items()]
    return Table(title, ("", "with you", f"{partner} alone", "difference"), rows)


def _figure(key: str, value: float, sign: str = "") -> str:
    if key in SHARES:
        return percent(value, 2, sign)
    if value == 0:
        return "0"
    return f"{value:{sign},.0f}" if abs(value) >= 1000 or value == int(value) else f"{value:{sign}.3f}"
