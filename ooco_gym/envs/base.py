"""The Gymnasium environment of any set of decisions; what is particular to one is in its own file."""

from __future__ import annotations

from operator import index as whole
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.spaces.utils import flatten_space

from ooco_gym.envs import features
from ooco_gym.envs.buffers import BOX_ONE, FIXED, ILLEGAL
from ooco_gym.envs.config import EpisodeConfig, episode_config, reset_options, window_number
from ooco_gym.envs.custom import Figure, Term
from ooco_gym.envs.decision import Decision, candidate_columns
from ooco_gym.envs.episodes import Episodes
from ooco_gym.envs.snapshots import Snapshot, Snapshots
from ooco_gym.envs.viewer import Watch
from ooco_gym.errors import UserError
from ooco_gym.policy import list_policies


class DecisionEnv(gym.Env):
    """Decisions of a co-located cluster, one after the other; subclasses say which.

    ## Observation Space
    `Dict`: `cluster` float32 (C,), `candidates` (K x F, row by row) float32 (K·F,), `action_mask` int8 (A,), `decision`
    float32 (D,), one hot. `ooco_gym.candidate_table(observation)` is the table (K, F); where an action is a vector of P
    levels, `candidate_table(observation, parameters=P)`. Each kind of decision has its own table of candidates; where
    an environment asks several kinds, `decision` says whose it is, and columns beyond it are 0. Every part has one
    axis, as Stable-Baselines3 expects. With `flat=True` an observation is one float32 vector,
    `gymnasium.spaces.flatten` of the Dict: mask, candidates, cluster, decision, in this order
    (`gymnasium.spaces.unflatten(env.unwrapped.parts_space, observation)` takes it apart again).

    Nothing is clairvoyant: lengths of unfinished outputs are hidden. What a length predictor believes of them is a part
    of the observation in EvictionPredicted-v1 and MigrationPredicted-v1 alone.

    ## Rewards
    The sum of named terms, each in `info["reward/<term>"]`, with weights from `conf/reward`. `service` is positive, all
    others are negative. `late` keeps a request that has missed its SLO worth serving; `burst` keeps the violation
    budget of a day from being spent on one peak. `info["cost"]` counts the online requests that missed an SLO for the
    first time, `cost_ttft` and `cost_tpot` by SLO. The terms of an episode add up to the figures of `summary`.
    Where the scenario names classes of requests (`classes`), each request is held against its own class's SLO and
    counted once, whatever the class's weight; where a column has *the TPOT SLO*, that is the tightest of the online
    classes. A subclass may add terms (`terms`), and figures to `cluster` (`figures`): `ooco_gym.envs.custom`.

    ## Starting State
    `reset(seed=s, options={"window": w})` plays window w of seed s: a part of the day, its arrivals and lengths, after
    a warm-up under the base policy. Without options the window is drawn from the seed.

    ## Episode End
    An episode is truncated after `window_s` and never terminated. The load then goes on under the base policy until
    every online request of the window has finished or missed its SLO; what that adds is in the last reward. A
    decision is asked only where two actions at least are legal beside the base policy's. A window without a decision
    ends with its first step, in which only the base policy's action is legal. A cluster or base policy with which no
    decision can ever come up is refused.

    ## Information
    `action_mask` (int8), `elapsed_s` (simulated time since the last decision, for discounting in continuous time),
    `cost`, `cost_ttft`, `cost_tpot`, `reward/<term>`; at the end `summary`, the protocol's figures of the episode. The
    info of `reset` has `notes` where there are any: what of the cluster's chips was not measured, a sentence each.

    ## Arguments
    `scenario` is a name in `conf/env`, a YAML's path or a mapping of `Scenario` fields, `workload` and `cluster` are
    short for these fields, `candidates` is K, `reward` a name in `conf/reward` or a mapping of weights, `interval_s` of
    decisions by the clock, `shift` one of the scenario's distribution shifts; `levels`, `shares`, `action`, `controls`,
    `vary` and `shifts` are as in `conf/env`. With `flat` an observation is one vector, and the mask is in
    `info["action_mask"]` and `action_masks()` as ever.
    An illegal action does what the base policy would do: `info["illegal_action"]` is then True, and the episode's
    summary has their number as `illegal_actions`.

    ## Rendering
    `rgb_array` (needs the extra `render`) is a picture of the cluster as it stands: what each instance runs, its
    requests and its KV memory in use, who waits and how many were late; Gymnasium's `RecordVideo` (needs moviepy) makes
    films of it. `ansi` is a line of text on the instances; `human` prints it, `render_fps` times a second at most.

    ## Snapshots
    `state = env.unwrapped.snapshot()` copies the episode in a fraction of a millisecond, `env.unwrapped.restore(state)`
    goes on there, bit by bit the same; also in another environment of the same arguments, or after pickling.

    ## References
    OOCO (arXiv 2511.21862), HyGen (arXiv 2501.14808), Echo (arXiv 2504.03651), BROS (arXiv 2504.09590).

    ## Version History
    * v1 (Gating: v2): each kind of decision has its own table of candidates, and no action is there twice.
    """

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["human", "rgb_array", "ansi"], "render_fps": 4}
    id: ClassVar[str] = ""
    decisions: ClassVar[tuple[Decision, ...]] = ()
    terms: ClassVar[tuple[Term, ...]] = ()  # of the reward, beside those of all environments
    figures: ClassVar[tuple[Figure, ...]] = ()  # of the observation's `cluster`, beside the common ones
    default_scenario: ClassVar[str] = ""
    most_candidates: ClassVar[int] = 64

    def __init__(self, *, render_mode: str | None = None, flat: bool = False, **arguments: Any) -> None:
        self.render_mode = render_mode
        self.config: EpisodeConfig = episode_config(self.default_scenario, most_candidates=self.most_candidates,
                                                    terms=self.terms, **arguments)
        self.episodes = self._new_episodes()
        self.parts_space, self.action_space = spaces_of(self.episodes)
        self._flat = bool(flat)
        self.observation_space = flatten_space(self.parts_space) if flat else self.parts_space
        self._attach()
        self._started = False

    def _new_episodes(self) -> Episodes:
        return Episodes(self.config, self.decisions, 1, terms=self.terms, figures=self.figures)

    def _attach(self) -> None:
        """Names the arrays of the one episode, and begins to watch it."""
        buffers = self.episodes.buffers
        self._watch = Watch(self.episodes, type(self).__name__.removesuffix("Env"), self.render_mode,
                            self.metadata["render_modes"], self.metadata["render_fps"])
        self._snapshots = Snapshots(self.episodes)
        parts = {"cluster": buffers.cluster[0], "candidates": buffers.candidates[0].reshape(-1),
                 "action_mask": buffers.mask[0], "decision": buffers.decision[0]}
        self._copies = tuple(part.copy for part in parts.values())
        self._row = [parts[key] for key in self.parts_space]
        self._actions, self._mask = buffers.actions[0], buffers.mask[0]

    def __getstate__(self) -> dict[str, Any]:
        """All that a copy in another process needs to go on here."""
        kept = {key: value for key, value in self.__dict__.items()
                if key not in ("episodes", "_copies", "_row", "_actions", "_mask", "_watch", "_snapshots")}
        return {**kept, "_taken": self.snapshot() if self.episodes.simulations[0] is not None else None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        taken = state.pop("_taken")
        self.__dict__.update(state)
        self.episodes = self._new_episodes()
        self._attach()
        if taken is not None:
            self.restore(taken)

    # --- Gymnasium -------------------------------------------------------------------------------------------------
    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None
              ) -> tuple[Any, dict[str, Any]]:
        """Starts a window; see the class.

        Raises:
            UserError: an unknown option, or a window that is no whole number of at least 0.
        """
        number = window_number(reset_options(options, ("window",)).get("window"))
        super().reset(seed=seed)
        played = seed if seed is not None else int(self.np_random.integers(2**31))
        self.window = (played, number if number is not None else int(self.np_random.integers(1_000)))
        self.episodes.start(0, *self.window)
        self._started = True
        notes = self.episodes.notes(0)
        return self._observation(), {"action_mask": self._mask.copy(), "elapsed_s": 0.0,
                                     **({"notes": notes} if notes else {})}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Answers the decision and runs on to the next one; see the class.

        Raises:
            UserError: the action is no whole number (or vector of them), or the episode is over.
        """
        if not (self._started and self.episodes.open(0)):
            raise UserError("the episode is over: call reset()" if self._started else "call reset() before step()")
        self._take(action)
        over = bool(self.episodes.step(0, 1))
        info = self.episodes.info(0)
        reward = info.pop("reward")
        info["action_mask"] = self._mask.copy()
        if self.episodes.illegal() is not None:
            info["illegal_action"] = True
        if over:
            info["summary"] = self.summary()
        return self._observation(), reward, False, over, info

    def _take(self, action: Any) -> None:
        if self.config.box:
            self._actions[:] = box_actions(action, self.action_space)
            return
        controls = self.episodes.controls
        try:
            if controls is None:
                self._actions[0] = whole(action)
                return
            levels = [whole(level) for level in action]
        except OverflowError:
            self._actions[0] = ILLEGAL
            return
        except TypeError:
            levels = []
        if controls is None or len(levels) != len(self._actions):
            raise UserError(f"step({action!r}): expected an action of {self.action_space}")
        bounded = np.clip(np.array(levels, object), ILLEGAL, controls.levels.shape[1])
        self.episodes.set_levels(bounded.astype(np.int64)[None])

    def action_masks(self) -> np.ndarray:
        """Legality of each action, bool (A,), as sb3-contrib asks for it."""
        return self._mask.astype(bool)

    def render(self) -> Any:
        """A picture, uint8 (height, width, 3), or a line of text, as the class says; None where lines are printed.

        Raises:
            UserError: a picture before the first reset.
        """
        shown = self._watch.render()
        return None if shown is None else shown[0]

    def snapshot(self) -> Snapshot:
        """A copy of where the episode stands, for `restore`; wrappers and the drawing of windows are not part of it.

        Raises:
            UserError: not reset yet.
        """
        return self._snapshots.take()

    def restore(self, state: Snapshot) -> tuple[Any, dict[str, Any]]:
        """Goes on where a snapshot stands: of this environment, or of another one of the same arguments.

        Returns:
            Observation and info, as `reset` does.

        Raises:
            UserError: no snapshot, or one of another configuration.
        """
        self._snapshots.put_back(state)
        self.window, self._started = state.window, True
        self._watch.begin(0)
        return self._observation(), {"action_mask": self._mask.copy(), "elapsed_s": 0.0}

    # --- For agents and evaluation ---------------------------------------------------------------------------------
    def base_action(self) -> Any:
        """The action that does what the base policy would do."""
        return self.episodes.base_actions()[0]

    def partner_action(self) -> Any:
        """Raises UserError: the former name of `base_action`."""
        raise UserError("partner_action() is now base_action(), and the argument partner is base_policy")

    def rule_action(self, name: str) -> Any:
        """The action that expresses what another policy's rule would do now.

        Raises:
            UserError: no policy of that name.
        """
        return self.episodes.rule_actions(name)[0]

    @property
    def rules(self) -> list[str]:
        """Names that `rule_action` knows."""
        return list_policies()

    @property
    def decision_names(self) -> tuple[str, ...]:
        """The kinds of decisions that the slots of the observation's `decision` stand for."""
        return tuple(decision.name for decision in self.decisions)

    def feature_tables(self) -> dict[str, list[dict[str, Any]]]:
        """Name, unit, scale, bounds and meaning of every feature of the cluster and of a candidate; those of decisions.
        """
        return {"cluster": [f._asdict() for f in self.episodes.features],
                "candidates": [f._asdict() for f in candidate_columns(self.decisions)],
                "decision": [{"name": name, "meaning": f"1 where '{name}' is what is decided"}
                             for name in self.decision_names]}

    def summary(self) -> dict[str, float]:
        """The protocol's figures of the episode so far."""
        return self.episodes.summary(0)

    @property
    def simulation(self) -> Any:
        """The simulation under way; None before the first reset. Its records may be behind: read `sim.loop.look`."""
        return self.episodes.simulations[0]

    def _observation(self) -> Any:
        if self._flat:
            return np.concatenate(self._row)
        cluster, candidates, mask, decision = self._copies
        return {"cluster": cluster(), "candidates": candidates(), "action_mask": mask(), "decision": decision()}


