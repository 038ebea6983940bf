"""A real server under a rule that misbehaves, with clients that leave: every request that stays gets its length.

`OOCO_GYM_REQUESTS=2000` plays as many; 200 by default.
"""

from __future__ import annotations

import json
import os
import random
from pathlib import Path

import pytest

from experiments.studies.engine_live.server import MODEL, Server, write_tokenizer
from experiments.studies.oracle_vllm.study import pythons
from ooco_gym.calibrate.measure.interpreter import VARIABLE, write_random_model

pytestmark = pytest.mark.oracle
SIZES = {"layers": 2, "hidden": 128, "heads": 4, "kv_heads": 2, "head_dim": 32, "intermediate": 256, "vocab": 500}
SETTINGS = {"dtype": "float32", "max_model_len": 1024, "max_num_seqs": 32, "max_num_batched_tokens": 256,
            "num_gpu_blocks_override": 80, "block_size": 32, "enforce_eager": True, "enable_prefix_caching": True,
            "load_format": "dummy", "distributed_executor_backend": "uni"}
ENVIRONMENT = {"OMP_NUM_THREADS": 1, "VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_CPU_KVCACHE_SPACE": 1,
               "VLLM_LOGGING_LEVEL": "WARNING", "HF_HUB_OFFLINE": 1, "VLLM_ENABLE_V1_MULTIPROCESSING": 0}
CLASSES = {"online": {"priority": 0, "ttft_s": 0.3, "tpot_s": 0.02}, "offline": {"priority": 1}}


def test_nothing_stops_the_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not os.environ.get(VARIABLE):
        pytest.skip(f"needs a Python with vLLM: `make test-oracle`, or ${VARIABLE}")
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent / "scripts"))
    count = int(os.environ.get("OOCO_GYM_REQUESTS", "200"))
    model = write_random_model(tmp_path / "model", SIZES, 1024)
    write_tokenizer(model, SIZES["vocab"])
    draws, rows = random.Random(1), []
    for i in range(count):
        output = draws.randint(1, 30)
        rows.append([i / 40.0, draws.randint(1, 300), output, True, draws.randrange(2),
                     *([draws.randint(1, output)] if draws.random() < 0.3 else [])])
    server = Server(pythons(os.environ[VARIABLE].split(",")[0])[0], str(model), SETTINGS, ENVIRONMENT,
                    tmp_path / "server")
    server.use({"rule": "vllm", "classes": CLASSES})
    with server:
        for rule in ("in_vllm.misbehaving:Misbehaving", "deadline"):
            server.use({"rule": rule, "classes": CLASSES})
            out = tmp_path / "cell.json"
            server.play({"url": server.url, "model": MODEL, "window_s": count / 40.0, "until_s": 300.0,
                         "out": str(out), "seed": 1, "vocab": 500, "requests": rows})
            seen = json.loads(out.read_text())
            assert [one["error"] for one in seen if one["error"]] == []
            got = [one["tokens"][-1][1] for one in seen]
            assert all(have == row[2] if len(row) == 5 else have >= row[5]
                       for have, row in zip(got, rows, strict=True))
            server.wait_idle()
        counted = server.metrics()
    assert counted["vllm:ooco_fallbacks_total"] > 0 and counted["vllm:ooco_decisions_total"] > 0
