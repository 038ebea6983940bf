"""`deadline` in plain Python: an iteration lasts as long as its online requests are ahead of their deadlines.

`baselines/deadline.py` says what it does, step by step, and why; docs/learned.md what it is worth. A test holds each
decision of the two against the other's.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from typing import Any

from ooco_gym.rounding import steady
from ooco_gym.runtime.rules.iteration import NEVER, Belief, Engine, Iteration, Limits, Plan, Request, Rule

DUE_PROMPTS = 16  # online prompts that are looked at
LEAST_CHUNK, LONG_CHUNK = 32, 2048  # tokens: chunks that are tried for `chunk_efficiency`, and the one they are held to
MOST_GIVEN = 8  # requests given up that are remembered
DEFAULTS: dict[str, float] = {
    "tpot_share": 0.9, "ttft_share": 0.8, "max_num_batched_tokens": 4096, "max_num_seqs": 256, "decode_share": 0.8,
    "offline_share": 0.5, "online_chunk": 4096, "offline_chunk": 2048, "chunk_efficiency": 0.0,
    "least_iteration_s": 0.0, "longest_iteration_s": 1.0, "headroom_share": 0.05, "give_up_share": 0.0,
    "give_up_gain_s": 0.1, "violation_window_s": 600.0,
}
"""Parameters and their values, as conf/policy/deadline.yaml has them; a test compares."""
BOUNDS: dict[str, tuple[float, float]] = {
    "tpot_share": (0.1, 2.0), "ttft_share": (0.0, 2.0), "max_num_batched_tokens": (1, 1_000_000),
    "max_num_seqs": (1, 65_536), "decode_share": (0.0, 100.0), "offline_share": (0.0, 1.0),
    "online_chunk": (1, 1_000_000), "offline_chunk": (1, 1_000_000), "chunk_efficiency": (0.0, 1.0),
    "least_iteration_s": (0.0, 10.0), "longest_iteration_s": (0.001, 60.0), "headroom_share": (0.0, 1.0),
    "give_up_share": (0.0, 1.0), "give_up_gain_s": (0.0, 60.0), "violation_window_s": (1.0, 1e6),
}
"""Least and largest value of each, as baselines/deadline.py has them; a test compares."""


class Deadline(Rule):
    """The rule with its parameters and what it remembers between iterations.

    What an engine cannot do (swapping, the order by prefix, routing) is no parameter here.
    """

    DEFAULTS, BOUNDS = DEFAULTS, BOUNDS

    def __init__(self, values: Mapping[str, Any] | None = None) -> None:
        super().__init__(values)
        self.credit, self.seen_s = 0.0, 0.0
        self.given: deque[Any] = deque(maxlen=MOST_GIVEN)

    def compose(self, engine: Engine, belief: Belief) -> Plan:
        """The next iteration."""
        p = self.values
        due = self._prefill_due(engine, belief)
        allowed, bound = self._budget(engine)
        decode_s = min(allowed, p["decode_share"] * p["tpot_share"] * engine.tpot_slo_s) if bound else allowed
        tokens = min(int(p["max_num_batched_tokens"]), engine.max_num_batched_tokens)
        online, offline = self._chunks(engine, belief)
        return Iteration(engine, belief).fill(Limits(
            NEVER if due else allowed, decode_s, p["offline_share"] * allowed, tokens, 1 if due else online, offline,
            int(p["headroom_share"] * engine.total_blocks), allowed))

    # --- Chunks ---
    def _chunks(self, engine: Engine, belief: Belief) -> tuple[int, int]:
        """Fewest tokens of an online and of an offline prefill: as given, or fewer where that costs next to nothing."""
        online, offline = int(self.values["online_chunk"]), int(self.values["offline_chunk"])
        if self.values["chunk_efficiency"] > 0.0:
            worthwhile = self._worthwhile_chunk(engine, belief)
            return min(online, worthwhile), min(offline, worthwhile)
        return online, offline

    def _worthwhile_chunk(self, engine: Engine, belief: Belief) -> int:
        """Fewest tokens of which each costs at most 1 / `chunk_efficiency` of one in a long chunk."""
        sums = belief.none
        for request in engine.running:
            if request.decodes:
                sums = belief.add(sums, 1, request.num_tokens, True)
        alone = belief.latency(sums)

        def more(tokens: int) -> float:
            return belief.latency(belief.add(sums, tokens, tokens, True)) - alone

        long, tokens = more(2 * LONG_CHUNK) - more(LONG_CHUNK), LEAST_CHUNK
        while tokens < LONG_CHUNK and self.values["chunk_efficiency"] * more(tokens) * LONG_CHUNK > long * tokens:
            tokens *= 2
        return tokens

    # --- The budget ---
    def _budget(self, engine: Engine) -> tuple[float, bool]:
        """(Seconds that the next iteration may take, whether an online request bounds it): steps 1 and 5."""
        p = self.values
        counting = p["give_up_share"] > 0.0
        if counting:
            self.credit *= steady(math.exp(-(engine.now_s - self.seen_s) / p["violation_window_s"]))
            self.seen_s = engine.now_s
        least, tightest, second = self._survey(engine, counting)
        if counting and self.credit >= 1.0 and tightest is not None:
            if min(second, p["longest_iteration_s"]) - least >= p["give_up_gain_s"]:
                self.given.append(tightest.id)
                self.credit -= 1.0
                least = second
        return min(max(least, p["least_iteration_s"]), p["longest_iteration_s"]), least < NEVER

    def _survey(self, engine: Engine, counting: bool) -> tuple[float, Request | None, float]:
        """(The least slack of the online requests that decode, its request, the least of the others), in seconds."""
        least, tightest, second, share = NEVER, None, NEVER, self.values["tpot_share"]
        for request in engine.running:
            first = request.first_token_s
            if not request.online or first is None or not request.decodes:
                continue
            late = first - request.arrival_s > request.ttft_slo_s
            if counting and request.num_output_tokens == 1:  # seen once, after its first token
                self.credit += self.values["give_up_share"] - late
            if late or (counting and request.id in self.given):
                continue
            slack = first + share * request.tpot_slo_s * request.num_output_tokens - engine.now_s
            if slack < least:
                least, tightest, second = slack, request, least
            elif slack < second:
                second = slack
        return least, tightest, second

    # --- Online prefill that can wait no longer ---
    def _prefill_due(self, engine: Engine, belief: Belief) -> bool:
        """Whether one of the first online prompts would be late (step 2)."""
        prompts = [request for request in engine.running if request.online and not request.decodes][:DUE_PROMPTS]
        left = [(request, request.missing) for request in prompts]
        left += [(request, request.num_tokens) for request in engine.online.first(DUE_PROMPTS - len(prompts))]
        ends = engine.now_s
        for request, tokens in left:
            ends += belief.prefill(tokens)
            lost = request.num_output_tokens > 0 or ends > request.arrival_s + request.ttft_slo_s
            if not lost and ends >= request.arrival_s + self.values["ttft_share"] * request.ttft_slo_s:
                return True
        return False