def box_actions(action: Any, space: spaces.Space) -> np.ndarray:
    """Vectors of numbers from -1 to 1 as they are kept: int64, from 0 to BOX_ONE; ILLEGAL where one is no number.

    Raises:
        UserError: another shape, or no numbers.
    """
    try:
        values = np.asarray(action, np.float64)
    except (TypeError, ValueError, OverflowError):
        values = np.empty(0)
    if values.shape != space.shape or isinstance(action, (bool, str)):
        raise UserError(f"step({action!r}): expected an action of {space}")
    scaled = np.rint(np.clip(0.5 + 0.5 * np.nan_to_num(values), 0.0, 1.0) * BOX_ONE).astype(np.int64)
    return np.where(np.isnan(values).any(axis=-1, keepdims=True), ILLEGAL, scaled)


def spaces_of(episodes: Episodes) -> tuple[spaces.Dict, spaces.Space]:
    """The observation and action space of one episode."""
    buffers = episodes.buffers
    size, actions = buffers.candidates.shape[1], buffers.mask.shape[1]
    low, high = features.bounds(episodes.features)
    each_low, each_high = features.bounds(candidate_columns(episodes.decisions))
    observation = spaces.Dict({
        "cluster": spaces.Box(low, high, dtype=np.float32),
        "candidates": spaces.Box(np.tile(each_low, size), np.tile(each_high, size), dtype=np.float32),
        "action_mask": spaces.MultiBinary(actions),
        "decision": spaces.Box(0.0, 1.0, buffers.decision[0].shape, dtype=np.float32),
    })
    if episodes.controls is not None:
        return observation, spaces.MultiDiscrete(episodes.controls.counts)
    if episodes.config.box:
        return observation, spaces.Box(-1.0, 1.0, (buffers.actions.shape[1],), np.float32)
    return observation, spaces.Discrete(FIXED + size)


