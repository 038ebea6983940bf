"""The rules in plain Python against the compiled ones: the same tokens, admissions and preemptions on random states."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from episodes import traces
from harness import Episode, Setup
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from numba import types

import baselines.admitter
import baselines.hygen
from ooco_gym.compile import jit
from ooco_gym.errors import UserError
from ooco_gym.perf import cost_table, mixed_latency_ps
from ooco_gym.runtime.rules import RULES, Engine, Iteration, Learned, Line, Request, admitter, make_rule
from ooco_gym.runtime.rules.admitter import Admitter
from ooco_gym.runtime.rules.deadline import DEFAULTS, Deadline
from ooco_gym.runtime.rules.others import V1
from ooco_gym.sim import state as s
from ooco_gym.sim.step_actions import get_computed_blocks
from ooco_gym.workload import Trace

ALONE = """
import sys
for name in ("numba", "llvmlite", "torch", "gymnasium", "scipy", "pyarrow", "vllm"):
    sys.modules[name] = None
import ooco_gym.runtime.rules, ooco_gym.runtime.vllm.deciding, ooco_gym.runtime.vllm.settings
print(any(name.startswith(("ooco_gym.sim", "ooco_gym.envs", "ooco_gym.policy")) for name in sys.modules))
"""
MIXED: dict[str, Any] = {"relaxed": (), "strict": (), "mixed": (("ascend_910c", 1),), "window_s": (0.0, 20.0)}
IN_PS = ("least_iteration_s", "longest_iteration_s", "give_up_gain_s", "violation_window_s")
VALUES = st.fixed_dictionaries({
    "tpot_share": st.sampled_from((0.5, 0.9)), "ttft_share": st.sampled_from((0.0, 0.3, 0.8, 2.0)),
    "max_num_batched_tokens": st.sampled_from((64, 512, 4096)), "max_num_seqs": st.sampled_from((3, 16, 63)),
    "decode_share": st.sampled_from((0.3, 0.8, 100.0)), "offline_share": st.sampled_from((0.2, 0.5, 1.0)),
    "online_chunk": st.sampled_from((1, 500, 4096)), "offline_chunk": st.sampled_from((1, 300, 2048)),
    "chunk_efficiency": st.sampled_from((0.0, 0.5, 0.9)),
    "least_iteration_s": st.sampled_from((0.0, 0.03)), "longest_iteration_s": st.sampled_from((0.05, 1.0)),
    "headroom_share": st.sampled_from((0.0, 0.05, 0.5)), "give_up_share": st.sampled_from((0.0, 0.2)),
    "give_up_gain_s": st.sampled_from((0.0, 0.1)), "violation_window_s": st.sampled_from((10.0, 600.0))})


class TableBelief:
    """The simulator's own cost table; times in ps. Sums are new tokens, and each request's (new, reach, whole)."""

    none = (0, ())

    def __init__(self, table: Any) -> None:
        self.table = table

    def add(self, sums: Any, new: int, reach: int, whole: bool) -> Any:
        return sums[0] + new, (*sums[1], (new, reach, whole))

    def latency(self, sums: Any) -> float:
        prompts = [row for row in sums[1] if row[0] > 1] or [(0, 0, False)]
        decodes = [reach for new, reach, _ in sums[1] if new == 1]
        sampled = sum(whole for _, _, whole in sums[1])
        return int(mixed_latency_ps(self.table, [[new for new, _, _ in prompts]],
                                    [[reach - new for new, reach, _ in prompts]], [len(decodes)], [sum(decodes)],
                                    [sampled - len(decodes)], [max(decodes, default=0)])[0])

    def prefill(self, tokens: int) -> float:
        return self.latency(self.add(self.none, tokens, tokens, True)) if tokens > 1 else self.latency(
            (1, ((1, 1, True),)))


def described(state: s.State, slot: int) -> Request:
    """A request of the simulator's, in ps."""
    row = state.requests[slot]
    made = int(row["generated_tokens"])
    return Request(slot, bool(row["urgent"]), slot, int(row["arrival_ps"]), int(row["ttft_slo_ps"]),
                   int(row["tpot_slo_ps"]), int(row["prompt_tokens"]) + made, made, int(row["num_computed_tokens"]),
                   int(row["blocks"]), int(row["first_token_ps"]) if made else None)


