"""The feature contract of Batching-v0 without numba or the simulator: hand-sized engines, rates and blocks of time."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from docs.generators import batching_features as document
from ooco_gym.runtime.features import ACTION, ENGINE, ArrivalRates, Batch, Blocks, observe
from ooco_gym.runtime.rules import Learned

ALONE = """
import sys
for name in ("numba", "llvmlite", "torch", "onnxruntime"):
    sys.modules[name] = None
from ooco_gym.runtime.features import ENGINE, observe
print(len(ENGINE), any(name.startswith(("ooco_gym.sim", "ooco_gym.envs.")) for name in sys.modules))
"""


def latency(batch):
    """Ten ms, and a tenth of a ms a token."""
    return 0.01 + 1e-4 * sum(tokens for tokens, _ in batch)


def test_a_batch_is_the_pairs_of_its_requests():
    batch = Batch(3, 100, [(7, 9)])
    assert list(batch) == [(1, 34), (1, 33), (1, 33), (7, 9)] and batch[-1] == (7, 9) and batch[1:3] == [(1, 33)] * 2
    assert len(batch) == 4 and not Batch(0, 0)
    with pytest.raises(IndexError):
        batch[4]
    belief = Learned(0.01, 1e-4)
    assert belief.of_batch(batch) == belief.of_batch(list(batch)) > 0.0


def request(**changes):
    return {"online": True, "arrival_time": 0.0, "first_token_time": None, "ttft_slo": 2.0, "tpot_slo": 0.05,
            "num_prompt_tokens": 100, "num_output_tokens": 0, "num_computed_tokens": 0, "num_blocks": 0,
            "num_cached_tokens": 0, **changes}


def decoding(first, made, online=True, **changes):
    return request(online=online, first_token_time=first, num_output_tokens=made, num_computed_tokens=99 + made,
                   **changes)


def engine(**changes):
    empty = {"now": 10.0, "tpot_slo": 0.05, "violation_budget": 0.03, "running": [], "waiting_online": [],
             "waiting_offline": [], "num_waiting_online": 0, "num_waiting_online_tokens": 0, "num_waiting_offline": 0,
             "num_waiting_offline_tokens": 0, "num_free_blocks": 50, "num_blocks": 100, "max_num_seqs": 4,
             "max_num_batched_tokens": 512, "latency": latency, "online_in_block": {600: (0, 0), 3600: (0, 0)},
             "online_rates": dict.fromkeys((10, 60, 300, 1800), 0.0), "last_online_arrival": 10.0}
    return {**empty, **changes}


def found(described, actions=((1.0, 1.0, 1.0),)):
    """Figures by name, in their units."""
    cluster, candidates = observe(described, actions)
    assert cluster.dtype == candidates.dtype == np.float32
    return dict(zip((one.name for one in ENGINE), cluster.tolist(), strict=True)), candidates


def signed_log(ms):
    return np.copysign(np.log1p(abs(ms)) / np.log1p(10_000), ms)


def test_it_needs_neither_numba_nor_the_simulator():
    done = subprocess.run([sys.executable, "-c", ALONE], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(len(ENGINE)), "False"]


def test_an_empty_engine():
    values, candidates = found(engine())
    assert values["kv_free"] == 0.5 and values["seats_free"] == 1.0
    assert values["slack_least"] == values["ttft_slack"] == values["next_slack"] == 1.0
    assert values["online_step"] == values["online_work"] == values["offline_work"] == 0.0
    assert candidates[0].tolist() == [1.0, 0.125, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0]


def test_slack_is_how_far_a_request_is_ahead_of_its_next_tokens_deadline():
    """First token at 9 s: the one after 30 tokens is due at 10.5 s, the one after 19 at 9.95 s; one is lost."""
    running = [decoding(9.0, 30, arrival_time=8.0), decoding(9.0, 19, arrival_time=8.0),
               decoding(9.0, 100, arrival_time=1.0), decoding(9.0, 5, online=False, num_blocks=7)]
    values, candidates = found(engine(running=running), [(1.0, 1.0, 1.0), (20.0, 1.0, 0.0)])
    assert values["slack_least"] == pytest.approx(signed_log(-50), abs=1e-6)
    assert values["slack_90"] == pytest.approx(signed_log(-50), abs=1e-6), "place 0 of 2"
    assert values["behind"] == 0.5 and values["kv_offline"] == pytest.approx(0.07)
    assert values["lost"] == pytest.approx(np.log(2) / np.log1p(256))
    assert values["online_step"] == pytest.approx(0.0103 / 0.05 / 4) and values["seats_free"] == 0.0
    late = [one.name for one in ACTION].index("late")
    assert candidates[:, late].tolist() == [0.5, 0.5], "nothing else is to be done: the step is that of the decodes"


def test_prompts_are_looked_at_in_their_order():
    """2,000 tokens take 0.21 s each: the first is due in time, the second in 0.3 s, after 0.42 s."""
    under_way = request(num_prompt_tokens=3000, num_computed_tokens=1000, arrival_time=9.0)
    waiting = [request(num_prompt_tokens=2000, arrival_time=8.3), request(num_prompt_tokens=2000, arrival_time=5.0)]
    values, _ = found(engine(running=[under_way], waiting_online=waiting, num_waiting_online=2,
                             num_waiting_online_tokens=4000))
    assert values["prompts_late"] == 0.5
    assert values["next_slack"] == pytest.approx(signed_log(1000), abs=1e-6)
    assert values["ttft_slack"] == values["second_slack"] == pytest.approx(signed_log(300), abs=1e-6)
    assert values["ttft_margin"] == pytest.approx(signed_log(300 - 420), abs=1e-6)
    assert values["lost"] > 0, "the last one is past its deadline"
    assert values["online_work"] == pytest.approx(np.log1p(10 + 51.2) / np.log1p(10_000)), "at most a token budget"


def test_an_answer_is_priced_by_its_parts():
    """Decodes alone 10.2 ms, of 50: 39.8 ms of room, half of it for prompts, that and more for offline work."""
    running = [decoding(9.9, 2, arrival_time=9.0), decoding(9.9, 2, arrival_time=9.0)]
    described = engine(running=running, waiting_online=[request(num_prompt_tokens=512, arrival_time=9.5)],
                       num_waiting_online=1, num_waiting_online_tokens=512, num_waiting_offline=9,
                       num_waiting_offline_tokens=900, waiting_offline=[
                           request(online=False, num_cached_tokens=25), request(online=False, num_prompt_tokens=300)])
    values, candidates = found(described, [(1.0, 0.5, 0.75), (1.0, 0.5, 0.25), (4.0, 1.0, 1.0)])
    names = [one.name for one in ACTION]
    got = [dict(zip(names, row * np.array([one.limit for one in ACTION]), strict=True)) for row in candidates]
    assert got[0]["online_time"] * 50 == pytest.approx(19.9, abs=1e-3)
    assert got[0]["offline_time"] * 50 == pytest.approx(9.95, abs=1e-3)
    assert got[0]["step"] * 50 == pytest.approx(10.2 + 19.9 + 9.95, abs=1e-3)
    assert got[1]["offline_time"] == 0.0, "online prompts have taken more than its share"
    assert got[2]["online_time"] * 50 == pytest.approx(51.2, abs=1e-3), "all that there is to do"
    assert values["offline_next_cached"] == 0.25 and values["offline_cached"] == 0.0625


def test_rates_fade_as_those_of_the_simulator():
    rates = ArrivalRates(0.0)
    for at in (1.0, 2.0, 2.5):
        rates.arrived(at)
    expected = sum(np.exp(-(2.5 - at) / 10) / 10 for at in (1.0, 2.0, 2.5))
    assert rates.describe()["online_rates"][10] == pytest.approx(expected)
    assert rates.describe()["last_online_arrival"] == 2.5


def test_blocks_begin_anew():
    blocks = Blocks()
    for at in (1.0, 2.0, 700.0, 701.0):
        blocks.arrived(at)
    blocks.missed(3.0 + 700.0)
    assert blocks.describe(1000.0)["online_in_block"] == {600: (2, 1), 3600: (4, 1)}
    assert blocks.describe(1200.0)["online_in_block"] == {600: (0, 0), 3600: (4, 1)}


def test_the_page_on_disk_is_what_the_code_writes():
    from pathlib import Path

    path = Path(__file__).resolve().parents[2] / document.PATH
    assert path.read_text(encoding="utf-8") == document.page(), "run: python -m docs.generators.batching_features"
