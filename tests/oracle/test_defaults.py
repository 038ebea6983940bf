"""What a server of the installed vLLM sets itself on a card is what `vllm_fcfs` plays there."""

from __future__ import annotations

import json
import os
import subprocess

import pytest

from ooco_gym import Scenario
from ooco_gym.calibrate.measure.interpreter import VARIABLE
from ooco_gym.perf import load_chip
from ooco_gym.simulation import Simulation
from tests.oracle.schedulers import Oracle, pythons

pytestmark = pytest.mark.oracle
CARDS = {"h100": "NVIDIA H100 80GB HBM3", "h200": "NVIDIA H200", "a100_80g": "NVIDIA A100-SXM4-80GB",
         "l40s": "NVIDIA L40S", "b200": "NVIDIA B200"}
ASK = """
import json, sys
from vllm.engine.arg_utils import EngineArgs
from vllm.platforms import current_platform
from vllm.usage.usage_lib import UsageContext
platform, found = type(current_platform), {}
platform.is_cpu = lambda self: False
for card, (name, size) in json.loads(sys.argv[1]).items():
    platform.get_device_total_memory = classmethod(lambda cls, device_id=0, size=size: size)
    platform.get_device_name = classmethod(lambda cls, device_id=0, name=name: name)
    found[card] = [one[UsageContext.OPENAI_API_SERVER] for one in EngineArgs.get_batch_defaults(1)]
print(json.dumps(found))
"""


def test_budget_and_seats_are_the_engines_own(oracle: Oracle, version: str) -> None:
    cards = {chip: (name, load_chip(chip).memory_bytes) for chip, name in CARDS.items()}
    asked = subprocess.run([str(pythons(os.environ[VARIABLE].split(",")[0])[0]), "-c", ASK, json.dumps(cards)],
                           capture_output=True, text=True, check=True)
    assert {chip: shipped(chip, version) for chip in CARDS} == json.loads(asked.stdout.splitlines()[-1])


def shipped(chip: str, version: str) -> list[int]:
    """Token budget and seats on a card."""
    cluster = {"name": "one", "model": "qwen2_5_7b", "mixed": [{"chip": chip, "count": 1}], "slo": "chat"}
    params = Simulation(Scenario(cluster=cluster, online_rate=1.0, duration_s=1.0, warmup_s=0.0),
                        f"vllm_fcfs:engine_version={version}").policy.values
    return [params["max_num_batched_tokens"], params["max_num_seqs"]]
