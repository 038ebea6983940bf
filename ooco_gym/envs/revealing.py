"""A length predictor in the observation, as wrappers: environments by themselves say nothing of unfinished outputs."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import VectorEnv, VectorWrapper
from gymnasium.vector.utils import batch_space

from ooco_gym.envs import buffers as b
from ooco_gym.envs.episodes import Episodes
from ooco_gym.errors import UserError, is_number
from ooco_gym.sim import state as s

KEY = "predicted_output"
LIMIT = 16_384  # tokens, as of the feature `generated`
_STREAM = 7  # keys the predictor's errors


class LengthPredictor:
    """What a predictor believes that each candidate still generates.

    It believes in a total of output tokens · exp(error · z) for each request, z standard normal, the same throughout
    an episode; at least one token is still to come. Of an instance as a candidate (`route`), the request to be sent.

    Args:
        episodes: the candidates are theirs.
        error: standard deviation of the logarithm of the belief; 0: the truth.

    Raises:
        UserError: the error is no number of at least 0.
    """

    def __init__(self, episodes: Episodes, error: float) -> None:
        if not is_number(error) or not 0.0 <= error <= 10.0:
            raise UserError(f"error={error!r} must be a number from 0 to 10: the spread of the logarithm of a belief")
        self.episodes, self.error = episodes, float(error)
        self._spread: dict[int, tuple[tuple[int, int], np.ndarray]] = {}

    def observe(self, i: int) -> np.ndarray:
        """Of the open decision in slot i: float32 (K,), log(1 + tokens) / log(1 + LIMIT), cut at 1; 0: no request."""
        episodes = self.episodes
        simulation, chosen = episodes.simulations[i], episodes.buffers.chosen[i]
        out = np.zeros(episodes.buffers.candidates.shape[1], np.float32)
        kind = int(episodes.buffers.turns[i, b.KIND])
        if simulation is None or not episodes.open(i) or kind in (b.NO_KIND, s.COMPOSE, b.CLOCK, b.CONTROL):
            return out
        state, there = simulation.state, np.flatnonzero(chosen >= 0)
        slots = chosen[there]
        if kind == s.EVICT:  # whose candidates are positions in State.picks
            slots = state.picks[slots]
        elif kind == s.ROUTE:
            slots = np.full(len(there), state.pending.request)
        believed = state.requests["output_tokens"][slots] * self._factors(i)[slots]
        left = np.maximum(1.0, believed - state.requests["generated_tokens"][slots])
        out[there] = np.minimum(1.0, np.log1p(left) / np.log1p(LIMIT))
        return out

    def _factors(self, i: int) -> np.ndarray:
        """Belief over truth of every request of the episode in slot i."""
        window, known = self.episodes.windows[i], self._spread.get(i)
        if known is None or known[0] != window:
            simulation = self.episodes.simulations[i]
            assert simulation is not None
            random = np.random.default_rng([_STREAM, window[0], window[1]])
            factors = np.exp(self.error * random.standard_normal(len(simulation.state.requests)))
            known = self._spread[i] = (window, factors)
        return known[1]


class _Predicting:
    """A wrapper with a predictor, which a pickled copy draws anew from the windows."""

    env: Any
    _error: float
    _predictor: LengthPredictor

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key != "_predictor"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._predictor = LengthPredictor(_episodes_of(self.env), self._error)


class RevealLengths(_Predicting, gym.ObservationWrapper, gym.utils.RecordConstructorArgs):
    """Adds `predicted_output`, float32 (K,), to the observation of an environment of ours.

    Args:
        env: the environment.
        error: of the predictor (`LengthPredictor`).

    Raises:
        UserError: no such environment, or no such error.
    """

    def __init__(self, env: gym.Env, error: float = 0.3) -> None:
        gym.utils.RecordConstructorArgs.__init__(self, error=error)
        gym.ObservationWrapper.__init__(self, env)
        self._error = error
        self._predictor = LengthPredictor(_episodes_of(env), error)
        self.observation_space = _with_key(env.observation_space, _episodes_of(env))

    def observation(self, observation: Any) -> dict[str, Any]:
        """The observation with the key."""
        if self._predictor.episodes is not _episodes_of(self.env):  # a copy that was pickled
            self._predictor = LengthPredictor(_episodes_of(self.env), self._error)
        return {**observation, KEY: self._predictor.observe(0)}


class RevealLengthsVector(_Predicting, VectorWrapper):
    """As `RevealLengths`, for a native vector environment.

    Args:
        env: the vector environment.
        error: of the predictor (`LengthPredictor`).

    Raises:
        UserError: no such environment, or no such error.
    """

    def __init__(self, env: VectorEnv, error: float = 0.3) -> None:
        super().__init__(env)
        self._error = error
        self._predictor = LengthPredictor(_episodes_of(env), error)
        self.single_observation_space = _with_key(env.single_observation_space, self._predictor.episodes)
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """As of the vector environment, with the key."""
        observations, infos = self.env.reset(seed=seed, options=options)
        return self._with(observations), infos

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """As of the vector environment, with the key; of an episode that is over there is nothing to predict."""
        observations, rewards, terminated, truncated, infos = self.env.step(actions)
        for last in infos.get("final_obs", ()):
            if last is not None:
                last[KEY] = np.zeros(self._predictor.episodes.buffers.candidates.shape[1], np.float32)
        return self._with(observations), rewards, terminated, truncated, infos

    def _with(self, observations: Any) -> dict[str, Any]:
        return {**observations, KEY: np.stack([self._predictor.observe(i) for i in range(self.num_envs)])}


def _episodes_of(env: Any) -> Episodes:
    episodes = getattr(env.unwrapped, "episodes", None)
    if not isinstance(episodes, Episodes):
        raise UserError(f"{env} is no environment of ooco_gym (or no native vector of them): there are no candidates "
                        "whose length could be predicted")
    return episodes


def _with_key(space: Any, episodes: Episodes) -> gym.spaces.Dict:
    if not isinstance(space, gym.spaces.Dict):
        raise UserError("RevealLengths needs the Dict observation: make the environment without flat=True, and wrap "
                        "it before FlattenObservation")
    size = episodes.buffers.candidates.shape[1]
    return gym.spaces.Dict({**space.spaces, KEY: gym.spaces.Box(0.0, 1.0, (size,), dtype=np.float32)})
