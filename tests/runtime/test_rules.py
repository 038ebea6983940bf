"""Our rules in an engine: what is described of the simulator's states gives the simulator's own decisions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st

from ooco_gym.errors import UserError
from ooco_gym.perf.engine_clock import EngineClock
from ooco_gym.perf.terms import Terms
from ooco_gym.runtime.rules import Engine, Line, Plan, Request
from ooco_gym.sim import state as s
from ooco_gym.vllm import admitter
from ooco_gym.vllm.beliefs import Belief, Learned
from ooco_gym.vllm.replica import Compiled
from ooco_gym.vllm.rules import RULES, make_rule
from ooco_gym.workload import Trace
from tests.runtime.engine_description import TableBelief, cached, engine_of
from tests.sim.episodes import traces
from tests.sim.harness import Episode, Setup

MIXED: dict[str, Any] = {"relaxed": (), "strict": (), "mixed": (("ascend_910c", 1),), "window_s": (0.0, 20.0)}
VALUES = st.fixed_dictionaries({
    "tpot_share": st.sampled_from((0.5, 0.9)), "ttft_share": st.sampled_from((0.0, 0.3, 0.8, 2.0)),
    "max_num_batched_tokens": st.sampled_from((64, 512, 4096)), "max_num_seqs": st.sampled_from((3, 16, 63)),
    "decode_share": st.sampled_from((0.3, 0.8, 100.0)), "offline_share": st.sampled_from((0.2, 0.5, 1.0)),
    "online_chunk": st.sampled_from((1, 500, 4096)), "offline_chunk": st.sampled_from((1, 300, 2048)),
    "chunk_efficiency": st.sampled_from((0.0, 0.5, 0.9)),
    "least_iteration_s": st.sampled_from((0.0, 0.03)), "longest_iteration_s": st.sampled_from((0.05, 1.0)),
    "headroom_share": st.sampled_from((0.0, 0.05, 0.5)), "growth": st.sampled_from((0.0, 0.2, 1.0)),
    "give_up_share": st.sampled_from((0.0, 0.2)),
    "give_up_gain_s": st.sampled_from((0.0, 0.1)), "violation_window_s": st.sampled_from((10.0, 600.0))})


def decisions(rule: Compiled, episode: Episode, look: Any = None) -> Iterator[tuple[Plan, dict, list, list]]:
    """At each decision of an episode, which goes on by its own rule: what ours plans, and the tokens, admissions and
    preemptions of its own."""
    state, belief, answer = episode.state, TableBelief(episode.state), s.ASK
    rule._replica._origin_s = 0.0
    rule._replica._means = dict.fromkeys((True, False), 64.0)  # what the harness assumes of outputs
    while episode.advance(None, answer) == s.ASKED:
        evictions = state.requests["evictions"].copy()
        before = set(state.members[s.BATCH, 0, : state.instances["running"][0]].tolist())
        engine = engine_of(state)
        if look is not None:
            engine.online, engine.offline = (Line([look(one) for one in line])
                                             for line in (engine.online, engine.offline))
        plan = rule.compose(engine, belief)
        answer = episode.rule_answer()
        after = state.members[s.BATCH, 0, : state.instances["running"][0]].tolist()
        lost = np.flatnonzero(state.requests["evictions"] > evictions).tolist()
        tokens = {slot: int(state.requests["num_scheduled_tokens"][slot]) for slot in after
                  if state.requests["num_scheduled_tokens"][slot]}
        yield plan, tokens, [slot for slot in after if slot not in before or slot in lost], lost


SMALL = {"step": 8000.0, "pieces": 0.0, "sequence": 0.0, "prompt": 0.0, "work": 0.0, "context": 0.0,
         "decode_context": 0.0, "decode": {"knots": [0, 1], "values": [0.0, 0.0]}}


@pytest.mark.parametrize(("efficiency", "prompt_us", "begun"), [
    (0.0, 0.0, False), (1.0, 0.0, True), (1.0, 20_000.0, False), (0.3, 20_000.0, True)])
def test_a_small_chunk_is_begun_where_its_tokens_cost_next_to_nothing(efficiency: float, prompt_us: float,
                                                                      begun: bool) -> None:
    """Decodes wait 8 ms for memory, behind which 20 us a prompt token hide; a prompt may cost something by itself."""
    running = [Request("online", True, 0, 0.0, 2.0, 0.04, 100, 1, 99, 7, first_token_s=1.0)]
    waiting = Request("offline", False, 1, 0.0, 1e9, 1e9, 3000)
    engine = Engine(1.0, running, Line(), Line([waiting]), 500, 507, 16, 256, 4096, 0.04)
    rule = make_rule("deadline", {"chunk_efficiency": efficiency, "offline_share": 1.0})
    belief = Belief(Terms.of_us({**SMALL, "prompt": prompt_us, "dense": {"knots": [0, 400, 8192],
                                                                       "values": [0.0, 0.0, 20.0 * (8192 - 400)]}}))
    plan = rule.compose(engine, belief)
    assert (plan.tokens.get("offline", 0) > 0) is begun and plan.tokens["online"] == 1


@settings(max_examples=8, deadline=None, phases=(Phase.explicit, Phase.reuse, Phase.generate))
@example(((0.0, 200, 50, True), *((0.0, 2000, 40, False),) * 4), {"max_num_seqs": 63}, None, True)
@given(traces(most=12), VALUES, st.sampled_from((None, 3200, 6000)), st.booleans())
def test_deadline_decides_as_the_compiled_rule(rows: Any, values: dict[str, Any], kv_tokens: int | None,
                                               asynchronous: bool) -> None:
    """Also with asynchronous scheduling, where first tokens are counted that have not come yet."""
    fixed = {"preempted": "recompute", "waiting_order": "arrival", "prefix_caching": "off"}
    setup = Setup(rows, policy="deadline", values=tuple({**values, **fixed}.items()), kv_tokens=kv_tokens,
                  rules={"engine_clock": EngineClock(async_scheduling=asynchronous)}, **MIXED)
    asked = 0
    for plan, tokens, admitted, lost in decisions(make_rule("deadline", values), Episode(setup, outside=("compose",))):
        assert plan.tokens == tokens and plan.admitted == admitted and sorted(plan.preempted) == lost
        asked += 1
    assert asked > 0


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
    from ooco_gym.vllm.deciding import check  # which has Prometheus's counters

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


@pytest.mark.parametrize(("rule", "expected"), [("v1", [1]), ("least_computed", [2])])
def test_who_gives_way(rule: str, expected: list[int]) -> None:
    """Three requests, each at the end of its block, none free: the last to arrive, or the one with the least."""
    rows = ((True, 0.0, 15, 2), (False, 2.0, 47, 2), (False, 1.0, 31, 2))
    running = [Request(i, online, i, at, 2.0, 0.05, prompt + made, made, prompt + made - 1, (prompt + 1) // 16)
               for i, (online, at, prompt, made) in enumerate(rows)]
    engine = Engine(10.0, running, Line(), Line(), 0, 100, 16, 8, 512, 0.05)
    assert make_rule(rule).compose(engine, Learned()).preempted == expected


def test_waiting_requests_are_looked_up_one_after_the_other() -> None:
    """Two of nine fit into the budget of 64 tokens: what is in the cache of them counts, and three are looked up."""
    asked = []

    def waits(name: int) -> Request:
        return Request(name, False, name, 0.0, 1e9, 1e9, 100, look_up=lambda: asked.append(name) or (64, 4, 4))

    engine = Engine(10.0, [], Line(), Line(map(waits, range(9))), 50, 100, 16, 8, 64, 0.05)
    plan = make_rule("v1").compose(engine, Learned())
    assert plan.tokens == {0: 36, 1: 28} and plan.admitted == [0, 1] and set(asked) == {0, 1, 2, 3}


@pytest.mark.parametrize("name", RULES)
def test_a_prompt_under_way_goes_on(name: str) -> None:
    """It has made no token yet."""
    prompt = Request(0, True, (0, 0.0), 0.0, 2.0, 0.05, 300, 0, 100, 7)
    plan = make_rule(name).compose(Engine(0.1, [prompt], Line(), Line(), 50, 100, 16, 8, 64, 0.05), Learned())
    assert plan.tokens == {0: 64}


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
    assert all(np.min(term[1] if isinstance(term, tuple) else term) >= 0.0 for term in belief.terms)


def test_wrong_names_are_told() -> None:
    with pytest.raises(UserError, match=r"rule 'dedline'.*deadline"):
        make_rule("dedline")
    with pytest.raises(UserError, match="tpot_share"):
        make_rule("deadline", {"tpot_shar": 1.0})
    with pytest.raises(UserError, match="must be a number"):
        make_rule("deadline", {"tpot_share": "much"})


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
    values = {**make_rule("deadline").values, "max_num_seqs": 9, "max_num_batched_tokens": 700, "offline_chunk": 100}
    trace = questions(np.random.default_rng(3), 70, share)
    offsets, hashes = trace.prefix_hashes or (np.zeros(0, int), np.zeros(0, int))
    given = {**values, "rule": rule, "refresh_s": refresh_s, "prefix_caching": "on", "waiting_order": "prefix",
             "preempted": "recompute"}
    setup = Setup((), policy="admitter", values=tuple(given.items()), kv_tokens=5600, **MIXED)
    episode = Episode(setup, outside=("compose",), trace=trace)

    def with_prefix(request: Request) -> Request:
        request.look_up = lambda: cached(episode.state, 0, request.id)
        request.pieces = tuple(hashes[offsets[request.id] : offsets[request.id + 1]].tolist())
        return request

    entered = 0
    ours = make_rule("admitter", {**values, "rule": rule, "refresh_s": refresh_s})
    for plan, _, theirs, _ in decisions(ours, episode, with_prefix):
        assert plan.admitted == theirs[: len(plan.admitted)] and bool(plan.admitted) == bool(theirs)
        assert share > 0.0 or len(plan.admitted) == len(theirs)
        entered += sum(not episode.state.requests["online"][slot] for slot in plan.admitted)
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
    found = admitter.WaitingPrefixes(rows)
    assert [row.cached for row in found.rows] == [512, 2560, 2560, 512, 0]
    assert [found.members(row) for row in found.rows] == [4, 4, 4, 4, 1] and found.shared(found.rows[3]) == 0
    assert found.place(found.rows[4]) > found.place(found.rows[0])


def test_what_is_kept_comes_first_until_it_is_gone() -> None:
    rows, kept = [Request(i, False, i, 0.0, 0.0, 0.0, 100 - i) for i in range(5)], [7, 2]
    line = admitter.Ranked(Line(rows), kept, lambda left, count: [one.id for one in reversed(left)][:count])
    assert [one.id for one in line.first(1)] == [2] and [one.id for one in line.first(9)] == [2, 4, 3, 1, 0]
    assert kept == [2, 4, 3, 1, 0] and line.find(4) is rows[4] and list(line) == rows
