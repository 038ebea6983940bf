"""Length predictors: predictions of a request's output length, a part of the scenario.

For each request a predictor gives the predicted output tokens (median) and the standard deviation
of their logarithm. Predictions depend on the scenario's seed and are the same for every policy and
agent. `ooco_gym.policy.lengths` revises them while tokens are generated.

| predictor | prediction | keys |
|---|---|---|
| `none` | none: only lengths of finished requests are known (the default) | |
| `true` | the output length itself | |
| `lognormal` | the output length times exp(`error` z), z standard normal | `error` |
| `client` | none by itself: what the run has seen end of its client, or of all of its class | |
| `rank` | its rank among requests of its class, with this Kendall tau between predicted and true order | `tau` |

`rank` is a learned ranker as in arXiv 2408.15792, with a Gaussian copula between predicted and true
order. Ranks become tokens by the run's own distribution of lengths in each class, which stands for
the workload's known past.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np

from ooco_gym.errors import UserError
from ooco_gym.rounding import steady
from ooco_gym.schema import Model, Range
from ooco_gym.workload.keyed import keyed_generator
from ooco_gym.workload.trace import Trace

TAKES = {"error": ("lognormal", 0.3), "tau": ("rank", 0.5)}  # a key's predictor and default


@dataclass(frozen=True)
class LengthPredictor(Model):
    """A predictor of output lengths (`Scenario.lengths`).

    Attributes:
        predictor: one of the above.
        error: of `lognormal`: standard deviation of the logarithm of predicted over true length.
        tau: of `rank`: Kendall's rank correlation of predicted and true lengths within a class.
    """

    PLACE = "lengths"

    predictor: Literal["none", "client", "true", "lognormal", "rank"] = "none"
    error: Annotated[float, Range(0, 10)] = 0.3
    tau: Annotated[float, Range(0, 1)] = 0.5

    @classmethod
    def load(cls, value: Any) -> LengthPredictor:
        """Reads a name, or a mapping such as `{predictor: lognormal, error: 0.3}`.

        Raises:
            UserError: an unknown predictor, a key that it does not take, or a value out of range.
        """
        raw: dict[str, Any] = {"predictor": value} if not isinstance(value, Mapping) else dict(value)
        name = raw.get("predictor", "none")
        raw["predictor"] = "none" if name is None else "true" if name is True else name  # YAML's null and true
        found = cls.read(raw)
        for key, (of, usual) in TAKES.items():
            if getattr(found, key) != usual and found.predictor != of:
                raise UserError(f"lengths.{key}={getattr(found, key)}: only predictor '{of}' takes it; leave it out")
        return found

    def believe(self, trace: Trace, seed: int) -> np.ndarray | None:
        """Returns the prediction for each request, float64[n, 2]: the median in output tokens and
        the spread of its logarithm.

        A request's draws depend on the seed, its class and its place among the requests of its
        class.

        Returns:
            The predictions, or None without a predictor; `client` has none before the run.
        """
        if self.predictor in ("none", "client"):
            return None
        said = np.zeros((len(trace), 2))
        for online in (False, True):
            mine = np.flatnonzero(trace.online == online)
            if mine.size:
                random = keyed_generator(seed, f"lengths/{self.predictor}", layer=int(online))
                output = trace.output_tokens[mine].astype(np.float64)
                said[mine] = self._said(output, random)
        said[:, 0] = np.maximum(1.0, said[:, 0])
        return said

    def _said(self, output: np.ndarray, random: np.random.Generator) -> np.ndarray:
        if self.predictor == "true":
            return np.column_stack([output, np.zeros_like(output)])
        if self.predictor == "lognormal":
            return lognormal(output, self.error, random.standard_normal(output.size))
        return _ranked(output, self.tau, random)


def lognormal(output: np.ndarray, error: float, z: np.ndarray) -> np.ndarray:
    """Returns predictions with log-normal errors, float64[n, 2].

    Args:
        output: float64[n], true output tokens.
        error: standard deviation of the logarithm of predicted over true.
        z: float64[n], standard normal.
    """
    return np.column_stack([output * steady(np.exp(error * z)), np.full(output.size, float(error))])


def _ranked(output: np.ndarray, tau: float, random: np.random.Generator) -> np.ndarray:
    """Returns predictions of a ranker; normal scores of correlation sin(pi tau / 2) have this Kendall tau."""
    scores = np.sort(random.standard_normal(output.size))
    true = np.empty_like(scores)
    true[np.lexsort((random.random(output.size), output))] = scores
    correlation = steady(math.sin(0.5 * math.pi * tau))
    rest = math.sqrt(max(0.0, 1.0 - correlation**2))
    said = correlation * true + rest * random.standard_normal(output.size)
    median = steady(np.interp(correlation * said, scores, np.sort(output)))
    return np.column_stack([median, np.full(output.size, steady(rest * np.log(output).std()))])
