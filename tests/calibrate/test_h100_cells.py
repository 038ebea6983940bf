"""The table 'On a GPU' of docs/sim_to_real.md is what the simulator makes of the recorded cells."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from docs.generators.validity_page import SERVED
from ooco_gym.scenario import Scenario
from ooco_gym.sim import state as s
from ooco_gym.simulation import Simulation
from ooco_gym.workload import Trace, write_trace

ROOT, RUN = Path(__file__).parents[2], "runs/h100_llama31_8b_vllm032"
SHOWN = 0.6 * np.array([0.1, 1.0, 1.0, 0.1, 0.01])  # of the last digit that the page has of each figure
WINDOW_S, AFTER_S, TTFT_S, TPOT_S = 45.0, 5.0, 2.0, 0.05
VLLM = {"name": "vllm_priority", "max_num_seqs": 256, "engine_version": "0.32.0", "prefix_caching": "off"}
DEADLINE = {"name": "deadline", "max_num_batched_tokens": 4096, "max_num_seqs": 256, "chunk_efficiency": 0.0,
            "decode_share": 0.8}
CELLS = [  # in the page's order: policy, clock, what an iteration took over what was believed
    ({**VLLM, "max_num_batched_tokens": 2048}, "vllm_eager_async", 1.0),
    ({**VLLM, "max_num_batched_tokens": 512}, "vllm_eager_async", 1.0),
    (DEADLINE, "vllm_eager_async", 1.59), (DEADLINE, "vllm_eager_async", 1.31),
    ({**VLLM, "max_num_batched_tokens": 2048}, "vllm_eager_sync", 1.0), (DEADLINE, "vllm_eager_sync", 1.62)]


def shown() -> list[list[float]]:
    """Late share, offline tokens/s, TTFT, TPOT and end to end of the simulator, as the page has them."""
    text = (ROOT / "docs" / "sim_to_real.md").read_text(encoding="utf-8").partition("## On a GPU")[2]
    rows = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("| `")]
    return [[float(row[place].replace(",", "")) for place in (2, 4, 6, 8, 10)] for row in rows]


def played(trace: Trace, path: str, policy: dict[str, Any], clock: str, slowness: float) -> list[float]:
    """The same, of the online requests from the third second on."""
    cluster = {"name": "one", "model": "llama_3_1_8b", "max_batch": 1024, "engine_clock": clock,
               "mixed": [{"chip": "h100", "kv_blocks": 28_261}]}
    scenario = Scenario(cluster=cluster, workload=path, timing="extended", start_s=0.0, duration_s=WINDOW_S + AFTER_S,
                        warmup_s=0.0, drain_s=0.0, rate_scale=1.0, slo={"ttft_s": TTFT_S, "tpot_s": TPOT_S},
                        offline={"mode": "rate", "rate": 0.0},
                        predictor={"name": "biased", "factor": 1.0 / slowness, "noise": 0.0})
    play = Simulation(scenario, policy)
    play.advance(WINDOW_S)
    rows = play.state.requests
    offline = rows["generated_tokens"][~trace.online].sum() / WINDOW_S
    play.advance(WINDOW_S + AFTER_S)
    counted, tokens, end_s = trace.online & (trace.arrival_s >= 2.0), trace.output_tokens, WINDOW_S + AFTER_S
    sent_s, done = 1e-12 * rows["arrival_ps"], rows["status"] == s.FINISHED
    begun = (rows["first_token_ps"] > 0) & (rows["first_token_ps"] <= play.state.clock.now_ps)
    first_s, last_s = np.where(begun, 1e-12 * rows["first_token_ps"], np.nan), 1e-12 * rows["finish_ps"]
    tpot_s, due_s = (last_s - first_s) / np.maximum(tokens - 1, 1), sent_s + TTFT_S + (tokens - 1) * TPOT_S
    late = np.where(begun, first_s, end_s) - sent_s > TTFT_S
    late |= np.where(done, np.where(tokens >= 16, tpot_s > TPOT_S, last_s > due_s), end_s > due_s)
    judged, whole = counted & (done | late | (due_s < end_s)), counted & done
    return [float(one) for one in (
        100 * late[judged].mean(), offline, 1e3 * np.nanmean((first_s - sent_s)[counted]),
        1e3 * tpot_s[whole & (tokens > 1)].mean(), (last_s - sent_s)[whole].mean())]


@pytest.mark.data
@pytest.mark.skipif(not os.environ.get("OOCO_GYM_DATA"), reason="OOCO_GYM_DATA does not name a folder with runs/")
def test_the_table_is_what_comes_out(tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    table = pq.read_table(Path(os.environ["OOCO_GYM_DATA"]) / RUN / "trace.parquet")
    rows = {name: table[name].to_numpy(zero_copy_only=False) for name in table.column_names}
    trace = Trace(rows["arrival_s"], rows["prompt_tokens"].astype(np.int32), rows["output_tokens"].astype(np.int32),
                  rows["online"].astype(bool))
    path = str(write_trace(trace, tmp_path / "cell.parquet"))
    for cell, row in zip(CELLS, shown(), strict=True):
        found = played(trace, path, *cell)
        assert (np.abs(np.array(found) - row) <= SHOWN).all(), (cell, found, row)


def test_what_commands_say_of_the_clocks_is_in_the_table() -> None:
    page = shown()
    for (_, clock, _, (ttft_ms, tpot_ms)) in SERVED["h100"]:
        if clock != "none":
            row = page[[one[1] for one in CELLS].index(clock)]
            assert (ttft_ms, tpot_ms) == pytest.approx((row[2], row[3]))
