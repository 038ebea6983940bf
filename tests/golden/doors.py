"""What enters the compiled core: arrivals and lengths of every workload, cost tables of every chip and timing form."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

from ooco_gym.perf import Deployment, cost_table
from ooco_gym.perf.timing import list_timings
from ooco_gym.resources import names
from ooco_gym.workload import LengthPredictor, generate, offline_trace
from tests.golden.digests import Digests, digest

MODELS = {"llama_3_1_8b": 1, "qwen2_5_32b": 2}  # and on how many chips
PREDICTORS = ({"predictor": "lognormal", "error": 0.6}, {"predictor": "rank", "tau": 0.5})
DAY_S = 86_400.0


def _trace(trace: Any) -> dict[str, str]:
    columns = {name: getattr(trace, name) for name in ("arrival_s", "prompt_tokens", "output_tokens")}
    return {**{name: digest(column) for name, column in columns.items()},
            **({} if trace.prefix_hashes is None else {"prefix_hashes": digest(trace.prefix_hashes[1])})}


def _workload(name: str) -> dict[str, str]:
    trace = generate(name, start_s=0.0, duration_s=8 * DAY_S, seed=5, rate_scale=0.005)  # into a second week
    said = {one["predictor"]: digest(LengthPredictor.load(one).believe(trace, 5)) for one in PREDICTORS}
    return {**_trace(trace), **said}


def _offline(name: str) -> dict[str, str]:
    return _trace(offline_trace({"dataset": name, "mode": "rate", "rate": 1.0}, duration_s=DAY_S / 8, seed=5))


def _chip(name: str, timing: str) -> dict[str, str]:
    found = {}
    for model, tp in MODELS.items():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            table = cost_table(Deployment.from_config({"chip": name, "model": model, "tp": tp, "timing": timing}))
        for key in ("decode_lines", "attention_lines", "prefill_ps", "head_ps", "attention_grid"):
            found[f"{model} {key}"] = digest(getattr(table, key))
    return found


def _cases() -> Iterator[tuple[str, Callable[[], dict[str, str]]]]:
    for name in names("workload"):
        yield f"workload {name}", lambda name=name: _workload(name)
    for name in names("offline"):
        yield f"offline {name}", lambda name=name: _offline(name)
    for name in names("chip"):
        for timing in list_timings():
            yield f"chip {name}, {timing}", lambda name=name, timing=timing: _chip(name, timing)


def group(every: int = 1) -> Digests:
    """The digests of every n-th of them; a deployment that does not fit has none."""
    from ooco_gym.errors import UserError

    found = {}
    for name, make in list(_cases())[::every]:
        try:
            found[name] = make()
        except UserError as error:
            found[name] = {"refused": digest(str(error).partition(":")[0])}
    return found