def engine_of(state: s.State, values: dict[str, Any]) -> Engine:
    """The only instance, about to compose an iteration."""
    spec, queues = state.instances[0], []
    for head in ("online_head", "offline_head"):
        slot, line = int(spec[head]), []
        while slot >= 0:
            line.append(described(state, slot))
            slot = int(state.requests[slot]["next"])
        queues.append(Line(line))
    running = [described(state, int(slot)) for slot in state.members[s.BATCH, 0, : spec["running"]]]
    free = int(spec["free_blocks"] - state.config.reserved_blocks)
    return Engine(int(state.clock.now_ps), running, *queues, free, int(spec["total_blocks"]),
                  int(state.config.block_tokens), values["max_num_seqs"], values["max_num_batched_tokens"],
                  int(state.config.default_tpot_ps))


class Roof:
    """Decodes that wait for memory, 8 ms, behind which 20 us a prompt token hide, and what a prompt costs by itself."""

    none = (0, 0)

    def __init__(self, prompt_s: float) -> None:
        self.prompt_s = prompt_s

    def add(self, sums: Any, new: int, reach: int, whole: bool) -> Any:
        return sums[0] + new, sums[1] + (new > 1)

    def latency(self, sums: Any) -> float:
        return max(8e-3, 20e-6 * sums[0]) + self.prompt_s * sums[1]

    def prefill(self, tokens: int) -> float:
        return self.latency((tokens, 1))


@pytest.mark.parametrize(("efficiency", "prompt_s", "begun"), [
    (0.0, 0.0, False), (1.0, 0.0, True), (1.0, 0.02, False), (0.3, 0.02, True)])
def test_a_small_chunk_is_begun_where_its_tokens_cost_next_to_nothing(efficiency: float, prompt_s: float,
                                                                      begun: bool) -> None:
    running = [Request("online", True, 0, 0.0, 2.0, 0.04, 100, 1, 99, 7, first_token_s=1.0)]
    waiting = Request("offline", False, 1, 0.0, 1e9, 1e9, 3000)
    engine = Engine(1.0, running, Line(), Line([waiting]), 500, 507, 16, 256, 4096, 0.04)
    plan = Deadline({"chunk_efficiency": efficiency, "offline_share": 1.0}).compose(engine, Roof(prompt_s))
    assert (plan.tokens.get("offline", 0) > 0) is begun and plan.tokens["online"] == 1


@settings(max_examples=8, deadline=None, phases=(Phase.explicit, Phase.reuse, Phase.generate))
@given(traces(most=12), VALUES, st.sampled_from((None, 3200, 6000)))
def test_deadline_decides_as_the_compiled_rule(rows: Any, values: dict[str, Any], kv_tokens: int | None) -> None:
    fixed = {"preempted": "recompute", "waiting_order": "arrival", "prefix_caching": "off", "route": "requests"}
    setup = Setup(rows, policy="deadline", values=tuple({**values, **fixed}.items()), kv_tokens=kv_tokens, **MIXED)
    episode = Episode(setup, outside=("compose",))
    state, belief = episode.state, TableBelief(cost_table(episode.machines[0].deployment, 64))
    rule = Deadline({**values, **{name: values[name] * s.PS_PER_S for name in IN_PS}})
    answer, asked = s.ASK, 0
    while episode.advance(None, answer) == s.ASKED:
        evictions = state.requests["evictions"].copy()
        before = set(state.members[s.BATCH, 0, : state.instances["running"][0]].tolist())
        plan = rule.compose(engine_of(state, values), belief)
        answer, asked = episode.rule_answer(), asked + 1
        after = state.members[s.BATCH, 0, : state.instances["running"][0]].tolist()
        lost = np.flatnonzero(state.requests["evictions"] > evictions).tolist()
        assert plan.tokens == {slot: int(state.requests["num_scheduled_tokens"][slot]) for slot in after
                               if state.requests["num_scheduled_tokens"][slot]}
        assert sorted(plan.preempted) == lost
        assert plan.admitted == [slot for slot in after if slot not in before or slot in lost]
    assert asked > 0


def test_defaults_are_those_of_the_compiled_rule() -> None:
    path = Path(__file__).resolve().parents[2] / "conf/policy/deadline.yaml"
    conf = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert {name: conf[name] for name in DEFAULTS} == DEFAULTS


