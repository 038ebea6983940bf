"""Host times fitted to requests of one cell of a real engine foresee another one."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ooco_gym.calibrate.requests import Foreseen, Load, fit_requests
from ooco_gym.calibrate.served import Served
from ooco_gym.perf.engine_clock import EngineClock
from ooco_gym.scenario import Scenario
from ooco_gym.sim import state as s
from ooco_gym.simulation import Simulation
from ooco_gym.workload import Trace, write_trace

RUN, WINDOW_S = "runs/h100_llama31_8b_vllm032", 50.0
MODE = EngineClock(async_scheduling=True)
pytestmark = [pytest.mark.data, pytest.mark.skipif(
    not os.environ.get("OOCO_GYM_DATA"), reason="OOCO_GYM_DATA does not name a folder with runs/")]


def columns(name: str) -> dict[str, np.ndarray]:
    import pyarrow.parquet as pq

    table = pq.read_table(Path(os.environ["OOCO_GYM_DATA"]) / RUN / name)
    return {key: table[key].to_numpy(zero_copy_only=False) for key in table.column_names}


class Cell:
    """Online requests of a cell that ended, and the same requests in the simulator."""

    def __init__(self, folder: Path, name: str, tokens: int) -> None:
        rows, seen = columns("trace.parquet"), columns("cells_async_requests.parquet")
        self.trace = Trace(arrival_s=rows["arrival_s"], prompt_tokens=rows["prompt_tokens"].astype(np.int32),
                           output_tokens=rows["output_tokens"].astype(np.int32), online=rows["online"].astype(bool))
        self.path, self.tokens = str(write_trace(self.trace, folder / "cell.parquet")), tokens
        first_s, last_s = np.full((2, len(rows["arrival_s"])), np.nan)
        kept = (seen["cell"] == name) & (seen["made"] >= rows["output_tokens"][seen["index"].astype(int)])
        index = seen["index"][kept].astype(int)
        first_s[index], last_s[index] = (seen[key][kept].astype(float) - rows["arrival_s"][index] for key in (
            "first_s", "done_s"))
        self.kept = np.flatnonzero(self.trace.online & (rows["arrival_s"] >= 2.0) & np.isfinite(first_s + last_s))
        self.real = self._of(first_s, last_s)

    def _of(self, first_s: np.ndarray, last_s: np.ndarray) -> Served:
        first_s, last_s, tokens = first_s[self.kept], last_s[self.kept], self.trace.output_tokens[self.kept]
        several = tokens > 1
        return Served(first_s, (last_s - first_s)[several] / (tokens[several] - 1), last_s)

    def serve(self, clock: EngineClock) -> Served:
        cluster: dict[str, Any] = {
            "name": "h100", "model": "llama_3_1_8b", "block_tokens": 16, "max_batch": 256, "engine_clock":
            asdict(clock), "mixed": [{"chip": "h100", "kv_blocks": 28_261}]}
        scenario = Scenario(cluster=cluster, workload=self.path, timing="extended", start_s=0.0, duration_s=WINDOW_S,
                            warmup_s=0.0, drain_s=0.0, rate_scale=1.0, slo={"ttft_s": 2.0, "tpot_s": 0.05},
                            offline={"mode": "rate", "rate": 0.0}, predictor="exact")
        play = Simulation(scenario, {"name": "vllm_priority", "max_num_batched_tokens": self.tokens,
                                     "max_num_seqs": 256, "engine_version": "0.32.0"})
        play.advance(WINDOW_S)
        rows = play.state.requests
        done = rows["status"] == s.FINISHED
        ends_ps = np.where(done, rows["finish_ps"], round(1e12 * WINDOW_S))
        firsts_ps = np.where(rows["generated_tokens"] > 0, rows["first_token_ps"], ends_ps)
        return self._of(*(1e-12 * (times - rows["arrival_ps"]) for times in (firsts_ps, ends_ps)))

    @property
    def load(self) -> Load:
        return Load(self.serve, self.real, self.trace.prompt_tokens[self.kept])

    def errors(self, fit: Foreseen) -> tuple[float, float]:
        """Of mean TTFT and mean TPOT, in percent."""
        ours = fit.seen(self.serve(fit.clock(MODE)))
        return tuple(100.0 * (getattr(ours, key).mean() / getattr(self.real, key).mean() - 1.0)
                     for key in ("ttft_s", "tpot_s"))  # type: ignore[return-value]


def test_one_cell_foresees_the_others(tmp_path: Path) -> None:
    names = {"vllm_priority_2048": 2048, "vllm_priority_2048_again": 2048, "vllm_priority_512": 512}
    one, again, other = (Cell(tmp_path, name, tokens) for name, tokens in names.items())
    fit = fit_requests([one.load], MODE)
    assert fit.host_times["frontend_s"] < 0.03                  # and not an iteration's wait, of some 60 ms
    ttft, tpot = again.errors(fit)
    assert abs(ttft) < 5.0 and abs(tpot) < 4.0
    assert any("prefill_" in sentence for sentence in fit.notes)  # every iteration is full
    ttft, tpot = other.errors(fit)
    assert abs(ttft) < 30.0 and abs(tpot) < 15.0
    both = fit_requests([one.load, other.load], MODE)
    assert both.host_times["prefill_s"] == pytest.approx(0.005, rel=0.25)   # as the cells' iterations have it
    for cell in (one, again, other):
        ttft, tpot = cell.errors(both)
        assert abs(ttft) < 10.0 and abs(tpot) < 5.0
    plain = one.serve(EngineClock())
    assert plain.tpot_s.mean() / one.real.tpot_s.mean() < 0.92
