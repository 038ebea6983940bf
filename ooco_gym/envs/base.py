"""The Gymnasium environment of any set of decisions; each environment's own part is in its file."""

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
from ooco_gym.envs.custom import OwnFeature, Term
from ooco_gym.envs.decision import Decision, candidate_columns
from ooco_gym.envs.episodes import Episodes
from ooco_gym.envs.snapshots import Snapshot, Snapshots
from ooco_gym.envs.viewer import Viewer
from ooco_gym.errors import UserError
from ooco_gym.policy import list_policies


class DecisionEnv(gym.Env):
    """Decisions of a co-located cluster, one after the other; subclasses define which.

    ## Observation Space
    `Dict`: `cluster` float32 (C,), `candidates` (K x F, row by row) float32 (K·F,), `action_mask`
    int8 (A,), `decision` float32 (D,), one hot. `ooco_gym.candidate_table(observation)` returns
    the table (K, F); if an action is a vector of P levels, use `candidate_table(observation,
    parameters=P)`. Each kind of decision has its own table of candidates. In an environment with
    several kinds, `decision` names the present one, and columns beyond its table are 0. Every
    part has one axis, as Stable-Baselines3 expects. With `flat=True` an observation is one
    float32 vector, `gymnasium.spaces.flatten` of the Dict: mask, candidates, cluster, decision,
    in this order (`gymnasium.spaces.unflatten(env.unwrapped.parts_space, observation)` takes it
    apart again).

    Lengths of unfinished outputs are hidden. Only EvictionPredicted-v1 and MigrationPredicted-v1
    observe a length predictor's estimates.

    ## Action Space
    `Discrete(2 + K)`: 0 is the decision's own *no*, 1 does what the base policy would do, `2 + k` takes candidate k.
    Action 1 is in the mask only where no other action does the same (`base_policy` marks the candidate that does), and
    is always accepted. Some environments have `MultiDiscrete` actions, a level for each parameter.

    ## Rewards
    The sum of named terms, each in `info["reward/<term>"]`, with weights from `conf/reward`.
    `service` is positive, all others are negative. With `late`, a request that has violated its
    SLO is still worth serving; with `burst`, spending a day's violation budget on one peak is
    charged. `info["cost"]` counts the online requests that violated an SLO for the first time,
    `cost_ttft` and `cost_tpot` by SLO. The terms of an episode add up to the totals in `summary`.
    If the scenario names classes of requests (`classes`), each request has its class's SLO and
    counts once, whatever the class's weight. *The TPOT SLO* in a feature table is the tightest of
    the online classes. A subclass may add terms (`terms`), and features to `cluster` (`own_features`):
    `ooco_gym.envs.custom`.

    ## Starting State
    `reset(seed=s, options={"window": w})` simulates window w of seed s, a part of the day with
    its arrivals and lengths, after a warm-up under the base policy. Without options the window is
    drawn from the seed.

    ## Episode End
    An episode is truncated after `window_s`, while the load goes on. Its last observation and mask
    are those of the first decision after the window, as in a longer window (with decisions by the
    clock, the one at the window's end), so that a value function can bootstrap from it. If no
    decision comes up within 120 s, it is terminated: nothing that follows depends on the agent, and
    the last observation is blank. After the window the base policy goes on until every online
    request of the window has finished or violated its SLO; the last reward includes this part,
    `elapsed_s` does not. A decision point is reached only if at least two actions are legal beside
    the base policy's. A window without a decision ends with its first step, in which only the base
    policy's action is legal. The constructor refuses a cluster or base policy under which no
    decision can come up.

    ## Information
    `action_mask` (int8), `elapsed_s` (simulated time since the last decision, for discounting in
    continuous time), `cost`, `cost_ttft`, `cost_tpot`, `reward/<term>`; at the end `summary`, the
    protocol's metrics of the episode. The info of `reset` may have `notes`, sentences on what was
    not measured on the cluster's chips.

    ## Arguments
    `scenario` is a name in `conf/env`, a YAML's path or a mapping of `Scenario` fields,
    `workload` and `cluster` set these fields, `candidates` is K, `reward` a name in `conf/reward`
    or a mapping of weights, `interval_s` the time between decisions by the clock, `shift` one of
    the scenario's distribution shifts; `levels`, `shares`, `action`, `controls`, `vary` and
    `shifts` are as in `conf/env`. With `flat` an observation is one vector; the mask is also in
    `info["action_mask"]` and `action_masks()`. An illegal action takes the base policy's action:
    `info["illegal_action"]` is then True, and the episode's summary counts them as
    `illegal_actions`.

    ## Rendering
    `rgb_array` (needs the extra `render`) returns a picture of the cluster: what each instance
    runs, its requests, its KV memory in use, waiting requests and violations. Gymnasium's
    `RecordVideo` (needs moviepy) records it. `ansi` is a line of text on the instances; `human`
    prints it at most `render_fps` times a second.

    ## Snapshots
    `state = env.unwrapped.snapshot()` copies the episode in a fraction of a millisecond;
    `env.unwrapped.restore(state)` continues from it bit-identically, also in another environment
    with the same arguments, or after pickling.

    ## References
    OOCO (arXiv 2511.21862), HyGen (arXiv 2501.14808), Echo (arXiv 2504.03651), BROS (arXiv 2504.09590).

    ## Version History
    * v1 (Gating: v2): each kind of decision has its own table of candidates, and no two actions
      are the same.
    """

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["human", "rgb_array", "ansi"], "render_fps": 4}
    id: ClassVar[str] = ""
    decisions: ClassVar[tuple[Decision, ...]] = ()
    terms: ClassVar[tuple[Term, ...]] = ()  # reward terms beside the common ones, after those of the class extended
    own_features: ClassVar[tuple[OwnFeature, ...]] = ()  # features of `cluster` beside the common ones, in the same way
    default_scenario: ClassVar[str] = ""
    most_candidates: ClassVar[int] = 64

    def __init_subclass__(cls, **keywords: Any) -> None:
        """Adds the terms and features that a subclass names to those of the class that it extends."""
        super().__init_subclass__(**keywords)
        for name in ("terms", "own_features"):
            others = getattr(super(cls, cls), name)
            setattr(cls, name, (*others, *(one for one in getattr(cls, name) if one not in others)))

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
        return Episodes(self.config, self.decisions, 1, terms=self.terms, own=self.own_features)

    def _attach(self) -> None:
        """Names the arrays of the one episode, and starts watching it."""
        buffers = self.episodes.buffers
        self._watch = Viewer(self.episodes, type(self).__name__.removesuffix("Env"), self.render_mode,
                            self.metadata["render_modes"], self.metadata["render_fps"])
        self._snapshots = Snapshots(self.episodes)
        parts = {"cluster": buffers.cluster[0], "candidates": buffers.candidates[0].reshape(-1),
                 "action_mask": buffers.mask[0], "decision": buffers.decision[0]}
        self._copies = tuple(part.copy for part in parts.values())
        self._row = [parts[key] for key in self.parts_space]
        self._actions, self._mask = buffers.actions[0], buffers.mask[0]

    def __getstate__(self) -> dict[str, Any]:
        """Everything that a copy in another process needs to continue."""
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
        """Starts a window; see the class docstring.

        Raises:
            UserError: an unknown option, or a window that is not a non-negative integer.
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
        """Takes the action and runs to the next decision; see the class docstring.

        Raises:
            UserError: the action is not an integer (or vector of them), or the episode is over.
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
        terminated = over and self.episodes.asked(0) is None
        return self._observation(), reward, terminated, over and not terminated, info

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
        """Returns a picture, uint8 (height, width, 3), or a line of text; None if lines are
        printed.

        Raises:
            UserError: a picture is requested before the first reset.
        """
        shown = self._watch.render()
        return None if shown is None else shown[0]

    def snapshot(self) -> Snapshot:
        """Returns a copy of the episode's state for `restore`, without wrappers and the generator
        of windows.

        Raises:
            UserError: `reset` has not been called.
        """
        return self._snapshots.take()

    def restore(self, state: Snapshot) -> tuple[Any, dict[str, Any]]:
        """Continues from a snapshot of this environment, or of another one with the same
        arguments.

        Returns:
            Observation and info, as `reset` does.

        Raises:
            UserError: not a snapshot, or one of another configuration.
        """
        self._snapshots.put_back(state)
        self.window, self._started = state.window, True
        self._watch.begin(0)
        return self._observation(), {"action_mask": self._mask.copy(), "elapsed_s": 0.0}

    # --- For agents and evaluation ---------------------------------------------------------------------------------
    def base_action(self) -> Any:
        """Returns the action that does what the base policy would do."""
        return self.episodes.base_actions()[0]

    def rule_action(self, name: str) -> Any:
        """Returns the action closest to what another policy's rule would do now.

        Raises:
            UserError: no policy of that name.
        """
        return self.episodes.rule_actions(name)[0]

    @property
    def rules(self) -> list[str]:
        return list_policies()

    @property
    def decision_names(self) -> tuple[str, ...]:
        """The kinds of decisions, in the order of the observation's one-hot `decision`."""
        return tuple(decision.name for decision in self.decisions)

    def feature_tables(self) -> dict[str, list[dict[str, Any]]]:
        """Returns name, unit, scale, bounds and meaning of every feature of `cluster` and of a
        candidate, and the meaning of `decision`."""
        return {"cluster": [f._asdict() for f in self.episodes.features],
                "candidates": [f._asdict() for f in candidate_columns(self.decisions)],
                "decision": [{"name": name, "meaning": f"1 if the pending decision is '{name}'"}
                             for name in self.decision_names]}

    def summary(self) -> dict[str, float]:
        """Returns the protocol's metrics of the episode so far."""
        return self.episodes.summary(0)

    @property
    def simulation(self) -> Any:
        """The simulation in progress; None before the first reset. Records may lag: read
        `sim.loop.look`."""
        return self.episodes.simulations[0]

    def _observation(self) -> Any:
        if self._flat:
            return np.concatenate(self._row)
        cluster, candidates, mask, decision = self._copies
        return {"cluster": cluster(), "candidates": candidates(), "action_mask": mask(), "decision": decision()}


def box_actions(action: Any, space: spaces.Space) -> np.ndarray:
    """Converts actions from -1 to 1 to int64 from 0 to BOX_ONE; a vector with a NaN becomes
    ILLEGAL.

    Raises:
        UserError: another shape, or not numbers.
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
    """Returns the observation and action space of one episode."""
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


