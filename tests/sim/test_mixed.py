"""Mixed instances: the schedule of vLLM's V1 scheduler token by token, the iteration's latency, what is conserved."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ooco_gym.errors import UserError
from ooco_gym.perf import cost_table, mixed_latency_ps
from ooco_gym.scenario import Cluster, Scenario
from ooco_gym.sim import state as s
from ooco_gym.simulation import Simulation, simulate
from tests.sim.episodes import traces
from tests.sim.harness import Episode, Setup, play
from tests.sim.iterations import given_tokens, steps
from tests.sim.vllm_schedule import Request, Schedule

POLICIES = ("vllm_fcfs", "vllm_priority")
VALUES = st.fixed_dictionaries({"max_num_batched_tokens": st.sampled_from((1, 16, 100, 2048)),
                                "max_num_seqs": st.sampled_from((1, 3, 16, 63)),
                                "reserved_blocks": st.sampled_from((0, 1)), "prefix_caching": st.just("off")})


@st.composite
def mixed_setups(draw: st.DrawFn) -> Setup:
    """Random episodes on one mixed instance, most of them short of memory."""
    values = tuple(sorted(draw(VALUES).items()))
    return Setup(requests=draw(traces()), relaxed=(), strict=(),
                 mixed=(draw(st.sampled_from((("ascend_910c", 1), ("h800", 1)))),),
                 policy=draw(st.sampled_from(POLICIES)), kv_tokens=draw(st.sampled_from((None, 800, 2800, 6000))),
                 values=values, window_s=(0.0, 20.0))


@given(mixed_setups())
def test_every_iteration_is_the_schedulers(setup: Setup) -> None:
    """Tokens of each request and preemptions equal those of the restated scheduler, in every iteration."""
    episode = Episode(setup)
    requests, config = episode.state.requests, episode.state.config
    usable = int(episode.state.instances[0]["total_blocks"] - config.reserved_blocks)
    other = Schedule(usable, int(config.max_num_batched_tokens), int(config.max_num_seqs),
                     not config.class_blind)
    arrived, last = 0, {}
    for spec in steps(episode):
        other.end(last)
        while arrived < episode.state.clock.next_arrival and requests[arrived]["arrival_ps"] <= spec["start_ps"]:
            row = requests[arrived]
            if row["status"] != s.REJECTED:
                other.add(Request(arrived, int(row["prompt_tokens"]), int(row["output_tokens"]),
                                  (1 - int(row["urgent"]), int(row["arrival_ps"]))))
            arrived += 1
        before, last = other.preemptions, other.step()
        while not last and other.preemptions > before:  # where all it did was to take memory, it is asked again
            before, last = other.preemptions, other.step()
        assert given_tokens(episode) == last
        running = episode.state.members[s.BATCH, 0, : spec["running"]]
        assert running.tolist() == [request.slot for request in other.running]
        assert requests["evictions"].sum() == other.preemptions
        assert spec["free_blocks"] - config.reserved_blocks == other.free


def test_latency_is_that_of_the_tables() -> None:
    """A chunk of 100 tokens beside three decodes: linear layers together, attentions one after the other."""
    rows = ((0.0, 50, 40, True), (0.0, 60, 40, True), (0.0, 70, 40, True), (0.3, 400, 5, True))
    setup = Setup(rows, relaxed=(), strict=(), mixed=(("ascend_910c", 1),), policy="vllm_fcfs",
                  values=(("max_num_batched_tokens", 203), ("max_num_seqs", 63)))
    episode = Episode(setup)
    requests = episode.state.requests
    for _ in steps(episode):
        if requests[3]["num_scheduled_tokens"] == 200 and requests[3]["num_computed_tokens"] == 200:
            break
    else:
        pytest.fail("the second chunk never came")
    table = cost_table(episode.machines[0].deployment, 63)
    contexts = sum(int(requests[i]["num_computed_tokens"]) + 1 for i in range(3))
    spec = episode.state.instances[0]
    assert spec["end_ps"] - spec["start_ps"] == mixed_latency_ps(table, [[200]], 200, [3], [contexts])[0]


def test_recomputed_tokens_are_waste() -> None:
    rows = tuple((0.0, 200, 150, i % 2 == 0) for i in range(12))
    for policy in POLICIES:
        state = play(Setup(rows, relaxed=(), strict=(), mixed=(("ascend_910c", 1),), policy=policy,
                           kv_tokens=2800, values=(("max_num_seqs", 63),))).state
        assert state.totals.evictions > 0
        assert state.totals.wasted_tokens == state.requests["wasted_tokens"].sum() > 0
        assert (state.requests["wasted_tokens"][state.requests["evictions"] == 0] == 0).all()
    assert (state.requests["evictions"][state.requests["online"] == 1] == 0).all(), "offline ones give way first"


def test_architectures_do_not_mix() -> None:
    pool = [{"chip": "ascend_910c"}]
    mine = {"name": "mine", "model": "qwen2_5_7b", "mixed": pool}
    for policy, cluster, said in (
            ("vllm_fcfs", "pair_7b", "mixed instances, but cluster 'pair_7b' has relaxed and strict instances; take "
                                     "cluster=mixed_7b, the same chips"),
            ("hygen", "pair_h100_8b", "take cluster=mixed_h100_8b, the same chips"),
            ("ooco", "mixed_7b", "relaxed and strict instances, but cluster 'mixed_7b' has mixed instances; take "
                                 "cluster=pair_7b, the same chips"),
            ("online_priority", mine, "take cluster=pair_7b"),
            ("sarathi", "fleet_16", "take cluster=mixed_7b")):
        with pytest.raises(UserError) as refused:
            Simulation(Scenario(duration_s=60.0, rate_scale=0.1, cluster=cluster), policy)
        assert str(refused.value).startswith(f"policy '{policy}' schedules ") and str(refused.value).endswith(said)
    with pytest.raises(UserError, match="pool 'strict' needs at least one"):
        Cluster.load({"model": "qwen2_5_7b", "mixed": pool, "relaxed": pool})


@pytest.mark.parametrize(("prompt", "output", "served"), [
    (3184, 1, True), (3000, 185, True), (3184, 2, False), (3000, 186, False), (3185, 1, False)])
def test_a_request_is_served_if_all_but_its_last_token_fit_as_in_vllm(prompt: int, output: int, served: bool) -> None:
    """Of 3,184 usable tokens vLLM computes prompt + output - 1: nothing is computed of the last."""
    for policy in POLICIES:
        state = play(Setup(((0.0, prompt, output, True),), relaxed=(), strict=(), mixed=(("ascend_910c", 1),),
                           policy=policy, kv_tokens=3200, values=(("max_num_seqs", 8), ("reserved_blocks", 1)))).state
        assert state.requests["status"].tolist() == [s.FINISHED if served else s.REJECTED], policy
        assert state.requests["generated_tokens"].tolist() == [output if served else 0]


def test_a_request_longer_than_the_models_window_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "long.csv"
    path.write_text("arrival_s,prompt_tokens,output_tokens\n0,131000,72\n1,131000,73\n2,250000,8\n")
    cluster = {"name": "long", "model": "llama_3_1_8b", "mixed": [{"chip": "h100"}], "slo": "chat"}
    scenario = Scenario(cluster=cluster, workload=str(path), start_s=0.0, duration_s=60.0, warmup_s=0.0)
    run = simulate(scenario, "deadline")
    assert (run.requests["status"] == s.REJECTED).tolist() == [False, True, True]
    assert run.summary["rejected"]["reasons"] == {"model window": 2}
