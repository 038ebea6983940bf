"""What a learned router sees of the engines that an online request may be sent to: the figures of `baselines.router`.

`observe_choices(request, engines, age_s)` computes from plain descriptions what the simulator's compiled rule computes
from its state (a test compares both). Most figures compare an engine with the mean of all, so that the same weights
serve any number of engines of any speed. Nothing here needs numba or the simulator.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

TTFT_FROM, TPOT_FROM, MOST_USE = 0.5, 0.7, 2.0  # where the SLO begins to be near, and where more is all the same
SOME_TOKENS = 1000.0  # added to tokens before they are compared; of a long request, one
_FARTHEST = 16.0  # logarithms of ratios
_SCORE = 50.0  # of the rule's score


def _figure(name: str, unit: str, low: float, high: float, meaning: str) -> dict[str, Any]:
    return {"name": name, "unit": unit, "scale": "as it is", "low": low, "high": high, "meaning": meaning}


def _ratio(name: str, meaning: str) -> dict[str, Any]:
    return _figure(name, "1", -_FARTHEST, _FARTHEST, f"logarithm of {meaning}, over the mean of all engines")


def _product(name: str, most: float, meaning: str) -> dict[str, Any]:
    return _figure(name, "1", -_FARTHEST * most, _FARTHEST * most, meaning)


_AGE_S, _LONG = 60.0, 16.0
AGE = (_figure("age", "s", 0.0, _AGE_S, "age of the engines' figures"),)
WEIGHED = (
    _ratio("latency", "the believed time to the first token there"),
    _ratio("step", "the believed decode step there with the request"),
    _ratio("queue", "online prompt tokens ahead, sent ones included, and 1,000"),
    _ratio("online", "online requests there, sent ones included, and 1"),
    _ratio("waiting", "those of them that wait, and 1"),
    _ratio("sent", "requests sent there since the figures were read, and 1"),
    _ratio("offline", "offline requests that run there, and 1"),
    _ratio("pace", "the seconds that a prompt token takes there"),
    _figure("free", "share", -1.0, 1.0, "share of blocks that are free, less the mean"),
    _figure("cached", "share", -1.0, 1.0, "share of the request's prompt that is cached there, less the mean"),
    _figure("rank", "1", -0.5, 0.5, "place in the order of latency"),
    _figure("ttft_use", "1", 0.0, MOST_USE, f"latency over the TTFT SLO beyond {TTFT_FROM:g}, at most {MOST_USE:g}"),
    _figure("tpot_use", "1", 0.0, MOST_USE, f"step over the TPOT SLO beyond {TPOT_FROM:g}, at most {MOST_USE:g}"),
    _product("age_queue", _AGE_S, "age in seconds, times queue"),
    _product("age_online", _AGE_S, "age in seconds, times online"),
    _product("long_pace", _LONG, "logarithm of the request's thousands of tokens, times pace"),
    _product("long_online", _LONG, "logarithm of the request's thousands of tokens, times online"),
    _product("load_pace", MOST_USE, f"mean latency over the TTFT SLO, at most {MOST_USE:g}, times pace"),
)
SCORE = _figure("score", "1", -_SCORE, _SCORE, "natural logarithm of the score of the rule")


def observe_choices(request: Mapping[str, Any], engines: Sequence[Mapping[str, Any]], age_s: float = 0.0
                    ) -> tuple[np.ndarray, np.ndarray]:
    """What a learned router sees of an online request that has just arrived.

    Args:
        request: `num_tokens`, `ttft_slo` and `tpot_slo` in seconds.
        engines: of each `rule_score` (of the rule that the weights are on top of, the least is preferred),
            `latency_s` (believed time to the request's first token), `step_s` (believed decode step with it),
            `num_prompt_tokens_ahead`, `num_online`, `num_waiting_online` and `num_offline` (running) as read,
            `num_sent` and `num_sent_tokens` since, `seconds_per_token` of a prompt, `free_share` of blocks, and
            `num_cached_tokens` of the request.
        age_s: since the figures were read.

    Returns:
        Age, float32 (1,), and float32 (engines, 1 + features of `WEIGHED`), the rule's score first.

    Raises:
        KeyError: a description lacks a key.
    """
    def of(key: str) -> np.ndarray:
        return np.array([float(one[key]) for one in engines])

    latency, step, pace, sent = of("latency_s"), of("step_s"), of("seconds_per_token"), of("num_sent")
    tokens = max(float(request["num_tokens"]), 1.0)
    queue = _relative(of("num_prompt_tokens_ahead") + of("num_sent_tokens"), SOME_TOKENS)
    online, slower = _relative(of("num_online") + sent, 1.0), _relative(pace, 0.0)
    long, load = math.log(tokens / SOME_TOKENS), min(MOST_USE, latency.mean() / request["ttft_slo"])
    cached, free = of("num_cached_tokens"), of("free_share")
    columns = (
        np.clip(np.log(np.maximum(of("rule_score"), 1e-300)), -_SCORE, _SCORE),
        _relative(latency, 0.0), _relative(step, 0.0), queue, online, _relative(of("num_waiting_online"), 1.0),
        _relative(sent, 1.0), _relative(of("num_offline"), 1.0), slower, free - free.mean(),
        (cached - cached.mean()) / tokens, _ranks(latency),
        np.clip(latency / request["ttft_slo"] - TTFT_FROM, 0.0, MOST_USE),
        np.clip(step / request["tpot_slo"] - TPOT_FROM, 0.0, MOST_USE),
        age_s * queue, age_s * online, long * slower, long * online, load * slower)
    return np.array([age_s], np.float32), np.stack(columns, axis=1).astype(np.float32)


def _relative(values: np.ndarray, some: float) -> np.ndarray:
    """Logarithms of values over their mean, both raised by `some`."""
    return np.log((values + some) / (values.mean() + some))


def _ranks(latency: np.ndarray) -> np.ndarray:
    """Places in the order of latency, of equals the first before the others, from -0.5 to 0.5."""
    places = np.empty(len(latency))
    places[np.argsort(latency, kind="stable")] = np.arange(len(latency))
    return places / max(len(latency) - 1, 1) - 0.5