@pytest.mark.parametrize("name", sorted(RULES))
def test_bounds_are_those_of_the_compiled_rule(name: str) -> None:
    defaults, bounds = RULES[name].DEFAULTS, RULES[name].BOUNDS
    params = {one.name: one for one in (*baselines.admitter.ALL, *baselines.hygen.PARAMS)}
    numbers = [one for one, value in defaults.items() if not isinstance(value, str)]
    assert set(numbers) <= set(bounds)
    for one in numbers:
        low, high = bounds[one]
        assert low <= defaults[one] <= high
        assert one == "latency_budget_s" or (low, high) == (params[one].low, params[one].high), one
        for value in (low - 1.0, high + 1.0, float("nan")):
            with pytest.raises(UserError, match=f"parameter '{one}' of '{name}' is .*; expected a number from"):
                make_rule(name, {one: value})


def test_they_need_neither_numba_nor_the_simulator_nor_vllm() -> None:
    done = subprocess.run([sys.executable, "-c", ALONE], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False"]


# --- What any rule keeps to -------------------------------------------------------------------------------------------
REQUESTS = st.lists(st.tuples(st.booleans(), st.floats(0.0, 9.0), st.integers(1, 900), st.integers(0, 60),
                              st.integers(0, 2)), max_size=14)


def random_engine(rows: Any, free: int, seats: int) -> Engine:
    """Requests that run (2: decode, 1: under way) or wait (0); memory as they hold it, and `free` more."""
    running, waiting = [], {True: [], False: []}
    for name, (online, arrival, prompt, made, status) in enumerate(rows):
        one = Request(name, online, (arrival, name), arrival, 2.0, 0.05, prompt + made, made)
        if status and len(running) < seats:
            one.num_computed_tokens = prompt + made - 1 if status == 2 and made else (prompt + made) // 2
            one.blocks = max(1, -(-one.num_computed_tokens // 16))
            one.first_token_s = arrival + 0.5 if made else None
            running.append(one)
        else:
            waiting[online].append(one)
    lines = [Line(sorted(waiting[online], key=lambda one: one.order)) for online in (True, False)]
    return Engine(10.0, running, *lines, free, 4000, 16, seats, 512, 0.05)


@pytest.mark.parametrize("name", RULES)
@settings(max_examples=30, deadline=None)
@given(rows=REQUESTS, free=st.integers(0, 60), seats=st.integers(1, 14))
def test_every_plan_can_be_followed(name: str, rows: Any, free: int, seats: int) -> None:
    from ooco_gym.runtime.vllm.deciding import check

    engine = random_engine(rows, free, seats)
    running = {request.id: request for request in engine.running}
    held = {request.id: request.blocks for request in engine.running}
    tokens = {request.id: (request.num_tokens, request.num_computed_tokens) for request in engine.running}
    waiting = {request.id: request for line in (engine.online, engine.offline) for request in line.first(99)}
    plan = make_rule(name).compose(engine, Learned())
    if plan.tokens or plan.preempted:
        check(plan, engine, running, waiting.__contains__)
    for one, given_tokens in plan.tokens.items():
        length, computed = tokens.get(one, (0, 0)) if one not in plan.admitted else (waiting[one].num_tokens
                                                                                    if one in waiting else 10**6, 0)
        assert given_tokens <= length - computed
    used = sum(max(0, -(-(tokens[one][1] + given_tokens) // 16) - held[one])
               for one, given_tokens in plan.tokens.items() if one not in plan.admitted)
    used += sum(-(-plan.tokens[one] // 16) for one in plan.admitted)
    assert used <= free + sum(held[one] for one in plan.preempted)


def test_who_gives_way() -> None:
    """Three requests, each at the end of its block, none free: the last to arrive, or the one with the least."""
    rows = ((True, 0.0, 15, 2), (False, 2.0, 47, 2), (False, 1.0, 31, 2))
    for victim, expected in (("last", [1]), ("least_computed", [2])):
        running = [Request(i, online, i, at, 2.0, 0.05, prompt + made, made, prompt + made - 1, (prompt + 1) // 16)
                   for i, (online, at, prompt, made) in enumerate(rows)]
        engine = Engine(10.0, running, Line(), Line(), 0, 100, 16, 8, 512, 0.05)
        assert V1({"victim": victim}).compose(engine, Learned()).preempted == expected


def test_a_line_keeps_its_order() -> None:
    made = {i: Request(i, True, i, float(i), 1.0, 1.0, 5) for i in range(8)}
    line = Line(made[i] for i in (1, 4, 6, 7))
    assert [one.id for one in line.first(2)] == [1, 4]
    for i in (5, 0, 2):
        line.insert(made[i])
    got = []
    while line.peek() is not None:
        got.append(line.pop().id)
    assert got == [0, 1, 2, 4, 5, 6, 7]


# --- Beliefs ------------------------------------------------------------------------------------------------------
def test_a_belief_is_learned() -> None:
    """Iterations of 5 ms + 20 us a token + 1 us a token of decoding context, with a tenth of noise."""
    belief, draws = Learned(), np.random.default_rng(1)

    def truth(sums: Any) -> float:
        return 5e-3 + 2e-5 * sums[0] + 1e-6 * sums[3]

    seen = []
    for _ in range(3000):
        sums = belief.none
        for _ in range(draws.integers(1, 20)):
            sums = belief.add(sums, 1, int(draws.integers(1, 900)), True)
        if draws.random() < 0.5:
            sums = belief.add(sums, int(draws.integers(2, 500)), 500, True)
        belief.observe(sums, truth(sums) * draws.uniform(0.9, 1.1))
        seen.append(sums)
    errors = [abs(belief.latency(sums) / truth(sums) - 1.0) for sums in seen[-200:]]
    assert max(errors) < 0.05
    assert all(weight >= 0.0 for weight in belief._weights)


def test_wrong_names_are_told() -> None:
    with pytest.raises(UserError, match=r"rule 'dedline'.*deadline"):
        make_rule("dedline")
    with pytest.raises(UserError, match="tpot_share"):
        make_rule("deadline", {"tpot_shar": 1.0})
    with pytest.raises(UserError, match="expected a value such as"):
        make_rule("deadline", {"tpot_share": "much"})


def test_an_iteration_counts_its_blocks() -> None:
    one = Request("a", True, 0, 0.0, 1.0, 1.0, 40)
    it = Iteration(Engine(0.0, [], Line([one]), Line(), 2, 10, 16, 1, 99, 1.0), Learned())
    assert not it.fits_whole(one) and it.need(one) == 3
    assert it.admit(one, 32) == 32 and it.free == 0
    assert not it.allocate_slots(one, 1)
    assert it.preempt(0) is one and it.free == 2 and it.plan().tokens == {} and not it.preempted


@jit(types.UniTuple(types.int64, 3)(types.int64, types.int64, types.int64))
def _cached(handle, instance, slot):
    return get_computed_blocks(s.state_at(handle), instance, slot)


def questions(random: np.random.Generator, count: int, share: float) -> Trace:
    """Questions, of which a share is on five documents of 1,024 tokens, of unequal lengths, and chats."""
    online = random.random(count) < 0.2
    document = random.integers(5, size=count)
    alone = online | (random.random(count) >= share)
    prompts = np.where(alone, 40 + 3 * random.permutation(count), 1030 + 7 * random.permutation(count))
    offsets = np.concatenate([[0], np.cumsum(np.where(alone, 0, 2))])
    values = (document[~alone][:, None] * 2 + np.arange(2) + 1).ravel()
    return Trace(arrival_s=np.sort(random.random(count)) * 8.0, prompt_tokens=prompts.astype(np.int32),
                 output_tokens=random.integers(1, 60, size=count).astype(np.int32), online=online,
                 prefix_hashes=(offsets.astype(np.int64), values.astype(np.int64)))


@pytest.mark.parametrize("rule", ["arrival", "shortest", "least_work", "shared_work"])
@pytest.mark.parametrize(("refresh_s", "share"), [(0.5, 0.0), (0.0, 0.8)])
def test_admitter_decides_as_the_compiled_rule(rule: str, refresh_s: float, share: float) -> None:
    """Memory binds: 5,600 tokens, of which a document takes a fifth; what is preempted is looked up by itself.

    Blocks in the cache count as they were before the iteration: of several requests with one document the rule in plain
    Python may admit fewer.
    """
    values = {**DEFAULTS, "max_num_seqs": 9, "max_num_batched_tokens": 700, "offline_chunk": 100}
    trace = questions(np.random.default_rng(3), 70, share)
    offsets, hashes = trace.prefix_hashes or (np.zeros(0, int), np.zeros(0, int))
    given = {**values, "rule": rule, "refresh_s": refresh_s, "prefix_caching": "on", "waiting_order": "prefix",
             "preempted": "recompute"}
    setup = Setup((), policy="admitter", values=tuple(given.items()), kv_tokens=5600, **MIXED)
    episode = Episode(setup, outside=("compose",), trace=trace)
    state, belief = episode.state, TableBelief(cost_table(episode.machines[0].deployment, 64))
    ours = Admitter({**values, **{name: values[name] * s.PS_PER_S for name in IN_PS}, "rule": rule,
                     "refresh_s": refresh_s * s.PS_PER_S})

    def with_prefix(request: Request) -> Request:
        handle = s.handle_of(state)
        request.look_up = lambda: _cached(handle.address, 0, request.id)
        request.pieces = tuple(hashes[offsets[request.id] : offsets[request.id + 1]].tolist())
        return request

    answer, entered = s.ASK, 0
    while episode.advance(None, answer) == s.ASKED:
        evictions = state.requests["evictions"].copy()
        before = set(state.members[s.BATCH, 0, : state.instances["running"][0]].tolist())
        engine = engine_of(state, values)
        engine.online, engine.offline = (Line([with_prefix(one) for one in line])
                                         for line in (engine.online, engine.offline))
        plan = ours.compose(engine, belief)
        answer = episode.rule_answer()
        after = state.members[s.BATCH, 0, : state.instances["running"][0]].tolist()
        lost = np.flatnonzero(state.requests["evictions"] > evictions).tolist()
        theirs = [slot for slot in after if slot not in before or slot in lost]
        assert plan.admitted == theirs[: len(plan.admitted)] and bool(plan.admitted) == bool(theirs)
        assert share > 0.0 or len(plan.admitted) == len(theirs)
        entered += sum(not state.requests["online"][slot] for slot in plan.admitted)
    assert entered > 35


def test_pieces_are_named_by_the_hashes_of_their_last_blocks() -> None:
    hashes = [f"block {i}" for i in range(100)]
    assert admitter.pieces_of(hashes, 1100, 16) == ("block 31", "block 63")
    assert admitter.pieces_of(hashes[:5], 80, 16) == ()
    assert admitter.pieces_of(hashes, 1100, 512) == ("block 0", "block 1")
    assert admitter.pieces_of(hashes, 1100, 48) == () and admitter.pieces_of(hashes, 4000, 1024) == ()


def test_prefixes_of_unequal_depth_count_as_they_are_shared() -> None:
    """All begin with one piece; two questions share a document of four more, which is cached for them."""
    def waits(name: str, tokens: int, pieces: tuple[int, ...], cached: int) -> Request:
        return Request(name, False, name, 0.0, 0.0, 0.0, tokens, look_up=lambda: (cached, 0, 0), pieces=pieces)

    rows = [waits("a", 600, (1,), 512), waits("b", 2600, (1, 2, 3, 4, 5), 2560),
            waits("c", 2610, (1, 2, 3, 4, 5), 2560), waits("d", 2620, (1, 7, 8, 9, 10), 512), waits("e", 30, (), 0)]
    found = admitter.Found(rows)
    assert [row.cached for row in found.rows] == [512, 2560, 2560, 512, 0]
    assert [found.members(row) for row in found.rows] == [4, 4, 4, 4, 1] and found.shared(found.rows[3]) == 0
    assert found.place(found.rows[4]) > found.place(found.rows[0])


def test_what_stands_in_line_is_found_while_some_enter() -> None:
    rows = [Request(i, False, i, 0.0, 0.0, 0.0, 100 - i) for i in range(5)]
    line = admitter.Ranked(Line(rows), [], lambda left: [one.id for one in reversed(left)])
    assert line.pop() is rows[4] and line.find(4) is None and line.find(3) is rows[3]
    line.insert(rows[4])
    assert line.find(4) is rows[4] and [one.id for one in line] == [0, 1, 2, 3, 4] and len(line.first(2)) == 2


def test_defaults_of_the_admitter_are_those_of_the_compiled_rule() -> None:
    path = Path(__file__).resolve().parents[2] / "conf/policy/admitter.yaml"
    conf = yaml.safe_load(path.read_text(encoding="utf-8"))
    own = {name: value for name, value in Admitter.DEFAULTS.items() if name not in DEFAULTS}
    assert {name: conf[name] for name in own} == own


def test_an_unknown_order_is_refused_in_a_sentence() -> None:
    with pytest.raises(UserError, match=r"'rule' of 'admitter' is 'shortst'; expected one of .*shortest"):
        make_rule("admitter", {"rule": "shortst"})
