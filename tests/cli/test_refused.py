"""Wrong configurations: each is refused in one sentence that names key, value, what is expected and the place."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from ooco_gym.cli import main

FILES = {
    "chip.yaml": "extends: h100\n", "model.yaml": "extends: llama_2_7b\n", "cluster.yaml": "extends: mixed_7b\n",
    "pools.yaml": "extends: pair_7b\n", "workload.yaml": "extends: ooc\n", "classes.yaml": "",
    "offline.yaml": "extends: ooc\n", "clock.yaml": "name: mine\n", "agent.yaml": "extends: cma\n",
}
GROUP = "mixed:\n  - {chip: ascend_910c, "
PERF_CHIP, PERF_MODEL = "perf chip=chip.yaml", "perf model=model.yaml"
CLUSTER, POOLS, CLASSES, OFFLINE = (f"simulate {one}={name}.yaml" for one, name in (
    ("cluster", "cluster"), ("cluster", "pools"), ("classes", "classes"), ("offline", "offline")))
WORKLOAD = "simulate workload=workload.yaml rate_scale=0.1"
CLOCK, GATING = "simulate policy=deadline cluster=mixed_7b cluster.engine_clock=clock.yaml", "evaluate env=gating"
TRAIN, CMA = "train env=gating", "train env=gating agent=cma"
CASES = [  # words of the command, what its file has besides, and what the sentence says
    # a scenario's own values, on the command line
    ("simulate slo.ttft_s=-1", "", "slo.ttft_s=-1 must be a number of seconds above 0 and at most 1e+06"),
    ("simulate slo.tpot_s=0", "", "slo.tpot_s=0 must be a number of seconds above 0"),
    ("simulate slo.gap_s=-1", "", "slo.gap_s=-1 must be a number of seconds above 0"),
    ("simulate slo.tpot_from=last", "", "slo.tpot_from='last' must be one of first_token, first_decode"),
    ("simulate slo.tpot_min_tokens=1e300", "",
     "slo.tpot_min_tokens=1e+300 must be a whole number from 2 to 2,147,483,647"),
    ("simulate slo.ttft=1", "", "slo has no key 'slo.ttft' (did you mean 'slo.ttft_s'?)"),
    ("simulate duration_s=0", "", "duration_s=0 must be a number of seconds above 0"),
    ("simulate duration_s=1e12", "", "duration_s=1000000000000.0 must be a number of seconds above 0 and at most"),
    ("simulate start_s=1e12", "", "start_s=1000000000000.0 must be a number of seconds from -1e+09 to 1e+09"),
    ("simulate rate_scale=-1", "", "rate_scale=-1 must be a number of at least 0"),
    ("simulate jitter=2", "", "jitter=2 must be a number from 0 to 1"),
    ("simulate seed=1.5", "", "seed=1.5 must be a whole number"),
    ("simulate seed=many", "", "seed=many: expected a number"),
    ("simulate online_rate=1 rate_scale=1", "", "rate_scale=1 and online_rate=1 both set the online load"),
    ("simulate offline.rate=-1", "", "offline.rate=-1 must be a number of requests a second, at least 0"),
    ("simulate offline.mode=rat", "", "offline.mode='rat' must be one of rate, backlog, jobs (did you mean 'rate'?)"),
    ("simulate predictor='{nois: 0.1}'", "", "predictor: unknown key 'nois' (did you mean 'noise'?)"),
    ("simulate predictor='{name: biased, factor: 1000}'", "",
     "predictor.factor=1000 must be a number from 0.01 to 100"),
    ("simulate lengths='{predictor: rank, tau: 2}'", "", "lengths.tau=2 must be a number from 0 to 1"),
    ("simulate lengths=truth", "", "lengths.predictor='truth' must be one of none, client, true, lognormal, rank (did"),
    ("simulate policy=ooco:slo_margin=-5", "", "slo_margin=-5 must be a number from"),
    ("simulate policy=oco", "", "unknown policy 'oco' (did you mean 'ooco'?)"),
    ("simulate sed=2", "", "simulate has no key 'sed' (did you mean 'seed'?)"),
    ("simulate predictor=biassed", "", "predictor.name='biassed' must be one of exact, biased"),
    ("simulate offline.mode=jobs", "", "offline.jobs is missing"),
    ("simulate warmup_s=1e300", "", "warmup_s=1e+300 must be a number of seconds from 0"),
    # a cluster, its chips and model
    (CLUSTER, "max_batch: 1000000000\n",
     "cluster 'mixed_7b': max_batch=1000000000 must be a whole number from 2 to 65,536"),
    (CLUSTER, "block_tokens: 0\n", "block_tokens=0 must be a whole number from 1 to 65,536"),
    (CLUSTER, "kv_link_bytes_per_s: 1\n",
     "kv_link_bytes_per_s=1 must be a number of bytes a second from 1e+06 to 1e+15"),
    (CLUSTER, "pd_handover_s: 100\n", "pd_handover_s=100 must be a number of seconds from 0 to 60"),
    (POOLS, "pd_first_token: both\n", "pd_first_token='both' must be one of prefill, decode"),
    (CLUSTER, "kv_offloading_gib: -1\n", "kv_offloading_gib=-1 must be a number from 0 to 999,999"),
    (CLUSTER, "memory: vlm\n", "memory='vlm' must be one of fraction, vllm (did you mean 'vllm'?)"),
    (CLUSTER, "modell: x\n", "unknown key 'modell' (did you mean 'model'?)"),
    (CLUSTER, GROUP + "count: 1000000000}\n", "mixed[0].count=1000000000 must be a whole number from 1 to 4,096"),
    (CLUSTER, GROUP + "kv_blocks: 1000000000000000000000}\n",
     "kv_blocks=1000000000000000000000 must be a whole number from 2"),
    (CLUSTER, GROUP + "counts: 2}\n", "mixed[0]: unknown key 'counts' (did you mean 'count'?)"),
    (CLUSTER, "mixed:\n  - {tp: 1}\n", "mixed[0].chip is missing; expected a name, a path or a mapping"),
    (CLUSTER, "mixed: 3\n", "mixed=3 must be a list"),
    (POOLS, "relaxed: []\n", "pool 'relaxed' needs at least one instance"),
    (PERF_CHIP, "gem_flops_per_s: 1.0\n", "unknown key 'gem_flops_per_s' (did you mean 'gemm_flops_per_s'?)"),
    (PERF_CHIP, "memory_bytes: much\n", "memory_bytes='much' must be a number above 0"),
    (PERF_CHIP, "extended: {gem: {}}\n", "extended: unknown key 'gem' (did you mean 'gemm'?)"),
    (PERF_CHIP, "extended: {gemm: {exponent: 0.5}}\n", "extended.gemm.exponent=0.5 must be a number of at least 1"),
    (PERF_CHIP, "validity: {tp: [1, 2.5]}\n", "validity.tp[1]=2.5 must be a whole number from 1 to 1,000,000,000,000"),
    (PERF_MODEL, "layers: 1.5\n", "layers=1.5 must be a whole number from 1 to 1,000,000,000,000"),
    (PERF_MODEL, "kv_heads: 3\n", "kv_heads (3) must divide heads (32)"),
    ("perf tp=0", "", "tp=0 must be a whole number from 1 to 1,000,000,000,000"),
    (CLOCK, "async_scheduling: 1\n", "async_scheduling=1 must be true or false"),
    (CLOCK, "decode_s: 100\n", "engine_clock.decode_s=100 must be a number of seconds from 0 to 60"),
    # what arrives
    (WORKLOAD, "mean_rate_per_s: 0\n", "mean_rate_per_s=0 must be a number of requests a second above 0"),
    (WORKLOAD, "batch_s: 1e+300\n", "batch_s=1e+300 must be a number of seconds from 0 to 600"),
    (WORKLOAD, "tide: [1, 2]\n", "tide=(1.0, 2.0) must be a list of 24 numbers"),
    (WORKLOAD, "sharing: {form: chat, ratio: 2}\n", "sharing.ratio=2 must be a number from 0 to 0.99"),
    (OFFLINE, "sharing: {form: documents, in_a_row: 2, ratio: 0.5}\n", "offline.sharing: unknown key 'in_a_row'"),
    (CLASSES, "chat: {ttft_s: -1}\n", "classes.chat.ttft_s=-1 must be a number of seconds above 0"),
    (CLASSES, "chat: {weight: -1}\n", "classes.chat.weight=-1 must be a number from 0 to 1e+06"),
    (CLASSES, "chat: 3\n", "classes.chat=3 must be a mapping such as"),
    # environments, agents and other commands
    ("evaluate env=prefillgate env.candidates=65", "", "candidates=65 must be a whole number from 1 to 64"),
    (f"{GATING} env.window_s=-1.0", "", "window_s=-1.0 must be a number of seconds from 0.001 to 86400"),
    (f"{GATING} env.reward='{{servic: 1.0}}'", "", "(did you mean 'service'?)"),
    (f"{GATING} policies=[never] episodes=12000000000", "",
     "episodes=12000000000 must be a whole number from 1 to 1,048,576"),
    (f"{TRAIN} agent.n_envs=1000000000", "", "agent.n_envs=1000000000 must be a whole number from 1 to 4,096"),
    (f"{TRAIN} agent.n_steps=1000000", "", "give 128,000,000 decisions an update; expected at most 1,048,576"),
    (f"{TRAIN} agent.imitate.smoothing=2", "", "agent.imitate.smoothing=2 must be a number from 0 to 1"),
    (f"{CMA} agent.population=1000000000", "", "agent.population=1000000000 must be a whole number from 4 to 16,384"),
    (f"{CMA} agent.halving.keep=2", "", "agent.halving.keep=2 must be a number from 0.1 to 1"),
    (f"{TRAIN} agent=pid_lagrangian agent.lagrangian.budget=1.5", "",
     "agent.lagrangian.budget=1.5 must be a number above 0 and at most 1"),
    (f"{TRAIN} max_wall_s=-1", "", "max_wall_s=-1 must be a number of seconds above 0, or null for no limit"),
    (f"{TRAIN} agent.discount_per_s=1.5", "", "agent.discount_per_s=1.5 must be a number above 0 and at most 1"),
    (f"{TRAIN} agent.nenvs=3", "", "did you mean 'agent.n_envs'?"),
    (f"{TRAIN} total_timesteps=-5", "", "total_timesteps=-5 must be a whole number from 1 to 1,000,000,000,000"),
    (f"{TRAIN} seed=-1", "", "seed=-1 must be a whole number from 0 to 4,294,967,295"),
    ("dataset env=gating policy=ooco episodes=10000000000", "", "episodes=10000000000 must be a whole number from 1"),
    ("headroom env=gating episodes=1", "", "episodes=1 must be a whole number from 2 to 1,048,576"),
    ("capacity policies=[ooco] seeds=0:100000000000", "", "has more than 1,000,000 seeds"),
    ("simulate -m policy=ooco seed=range(0,1000000000)", "", "a sweep has at most 100,000 points"),
    ("simulate -m policy=ooco seed=range(0,1000) rate_scale=range(1,1000)", "", "at most 100,000 points"),
    ("simulate -m policy=ooco seed=shuffle(range(0,1000000000))", "", "a sweep has at most 100,000 points"),
    (f"claim name=router seeds=1:{'9' * 5000}", "", "has more than 1,000,000 seeds"),
    ("simulate workload=oco", "", "unknown workload 'oco'"),
    ("simulate cluster=pair_8b", "", "unknown cluster 'pair_8b' (did you mean 'pair_7b'?)"),
    ("simulate cluster.retention=ttl:ttl_s=-1 policy=vllm_fcfs cluster=mixed_7b", "", "ttl_s=-1 must be a number from"),
    ("compare policies=[ooco,base_pd] seeds=1000000000", "", "seeds=1000000000 has more than 1,000,000 seeds"),
    ("capacity policies=[ooco] tuning.part=2 tune=[ooco]", "",
     "tuning.part=2 must be a share of the trace between 0 and 1"),
]


@pytest.mark.parametrize(("words", "content", "said"), CASES, ids=[f"{one[0][:30]} {one[2][:40]}" for one in CASES])
def test_a_wrong_configuration_is_refused(words: str, content: str, said: str, tmp_path: Path,
                                          monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    for name, begin in FILES.items():
        if name in words:
            Path(name).write_text(begin + content)
    code = main([*shlex.split(words), "out=out"])
    lines = [line for line in capfd.readouterr().err.strip().splitlines() if "compil" not in line]  # a first start's
    assert (code, len(lines) <= 2, Path("out").exists()) == (2, True, False), lines
    assert said in lines[-1] and lines[-1].startswith("error: "), lines
