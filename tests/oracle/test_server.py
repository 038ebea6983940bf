"""A real server under a rule that misbehaves, with clients that leave: every request that stays gets its length, and
after all have left no block is held.

`OOCO_GYM_REQUESTS=2000` plays as many, as `make test-oracle` does; 200 by default.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from ooco_gym.calibrate.measure.interpreter import VARIABLE, write_random_model
from ooco_gym.errors import UserError
from tests.oracle.schedulers import pythons
from tests.oracle.server import MODEL, Server, write_tokenizer

pytestmark = pytest.mark.oracle
SIZES = {"layers": 2, "hidden": 128, "heads": 4, "kv_heads": 2, "head_dim": 32, "intermediate": 256, "vocab": 500}
SETTINGS = {"dtype": "float32", "max_model_len": 1024, "max_num_seqs": 32, "max_num_batched_tokens": 256,
            "num_gpu_blocks_override": 80, "block_size": 32, "enforce_eager": True, "enable_prefix_caching": True,
            "load_format": "dummy", "distributed_executor_backend": "uni"}
ENVIRONMENT = {"OMP_NUM_THREADS": 1, "VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_CPU_KVCACHE_SPACE": 1,
               "VLLM_LOGGING_LEVEL": "WARNING", "HF_HUB_OFFLINE": 1, "VLLM_ENABLE_V1_MULTIPROCESSING": 0}
CLASSES = {"online": {"priority": 0, "ttft_s": 0.3, "tpot_s": 0.02}, "offline": {"priority": 1}}


PACE = 40  # requests a second, all at the beginning of the second: most of them wait


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    if not os.environ.get(VARIABLE):
        pytest.skip(f"needs a Python with vLLM: `make test-oracle`, or ${VARIABLE}")
    folder = tmp_path_factory.mktemp("server")
    model = write_random_model(folder / "model", SIZES, 1024)
    write_tokenizer(model, SIZES["vocab"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(Path(__file__).parent / "scripts"))
        made = Server(pythons(os.environ[VARIABLE].split(",")[0])[0], str(model), SETTINGS, ENVIRONMENT,
                      folder / "server")
    made.use({"rule": "vllm", "classes": CLASSES})
    with made:
        yield made


def requests(count: int) -> list[list]:
    """Random requests of both classes as the client takes them; three in ten leave after some tokens, two in ten after
    1 ms to 1 s: while their request waits, in the middle of its prefill, or later."""
    draws, rows = random.Random(1), []
    for i in range(count):
        output, what = draws.randint(1, 30), draws.random()
        rows.append([float(i // PACE), draws.randint(1, 300), output, True, draws.randrange(2)])
        if what < 0.3:
            rows[-1] += [draws.randint(1, output)]
        elif what < 0.5:
            rows[-1] += [None, 10.0 ** draws.uniform(-3.0, 0.0)]
    return rows


def played(server: Server, rows: list[list], out: Path) -> list[dict]:
    server.play({"url": server.url, "model": MODEL, "window_s": rows[-1][0], "until_s": 300.0, "out": str(out),
                 "seed": 1, "vocab": SIZES["vocab"], "requests": rows})
    return json.loads(out.read_text())


@pytest.mark.parametrize("rule", ["in_vllm.misbehaving:Misbehaving", "deadline"])
def test_nothing_stops_the_server(server: Server, tmp_path: Path, rule: str) -> None:
    before = server.metrics()
    server.use({"rule": rule, "classes": CLASSES})
    rows = requests(int(os.environ.get("OOCO_GYM_REQUESTS", "200")))
    seen = played(server, rows, tmp_path / "cell.json")
    assert [one["error"] for one in seen if one["error"]] == []
    for one, row in zip(seen, rows, strict=True):
        got, gone = one["tokens"][-1][1] if one["tokens"] else 0, one.get("gone_s") is not None
        assert got == row[2] if len(row) == 5 else gone or got >= (row[5] or row[2])
    assert sum(one.get("gone_s") is not None and not one["tokens"] for one in seen) > 0
    server.wait_idle(60.0)
    # The gauges are those of the last iteration: one more request shows what is held after all have left.
    assert played(server, [[0.0, 5, 3, True, 0]], tmp_path / "last.json")[0]["tokens"][-1][1] == 3
    server.wait_idle(60.0)
    after = server.metrics()
    assert after["vllm:kv_cache_usage_perc"] == 0.0
    for name in ("vllm:ooco_decisions_total", *(() if rule == "deadline" else ("vllm:ooco_fallbacks_total",))):
        assert after[name] > before.get(name, 0.0)


def test_a_server_that_never_rests_is_named(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "metrics", lambda: {"vllm:num_requests_running": 2.0, "vllm:num_requests_waiting": 1.0})
    with pytest.raises(UserError, match="not idle after 0.1 s: 2 requests run and 1 wait"):
        server.wait_idle(0.1)
