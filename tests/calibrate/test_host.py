"""The engine's clock from iterations: a known one is found again, beside kernels of a chip, in both modes."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ooco_gym.calibrate.iterations import Timed, errors, fit_clock, groups, kernels_us, summed, write_clock
from ooco_gym.errors import UserError
from ooco_gym.perf import cost_table, mixed_latency_ps
from ooco_gym.perf.deployment import Deployment
from ooco_gym.perf.engine_clock import EngineClock

TABLE = cost_table(Deployment.from_config({"chip": "h100", "model": "llama_3_1_8b", "timing": "extended"}))
RUN = "runs/h100_llama31_8b_vllm032"
CLOCK = EngineClock("made", decode_s=0.0021, prefill_s=0.0052, prefill_token_s=1.4e-6, sequence_s=2.2e-5)


def iterations(count: int = 400, seed: int = 0) -> dict[str, np.ndarray]:
    """Random iterations in a row, some half of them of decodes alone, taking what `CLOCK` says."""
    draws = np.random.default_rng(seed)
    decodes, prompts = draws.integers(1, 200, count), draws.integers(1, 6, count) * draws.integers(0, 2, count)
    tokens = np.array([draws.integers(1, 900, number).sum() for number in prompts])
    rows = {"n_decode": decodes, "decode_context_sum": decodes * draws.integers(50, 2000, count), "n_prefill": prompts,
            "prefill_tokens": tokens, "prefill_context_sum": 2 * tokens, "tokens": tokens + decodes,
            "prefill_work": np.where(prompts > 0, 2 * tokens * tokens // np.maximum(prompts, 1), 0),
            "sequences_sampled": decodes + prompts}
    rows["time_us"] = Timed(TABLE, CLOCK).time_us(rows)
    rows["began_s"] = np.concatenate([[0.0], np.cumsum(1e-6 * rows["time_us"])[:-1]])
    return rows


def test_a_known_clock_is_found_again(tmp_path: Path) -> None:
    rows = iterations()
    found = fit_clock(TABLE, rows, "found", "made up")
    for key in ("decode_s", "prefill_s", "prefill_token_s", "sequence_s"):
        assert getattr(found, key) == pytest.approx(getattr(CLOCK, key), rel=1e-3)
    disturbed = {**rows, "time_us": rows["time_us"] * np.where(np.arange(400) % 20 == 7, 6.0, 1.0)}
    assert fit_clock(TABLE, disturbed, "found", "").decode_s == pytest.approx(CLOCK.decode_s, rel=1e-3)
    again = EngineClock.load(str(write_clock(tmp_path / "mine.yaml", found)))
    assert again.name == "found" and again.source == "made up"
    assert again.prefill_s == pytest.approx(found.prefill_s, rel=5e-3)


def test_what_neighbours_have_of_each_other_cancels() -> None:
    """A queue of two: the launch of an iteration with prompts delays the end of the decode before it."""
    rows = iterations()
    late_us = np.where(np.roll(rows["n_prefill"], -1) > 0, 4000.0, 0.0)
    ends = np.cumsum(rows["time_us"]) + late_us
    mixed = {**rows, "time_us": np.diff(ends, prepend=0.0), "began_s": 1e-6 * np.concatenate([[0.0], ends[:-1]])}
    alone = fit_clock(TABLE, mixed, "alone", "")
    together = fit_clock(TABLE, {**mixed, "group": groups(mixed)}, "together", "")
    assert alone.decode_s > 1.8 * CLOCK.decode_s
    assert together.decode_s == pytest.approx(CLOCK.decode_s, rel=0.15)
    assert together.prefill_s == pytest.approx(CLOCK.prefill_s, rel=0.15)


@settings(deadline=None, max_examples=50)
@given(paused=st.lists(st.booleans(), min_size=1, max_size=60))
def test_groups_are_iterations_in_a_row(paused: list[bool]) -> None:
    begins = np.cumsum([1.0 + pause for pause in paused])
    rows = {"began_s": begins, "time_us": np.full(len(paused), 1e6)}
    found = groups(rows)
    assert found[0] == 0 and set(np.diff(found)) <= {0, 1}
    assert np.bincount(found).max() <= 8
    for before, after, pause in zip(found[:-1], found[1:], paused[1:], strict=True):
        assert not pause or after == before + 1
    together = summed({**rows, "group": found}, rows["time_us"])
    assert together.sum() == pytest.approx(rows["time_us"].sum()) and len(together) == found[-1] + 1


@pytest.mark.parametrize(("prompts", "decodes"), [([(300, 0)], 0), ([(512, 1024), (512, 1024)], 20), ([], 50)])
def test_alike_prompts_take_what_the_simulator_says(prompts: list[tuple[int, int]], decodes: int) -> None:
    q, before = (np.array([one[i] for one in prompts] or [0], np.int64) for i in (0, 1))
    context = 700 * decodes
    row = {"n_decode": decodes, "decode_context_sum": context, "n_prefill": len(prompts), "prefill_tokens": q.sum(),
           "prefill_context_sum": (q + before).sum(), "prefill_work": (q * (q + before)).sum(),
           "sequences_sampled": decodes + len(prompts)}
    rows: dict[str, Any] = {key: np.array([value]) for key, value in row.items()}
    assert kernels_us(TABLE, rows)[0] == pytest.approx(1e-6 * mixed_latency_ps(TABLE, [q], [before], [decodes],
                                                                               [context])[0], rel=1e-9)


def test_too_few_iterations_are_one_sentence() -> None:
    rows = iterations()
    rows = {key: values[rows["n_prefill"] == 0] for key, values in rows.items()}
    with pytest.raises(UserError, match="0 iterations with prompts and .* without are too few to fit"):
        fit_clock(TABLE, rows, "none", "")


@pytest.mark.skipif(not os.environ.get("OOCO_GYM_DATA"), reason="OOCO_GYM_DATA does not name a folder with runs/")
@pytest.mark.parametrize(("mode", "bias", "mape"), [("async", 4.0, 18.0), ("sync", 3.5, 10.0)])
def test_the_h100s_host_time(mode: str, bias: float, mape: float) -> None:
    """One clock for all cells of a mode: each cell's time in all, and iterations (asynchronous: eight together)."""
    import pyarrow.parquet as pq

    table = pq.read_table(Path(os.environ["OOCO_GYM_DATA"]) / RUN / f"cells_{mode}_iterations.parquet")
    rows = {name: table[name].to_numpy(zero_copy_only=False) for name in table.column_names}
    rows = {name: values[~np.char.startswith(rows["cell"].astype(str), "sanity")] for name, values in rows.items()}
    if mode == "async":
        rows["group"] = groups(rows)
    clock = fit_clock(TABLE, rows, mode, "")
    plain = errors(Timed(TABLE, replace(clock, decode_s=0, prefill_s=0, prefill_token_s=0, sequence_s=0)), rows)
    assert plain["bias"] < -12.0
    for cell in np.unique(rows["cell"]):
        found = errors(Timed(TABLE, clock), {name: values[rows["cell"] == cell] for name, values in rows.items()})
        assert abs(found["bias"]) < bias and found["mape"] < mape
