"""Hypothesis strategies: random clusters, traces, policies and protocols, small enough to play in milliseconds."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from ooco_gym.policy import get_policy
from ooco_gym.sim.config import Group
from tests.sim.harness import BASELINES, POINT_NAMES, Setup

CHIPS = (("ascend_910c", 1), ("ascend_910c", 2), ("h800", 1), ("a100_40g_sxm", 1))
BESIDE = ("deadline", "vllm_priority", "conserve", "niyama", "sarathi_pp")  # on mixed instances beside pools
BLIND = ("vllm_fcfs", "sglang")  # the same of policies that treat offline requests as online ones
VALUES: dict[str, dict[str, Any]] = {
    "ooco": {
        "slo_margin": st.sampled_from((0.5, 0.9, 1.0)), "pull_margin": st.sampled_from((0.0, 0.05)),
        "random_tries": st.integers(0, 8), "max_pull": st.integers(1, 8),
        "interrupt": st.sampled_from(("always", "slack", "never")),
        "gate": st.sampled_from(("cost", "saturation", "always")),
        "overload": st.sampled_from(("best_effort", "sacrifice")),
        "evict": st.sampled_from(("bottleneck", "longest", "shortest")), "gate_window": st.integers(1, 8),
        "prefill_tokens": st.sampled_from((1, 512, 2048)), "layer_resume": st.integers(0, 1),
        "prefix_caching": st.sampled_from(("off", "off", "on"))},
    "slack": {
        "growth": st.sampled_from((0.0, 0.1, 1.0)), "bank": st.sampled_from((0.0, 1.0, 2.0)),
        "slo_margin": st.sampled_from((0.5, 1.0)),
        "interrupt": st.sampled_from(("always", "slack", "never")), "max_pull": st.integers(1, 8),
        "prefill_tokens": st.sampled_from((512, 2048))},
    "memory_gate": {
        "reserve": st.sampled_from((0.0, 0.1, 0.5)), "gate_growth": st.sampled_from((0.0, 0.3, 2.0)),
        "gate": st.sampled_from(("cost", "always")), "choose": st.sampled_from(("first", "density")),
        "growth": st.sampled_from((0.0, 1.0)), "max_pull": st.integers(1, 8),
        "prefill_tokens": st.sampled_from((512, 2048)),
        "weights": st.sampled_from(("", "policy/learned_gate.npz"))},
    "ooco_lengths": {
        "evict": st.sampled_from(("density", "longest_output")), "max_pull": st.integers(1, 8),
        "pull": st.sampled_from(("past_future", "soonest", "shortest_output", "slack")),
        "pull_room": st.sampled_from((0.3, 0.8)), "prefill_tokens": st.sampled_from((512, 2048))},
    "ooco_xllm": {
        "stop_share": st.sampled_from((0.5, 0.98)), "estimate_every": st.integers(1, 3),
        "pull_interval_s": st.sampled_from((0.0, 0.1, 0.5)), "gate_window": st.integers(1, 8),
        "prefill_tokens": st.sampled_from((512, 2048)), "layer_resume": st.integers(0, 1)},
    "base_pd": {"prefill_tokens": st.sampled_from((512, 2048)), "prefix_caching": st.sampled_from(("off", "on")),
                "local_prefill_tokens": st.sampled_from((0, 0, 200, 100_000))},
    "online_priority": {"batch_cap": st.sampled_from((0, 1, 3, 8)), "interrupt": st.sampled_from(("never", "always")),
                        "prefill_tokens": st.sampled_from((512, 2048)), "layer_resume": st.integers(0, 1)},
}


@st.composite
def traces(draw: st.DrawFn, most: int = 60) -> tuple[tuple[float, int, int, bool], ...]:
    """Bursts of requests, many at equal times, outputs of one token among them."""
    rows = []
    for _ in range(draw(st.integers(1, 6))):
        at = draw(st.sampled_from((0.0, 0.25, 1.0, 2.0, 5.0, 11.0)))
        gap = draw(st.sampled_from((0.0, 0.0, 0.013, 0.11)))
        online = draw(st.booleans())
        prompt = draw(st.sampled_from((1, 15, 16, 200, 900, 2500)))
        output = draw(st.sampled_from((1, 2, 15, 16, 40, 150)))
        spread = draw(st.integers(0, 9))
        for i in range(draw(st.integers(1, most // 6))):
            rows.append((round(at + i * gap, 9), prompt + spread * (i % 3), max(1, output - spread * (i % 2)), online))
    return tuple(sorted(rows))


@st.composite
def patience(draw: st.DrawFn, count: int) -> tuple[float, ...]:
    """How long each request stays at the most; in every second episode all stay."""
    longest = st.sampled_from((float("inf"), float("inf"), 1e-12, 0.013, 0.11, 0.5, 2.0, 8.0))
    return tuple(draw(longest) for _ in range(count)) if draw(st.booleans()) else ()


@st.composite
def beside(draw: st.DrawFn, policy: str, values: tuple[tuple[str, Any], ...], max_batch: int) -> str:
    """The policy of mixed instances beside a policy's pools, as users write it."""
    mixed = draw(st.sampled_from(BLIND if get_policy(policy).class_blind else BESIDE))
    seats = f",mixed.max_num_seqs={draw(st.integers(1, max_batch))}"
    return f"mixed={mixed},mixed.prefix_caching={dict(values).get('prefix_caching', 'off')}{seats}"


