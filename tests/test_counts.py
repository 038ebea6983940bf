"""A count that would take all memory is refused in one sentence, before any is taken."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

MEMORY = 4 << 30  # bytes of addresses
PLAY = """
import contextlib, io, json, sys
from ooco_gym.cli import main
found = []
for words in json.loads(sys.argv[1]):
    with contextlib.redirect_stderr(io.StringIO()) as said, contextlib.redirect_stdout(io.StringIO()):
        code = main(words)
    found.append((code, said.getvalue()))
print(json.dumps(found))
"""
CASES = [
    (["compare", "policies=[ooco,base_pd]", "seeds=1000000000"], "seeds=1000000000 has more than 1,000,000 seeds"),
    (["capacity", "policies=[ooco]", "seeds=0:100000000000"], "has more than 1,000,000 seeds"),
    (["claim", "name=router", "seeds=911000:91100000000"], "has more than 1,000,000 seeds"),
    (["claim", "name=router", f"seeds=1:{'9' * 5000}"], "has more than 1,000,000 seeds"),
    (["simulate", "-m", "policy=ooco", "seed=range(0,1000000000)"], "a sweep has at most 100,000 points"),
    (["simulate", "-m", "policy=ooco", "seed=shuffle(range(0,1000000000))"], "a sweep has at most 100,000 points"),
    (["simulate", "-m", "policy=ooco", "seed=range(0,1000)", "rate_scale=range(1,1000)"], "at most 100,000 points"),
    (["simulate", "policy=ooco", "duration_s=1e12"], "exceeds the simulator's longest run"),
    (["simulate", "policy=ooco", "cluster.max_batch=1000000000"], "max_batch=1000000000 must be from 2 to 65536"),
    (["simulate", "policy=ooco", "cluster.block_tokens=1000000000"], "must be from 1 to 65536"),
    (["simulate", "policy=deadline", "cluster=count.yaml"], "count=1000000000 must be from 1 to 4096"),
    (["simulate", "policy=deadline", "cluster=blocks.yaml"], "must be a whole number from 2 to 1000000000000"),
    (["simulate", "policy=ooco", "slo.tpot_min_tokens=1e300"], "must be a number from 2 to 2147483647"),
    (["simulate", "policy=ooco", "workload=batch.yaml"], "batch_s"),
    (["train", "env=gating", "agent.n_envs=1000000000"], "agent.n_envs must be at most 4,096"),
    (["train", "env=gating", "agent.n_steps=100000000000"], "agent.n_steps must be at most 1,048,576"),
    (["train", "env=gating", "agent.n_steps=1000000"], "give 128,000,000 decisions an update"),
    (["train", "env=gating", "total_timesteps=100000000000000000000"], "must be at most 1,000,000,000,000"),
    (["train", "env=gating", "agent=cma", "agent.population=1000000000"], "agent.population must be at most 16,384"),
    (["evaluate", "env=gating", "policies=[never]", "episodes=12000000000"], "episodes must be at most 1,048,576"),
    (["dataset", "env=gating", "policy=ooco", "episodes=10000000000"], "episodes must be at most 1,048,576"),
    (["headroom", "env=gating", "episodes=10000000000"], "episodes must be at most 1,048,576"),
]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[int, str]]:
    """Exit codes and sentences, by a process that has so much memory and not for ever."""
    folder = tmp_path_factory.mktemp("counts")
    group = "extends: mixed_7b\nmixed:\n  - {chip: ascend_910c, tp: 1, pp: 1, "
    (folder / "count.yaml").write_text(group + "count: 1000000000}\n")
    (folder / "blocks.yaml").write_text(group + "count: 2, kv_blocks: 1000000000000000000000}\n")
    (folder / "batch.yaml").write_text("extends: ooc\nbatch_s: 1e+300\n")

    def bound() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))

    words = json.dumps([[*words, f"out=OUT/{number}"] for number, (words, _) in enumerate(CASES)])
    ended = subprocess.run([sys.executable, "-c", PLAY, words], cwd=folder, text=True, capture_output=True, check=True,
                           env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}, preexec_fn=bound,
                           timeout=300)
    return json.loads(ended.stdout.splitlines()[-1])


@pytest.mark.parametrize("number", range(len(CASES)), ids=[" ".join(words)[:50] for words, _ in CASES])
def test_a_count_has_a_most(found: list[tuple[int, str]], number: int) -> None:
    """The sentence names it."""
    code, said = found[number]
    assert code == 2 and CASES[number][1] in said and "Traceback" not in said, said
