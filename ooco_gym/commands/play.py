"""`ooco-gym play`: a person makes the decisions of an environment, beside what its partner makes of the window."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ooco_gym.commands import play_screen as screen
from ooco_gym.envs.decision import asked
from ooco_gym.errors import UserError, whole_number
from ooco_gym.policy import spelling_of
from ooco_gym.report.terminal import progress

if TYPE_CHECKING:
    from omegaconf import DictConfig

KEYS = "a number; Enter: as {partner}; p N: {partner} plays N decisions; q: {partner} plays the rest"
CONTROL_KEYS = "a level for each parameter, or name=level; " + KEYS.partition("; ")[2]


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
    game.console.print(screen.results(mine, reference, game.partner, game.counts()))
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
        self.console.print(screen.decision(self.env, self.observation, len(self.actions) + 1))
        self.console.print(screen.choices(self.env, self.observation, self.partner, self.wanted()))
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
            return (screen.levels_of(self.env, words),)
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
    arguments |= {key: cfg[key] for key in ("window_s", "warmup_s", "partner", "shift") if cfg[key] is not None}
    return gym.make(imported(name), disable_env_checker=True, **arguments).unwrapped