@st.composite
def setups(draw: st.DrawFn, policies: tuple[str, ...] = BASELINES, noisy: bool = True, random_rules: bool = True,
           **fixed: Any) -> Setup:
    """A random episode. `noisy` allows jitter and noisy beliefs; `random_rules` replaces rules of some points."""
    policy = draw(st.sampled_from(policies))
    values = tuple((name, draw(values)) for name, values in sorted(VALUES.get(policy, {}).items()))
    pool = st.lists(st.sampled_from(CHIPS), min_size=1, max_size=3).map(tuple)
    rules: dict[str, Any] = {
        "max_batch": draw(st.sampled_from((4, 12, 64))), "tpot_s": draw(st.sampled_from((0.03, 0.05, 0.1))),
        "ttft_s": draw(st.sampled_from((0.2, 2.0))), "tpot_min_tokens": draw(st.sampled_from((2, 16))),
        "tpot_from": draw(st.sampled_from(("first_decode", "first_token"))),
        "kv_link_bytes_per_s": draw(st.sampled_from((25e9, 3e8)))}
    if noisy and draw(st.integers(0, 3)) == 0:
        rules |= {"jitter": draw(st.sampled_from((0.0, 0.1))), "belief_noise": draw(st.sampled_from((0.0, 0.1))),
                  "belief_factor": draw(st.sampled_from((1.0, 1.3)))}
    if draw(st.booleans()):
        rules |= {"decode_first_token": True, "handover_s": draw(st.sampled_from((0.0, 0.013, 0.11)))}
    relaxed, strict = draw(pool), draw(pool)
    mixed = draw(pool) if draw(st.integers(0, 2)) == 0 else ()
    if mixed:
        policy = f"{policy}:{draw(beside(policy, values, rules['max_batch']))}"
    elif draw(st.integers(0, 4)) == 0:
        count = len(relaxed + strict)
        rules |= {"groups": (Group(0, count, len(relaxed), 1, count - 1),),
                  "scale_interval_s": draw(st.sampled_from((0.3, 1.0, 4.0)))}
    elif draw(st.integers(0, 2)) == 0:
        times = sorted(draw(st.sets(st.sampled_from((0.0, 0.3, 1.1, 2.5, 6.0)), min_size=1)))
        rules["role_changes"] = tuple((at_s, draw(st.integers(1, len(relaxed + strict) - 1))) for at_s in times)
    points = draw(st.sets(st.sampled_from(POINT_NAMES))) if random_rules and draw(st.booleans()) else set()
    points |= {"scale"} if random_rules and "groups" in rules else set()
    setup = Setup(requests=draw(traces()), relaxed=relaxed, strict=strict, mixed=mixed,
                  kv_tokens=draw(st.sampled_from((None, 800, 2800, 6000))), policy=policy, values=values,
                  random_points=tuple(sorted(points)), seed=draw(st.integers(0, 2**40)),
                  window_s=draw(st.sampled_from(((0.0, 20.0), (0.2, 3.0)))), rules=rules)
    return setup.with_(**fixed)
