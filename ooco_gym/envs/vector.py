"""N episodes as one Gymnasium `VectorEnv`: all of them advance in one compiled call."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from gymnasium.spaces.utils import flatten_space
from gymnasium.utils.seeding import np_random
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from ooco_gym import jobs
from ooco_gym.envs import add, vector_name
from ooco_gym.envs import reward as r
from ooco_gym.envs.base import DecisionEnv, box_actions, spaces_of
from ooco_gym.envs.batch_step import BatchStep
from ooco_gym.envs.buffers import KIND, NO_KIND, OPEN
from ooco_gym.envs.config import EpisodeConfig, episode_config, reset_options, window_number
from ooco_gym.envs.episodes import INFO_KEYS, Episodes
from ooco_gym.envs.snapshots import Snapshots
from ooco_gym.envs.viewer import Viewer
from ooco_gym.errors import UserError
from ooco_gym.schema import whole

_INFO = slice(r.TERM, r.ELAPSED + 1)
_REWARD = INFO_KEYS.index("reward")
WINDOWS = 1_000  # number of windows of a seed to draw from
_OF_THE_BUFFERS = ("episodes", "_arrays", "_own", "_actions", "_out", "_flags", "_watch")  # set by `_attach`


class DecisionVectorEnv(VectorEnv):
    """N episodes of a `DecisionEnv`, equal to N single ones transition by transition.

    Args:
        num_envs: N.
        autoreset_mode: a `gymnasium.vector.AutoresetMode` or its value: `NextStep` (Gymnasium's default: the step after
            an episode's end ignores the action and resets), `SameStep` (the last observation and info are in
            `infos["final_obs"]`, `infos["final_info"]`), `Disabled` (reset with `options={"reset_mask": ...}`).
        max_episode_steps: truncates after this many decisions; None: only at the window's end.
        train_seeds: every episode simulates a random window of one of these seeds, whatever
            `reset` is given, so that training meets no other seed; None: as `reset` and the seeds
            drawn from it give.
        train_stream: seeds each slot's draws from `train_seeds`.
        bank: number of windows kept in memory after their warm-up, which restart at once; with
            `train_seeds`, no other windows are drawn. 0: none, and a thousand windows of each
            seed.
        idle: with autoreset `Disabled`, ended episodes wait for their reset while the others go
            on, with rewards of 0 and unchanged observations; otherwise `step` raises until they
            are reset.
        threads: threads that step the episodes, including the caller's, at most one per episode;
            results do not depend on it. More than one pays with many episodes or long steps on
            idle cores (docs/own_agents.md). None: one per core that this process may use
            (`jobs.threads`).
        flat: an observation is one float32 vector per episode, (N, size), as in the single
            environment.
        **arguments: as in the single environment.

    `step` returns copies. `infos` has arrays of (N,), each with a mask `_<key>`, and
    `action_mask` as int8 (N, A); `action_masks()` is the same as bool. If no episode begins or
    ends, the masks `_<key>` are all True and read-only.
    """

    single: ClassVar[type[DecisionEnv]] = DecisionEnv

    def __init__(self, num_envs: int = 1, autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
                 max_episode_steps: int | None = None, render_mode: str | None = None,
                 train_seeds: Sequence[int] | None = None, train_stream: int = 0, bank: int = 0,
                 idle: bool = False, threads: int | None = 1, flat: bool = False, **arguments: Any) -> None:
        self.num_envs = whole("num_envs", num_envs, 1)
        self._bank = whole("bank", bank, 0)
        self._threads = jobs.threads() if threads is None else whole("threads", threads, 1)
        self._most = None if max_episode_steps is None else whole("max_episode_steps", max_episode_steps, 1)
        try:
            self.mode = AutoresetMode(autoreset_mode)
        except ValueError:
            names = ", ".join(mode.value for mode in AutoresetMode)
            raise UserError(f"autoreset_mode={autoreset_mode!r} must be one of {names}") from None
        modes = [mode for mode in self.single.metadata["render_modes"] if mode != "human"]
        self._idle = bool(idle) and self.mode == AutoresetMode.DISABLED
        self.metadata = {**self.single.metadata, "render_modes": modes, "autoreset_mode": self.mode}
        self.render_mode = render_mode
        self.config: EpisodeConfig = episode_config(self.single.default_scenario,
                                                    most_candidates=self.single.most_candidates,
                                                    terms=self.single.terms, **arguments)
        self.episodes = self._new_episodes()
        self.parts_space, self.single_action_space = spaces_of(self.episodes)
        self._flat = bool(flat)
        self.single_observation_space = flatten_space(self.parts_space) if flat else self.parts_space
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._attach()
        self._randoms: list[np.random.Generator] = []
        self._train_seeds = _train_seeds(train_seeds)
        stream = whole("train_stream", train_stream, 0)
        self._train_randoms = [np.random.default_rng([stream, i]) for i in range(num_envs)]
        self._over = np.zeros(num_envs, bool)  # ended, not reset yet
        self._steps = np.zeros(num_envs, np.int64)  # counted if `max_episode_steps` is set
        self._started = False
        self._look()

    def _new_episodes(self) -> Episodes:
        of = self.single
        return Episodes(self.config, of.decisions, self.num_envs, self._bank, of.terms, of.own_features, self._threads)

    def _attach(self) -> None:
        """Names the arrays of the episodes, and starts watching them."""
        buffers = self.episodes.buffers
        self._watch = Viewer(self.episodes, self.single.__name__.removesuffix("Env"), self.render_mode,
                            self.metadata["render_modes"], self.metadata["render_fps"])
        self._arrays = {"cluster": buffers.cluster, "candidates": buffers.candidates.reshape(self.num_envs, -1),
                        "action_mask": buffers.mask, "decision": buffers.decision}
        vectors = self.episodes.controls is not None or self.config.box
        self._actions = buffers.actions if vectors else buffers.actions[:, 0]
        self._out = BatchStep(self.episodes)
        everyone = np.ones(self.num_envs, bool)
        everyone.flags.writeable = False
        self._own = {f"reward/{name}": buffers.reward_sums[:, column]
                     for name, (column, _) in self.episodes.own_terms.items()}
        self._flags = {f"_{key}": everyone for key in (*INFO_KEYS, "action_mask", *self._own) if key != "reward"}

    def _look(self) -> None:
        """Caches what a step checks first: whether an episode is over, and how many steps until
        one may reach its limit."""
        self._waiting = bool(self._over.any())
        self._free = math.inf if self._most is None else self._most - 1 - int(self._steps.max())

    def __getstate__(self) -> dict[str, Any]:
        """Everything that a copy in another process, or a resumed training, needs to continue."""
        kept = {key: value for key, value in self.__dict__.items() if key not in _OF_THE_BUFFERS}
        begun = [i for i, simulation in enumerate(self.episodes.simulations) if simulation is not None]
        return {**kept, "_taken": {i: Snapshots(self.episodes, i).take() for i in begun}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        taken = state.pop("_taken")
        self.__dict__.update(state)
        self.episodes = self._new_episodes()
        self._attach()
        for i, snapshot in taken.items():
            Snapshots(self.episodes, i).put_back(snapshot)
            self._watch.begin(i)

    # --- Gymnasium -------------------------------------------------------------------------------------------------
    def reset(self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
              ) -> tuple[Any, dict[str, Any]]:
        """Starts an episode in every slot, or in those that `options["reset_mask"]` selects.

        Args:
            seed: slot i takes seed + i, or its own from a list; None continues drawing.
            options: `window`: number of the window of its seed, for all slots or one per slot;
                `reset_mask`: bool (N,).

        Raises:
            UserError: an unknown or invalid option, or a first reset of only some slots.
        """
        options = reset_options(options, ("window", "reset_mask"))
        chosen = self._reset_mask(options.get("reset_mask"))
        numbers = self._numbers(options.get("window"))
        seeds = self._seeds(seed)
        if not self._started:
            if not chosen.all():
                raise UserError("options['reset_mask'] excludes episodes that have not begun: the first reset must be "
                                "of all episodes")
            self._randoms = [np.random.default_rng() for _ in range(self.num_envs)]
        for i in np.flatnonzero(chosen):
            self._start(int(i), seeds[i], numbers[i])
        self._started = True
        self._look()
        infos = {"action_mask": self.episodes.buffers.mask.copy(), "_action_mask": np.ones(self.num_envs, bool),
                 "elapsed_s": np.zeros(self.num_envs), "_elapsed_s": chosen.copy()}
        infos |= self._notes(np.flatnonzero(chosen))
        return self._observed(self._copies()), infos

    def _reset_mask(self, mask: Any) -> np.ndarray:
        if mask is None:
            return np.ones(self.num_envs, bool)
        mask = np.asarray(mask)
        if mask.dtype != np.bool_ or mask.shape != (self.num_envs,) or not mask.any():
            raise UserError(f"options['reset_mask'] must be a bool array of shape ({self.num_envs},) with at least one "
                            "True")
        return mask

    def _numbers(self, window: Any) -> list[int | None]:
        if isinstance(window, (list, tuple, np.ndarray)):
            if len(window) != self.num_envs:
                raise UserError(f"options['window'] has {len(window)} entries for {self.num_envs} environments")
            return [window_number(one) for one in window]
        return [window_number(window)] * self.num_envs

    def _seeds(self, seed: Any) -> list[int | None]:
        if seed is None or isinstance(seed, (int, np.integer)):
            return [None if seed is None else int(seed) + i for i in range(self.num_envs)]
        if len(seed) != self.num_envs:
            raise UserError(f"seed has {len(seed)} entries for {self.num_envs} environments")
        return [None if one is None else int(one) for one in seed]

    def _start(self, i: int, seed: int | None, number: int | None = None) -> None:
        """Starts slot i as `DecisionEnv.reset` does: a given seed is used itself, later ones are
        drawn from it."""
        if self._train_seeds is not None:
            random = self._train_randoms[i]
            numbers = WINDOWS if self._bank == 0 else max(1, self._bank // len(self._train_seeds))
            seed = self._train_seeds[int(random.integers(len(self._train_seeds)))]
            number = int(random.integers(numbers))
        if seed is not None:
            self._randoms[i] = np_random(seed)[0]
        played = seed if seed is not None else int(self._randoms[i].integers(2**31))
        window = number if number is not None else int(self._randoms[i].integers(WINDOWS))
        self.episodes.start(i, played, window)
        self._over[i], self._steps[i] = False, 0

    def step(self, actions: Any) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """Takes every action and runs each episode to its next decision; see the class docstring.

        Raises:
            UserError: actions of the wrong shape, or (autoreset disabled) an episode that is over.
        """
        if not self._started:
            raise UserError("call reset() before step()")
        self._take(actions)
        if self._waiting and self.mode == AutoresetMode.DISABLED and not self._idle:
            raise UserError(f"episodes {np.flatnonzero(self._over).tolist()} are over: reset them with "
                            "options={'reset_mask': ...}")
        ended = self.episodes.step()
        if self._most is not None:
            self._steps += 1
        if self._waiting or ended or self._free <= 0:
            return self._turned(ended)
        self._free -= 1
        n, infos = self.num_envs, self._flags.copy()
        parts, rewards = self._out.take(infos)
        for key, column in self._own.items():
            infos[key] = column.copy()
        illegal = self.episodes.illegal()
        if illegal is not None:
            infos |= {"illegal_action": illegal, "_illegal_action": illegal.copy()}
        return self._observed(parts), rewards, np.zeros(n, bool), np.zeros(n, bool), infos

    def _turned(self, ended: Sequence[int]) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """Completes a step in which episodes may end or begin."""
        buffers, going = self.episodes.buffers, ~self._over
        resets = np.flatnonzero(self._over) if self.mode == AutoresetMode.NEXT_STEP else np.empty(0, int)
        over, same = np.zeros(self.num_envs, bool), self.mode == AutoresetMode.SAME_STEP
        over[ended] = True
        if self._most is not None:
            over |= going & (self._steps >= self._most)
        terminated = over & (buffers.status[:, KIND] == NO_KIND)
        rewards = np.where(going, buffers.reward_sums[:, r.TERM + _REWARD], 0.0)
        told = going & ~over if same else going
        infos, illegal = self._infos(told), self.episodes.illegal()
        if illegal is not None:
            infos |= {"illegal_action": illegal & told, "_illegal_action": illegal & told}
        for i in np.flatnonzero(over).tolist():
            last = {"summary": self.summary(i)} if i in ended else {}
            if same:
                last = {"final_obs": self._observed(self._copies(i)),
                        "final_info": self._last_info(i, illegal is not None and bool(illegal[i])) | last}
            infos = self._add_info(infos, last, i)
        self._over |= over
        buffers.status[over, OPEN] = 0
        if same:
            resets = np.flatnonzero(over)
        for i in resets:  # next-step mode: this step is their reset
            self._start(int(i), None)
        if len(resets):
            infos["action_mask"] = buffers.mask.copy()
            infos |= self._notes(resets)
        self._look()
        return self._observed(self._copies()), rewards, terminated, over & ~terminated, infos

    def _notes(self, begun: np.ndarray) -> dict[str, np.ndarray]:
        """The notes of episodes that have just begun, as information; empty if there are none."""
        notes, there = np.empty(self.num_envs, object), np.zeros(self.num_envs, bool)
        for i in begun:
            notes[i] = self.episodes.notes(int(i)) or None
            there[i] = notes[i] is not None
        return {"notes": notes, "_notes": there} if there.any() else {}

    def _take(self, actions: Any) -> None:
        if self.config.box:
            self._actions[:] = box_actions(actions, self.action_space)
            return
        values = np.asarray(actions)
        if values.shape != self._actions.shape or values.dtype.kind not in "iu":
            raise UserError(f"step(): actions of shape {values.shape} and type {values.dtype}; expected whole numbers "
                            f"of shape {self._actions.shape}")
        if self.episodes.controls is not None:
            self.episodes.set_levels(values.astype(np.int64))
            return
        self._actions[:] = values

    def _infos(self, present: np.ndarray) -> dict[str, Any]:
        """Information on the steps of the episodes in `present`; the others have just been reset."""
        columns = np.where(present, self.episodes.buffers.reward_sums[:, _INFO].T, 0.0)
        infos: dict[str, Any] = dict(zip(INFO_KEYS, columns, strict=True))
        infos |= {key: np.where(present, column, 0.0) for key, column in self._own.items()}
        del infos["reward"]
        infos |= {f"_{key}": present.copy() for key in infos}
        everyone = np.ones((2, self.num_envs), bool)
        infos["action_mask"], (infos["_action_mask"], infos["_elapsed_s"]) = self.episodes.buffers.mask.copy(), everyone
        return infos

    def _last_info(self, i: int, illegal: bool) -> dict[str, Any]:
        """The last step's information, as in the single environment."""
        info = self.episodes.info(i)
        del info["reward"]
        info["action_mask"] = self.episodes.buffers.mask[i].copy()
        return info | {"illegal_action": True} if illegal else info

    def action_masks(self) -> np.ndarray:
        """Legality of each action of each episode, bool (N, A)."""
        return self.episodes.buffers.mask.astype(bool)

    def base_actions(self) -> np.ndarray:
        """Returns the actions that do what the base policy would do: (N,), or (N, P)."""
        return self.episodes.base_actions()

    def rule_actions(self, name: str) -> np.ndarray:
        """Returns the actions closest to what a policy's rule would do now: (N,), or (N, P)."""
        return self.episodes.rule_actions(name)

    def summary(self, i: int) -> dict[str, float]:
        """Returns the protocol's metrics of episode i so far."""
        return self.episodes.summary(i)

    @property
    def windows(self) -> list[tuple[int, int]]:
        """(seed, number) of each slot's window; (-1, -1) before its first start."""
        return self.episodes.windows

    def close_extras(self, **kwargs: Any) -> None:
        """Ends the stepping threads."""
        self.episodes.close()

    def render(self) -> tuple[Any, ...] | None:
        """Renders each episode, in the modes of a single environment except `human`.

        Raises:
            UserError: pictures are requested before the first reset.
        """
        shown = self._watch.render()
        return None if shown is None else tuple(shown)

    def _copies(self, i: Any = slice(None)) -> dict[str, np.ndarray]:
        return {key: array[i].copy() for key, array in self._arrays.items()}

    def _observed(self, parts: dict[str, np.ndarray]) -> Any:
        """Returns observations of these parts, as a Dict or flat."""
        return np.concatenate([parts[key] for key in self.parts_space], axis=-1) if self._flat else parts


def _train_seeds(seeds: Any) -> list[int] | None:
    if seeds is None:
        return None
    if isinstance(seeds, (str, Mapping)) or not isinstance(seeds, Iterable) or not (listed := list(seeds)):
        raise UserError(f"train_seeds={seeds!r} must be a list of at least one seed, or None (reset chooses them)")
    return [whole(f"train_seeds[{index}]", seed, 0) for index, seed in enumerate(listed)]


def register(single: type[DecisionEnv]) -> type[DecisionVectorEnv]:
    """Registers an environment and its vector class under its `id`; the last line of an
    environment's file.

    Returns:
        The vector class, which becomes an attribute of the module, for example
            `PrefillGateVectorEnv`.
    """
    name = vector_name(single.__name__)
    made = type(name, (DecisionVectorEnv,), {"single": single, "__doc__": f"N episodes of `{single.__name__}`.",
                                             "__module__": single.__module__, "__qualname__": name})
    setattr(sys.modules[single.__module__], name, made)
    add(single.id, f"{single.__module__}:{single.__name__}")
    return made
