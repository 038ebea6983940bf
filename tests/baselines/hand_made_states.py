"""Instances with chosen residents, at which a rule can be asked by itself."""

from __future__ import annotations

from typing import Any

import numpy as np

from ooco_gym.perf import cost_table, decode_latency_ps
from ooco_gym.policy.decisions import call_rule
from ooco_gym.sim import state as s
from tests.sim.harness import Episode, Setup, machines_of

RELAXED, STRICT = 0, 1


class Desk:
    """One relaxed and one strict instance of a 910C chip; requests are put where a test wants them."""

    def __init__(self, policy: str, lengths: dict[str, list[int]], *, bs_sat: int | None = None,
                 free_tokens: int | None = None, tpot_s: float = 0.05, **values: Any) -> None:
        """`lengths`: context lengths of `online`, `offline` (on the strict instance), `relaxed`, `waiting`."""
        rows = [(0.0, length, 100, kind == "online") for kind in lengths for length in lengths[kind]]
        self.episode = Episode(Setup(tuple(rows), policy=policy, values=tuple(values.items()),
                                     rules={"tpot_s": tpot_s, "max_batch": 512}))
        self.state, self.policy = self.episode.state, self.episode.policy
        self.slots: dict[str, list[int]] = {}
        slot = 0
        for kind, sizes in lengths.items():
            self.slots[kind] = list(range(slot, slot + len(sizes)))
            slot += len(sizes)
            for one in self.slots[kind]:
                self._put(kind, one)
        if bs_sat is not None:
            self.state.tables["bs_sat"] = bs_sat
        if free_tokens is not None:
            self.state.instances["free_blocks"][STRICT] = free_tokens // 16
        strict = self.state.instances[STRICT]
        strict["running"], strict["all_included"] = strict["decodable"], 1

    def _put(self, kind: str, slot: int) -> None:
        state, request = self.state, self.state.requests[slot]
        instance = RELAXED if kind in ("relaxed", "waiting") else STRICT
        request["instance"] = instance
        spec = state.instances[instance]
        if kind == "waiting":
            request["status"] = s.WAITING
            request["previous"] = spec["offline_tail"]
            if spec["offline_tail"] >= 0:
                state.requests[spec["offline_tail"]]["next"] = slot
            else:
                spec["offline_head"] = slot
            spec["offline_tail"] = slot
            spec["offline_waiting"] += 1
            spec["offline_waiting_tokens"] += request["prompt_tokens"]
            return
        row, count = (s.URGENT, "urgent_members") if request["urgent"] else (s.OFFLINE, "offline_members")
        request["status"], request["position"] = s.RESIDENT, spec[count]
        request["blocks"] = request["prompt_tokens"] // 16 + 1
        state.members[row, instance, spec[count]] = slot
        spec[count] += 1
        spec["decodable"] += 1
        state.gauges.relaxed_decodable += kind == "relaxed"
        spec["urgent_decodable"] += request["urgent"]
        spec["urgent_context" if request["urgent"] else "offline_context"] += request["prompt_tokens"]
        spec["free_blocks"] -= request["blocks"]

    def ask(self, point: str, candidates: list[int] | None = None, instance: int = STRICT, request: int = -1) -> int:
        """The rule's answer; what it wrote to State.picks is read by `picked`."""
        if candidates is not None:
            self.state.picks[: len(candidates)] = candidates
        return call_rule(self.state, getattr(self.policy, point), instance, request, len(candidates or ()))

    def picked(self, count: int) -> list[int]:
        """The slots that the last wide answer named."""
        return [int(slot) for slot in self.state.picks[:count]]

    def latency_s(self, lengths: list[int]) -> float:
        """True latency of a decode step of requests of these context lengths."""
        table = cost_table(machines_of(self.episode.setup)[STRICT].deployment, 512, 16)
        return decode_latency_ps(table, len(lengths), int(np.sum(lengths))) / s.PS_PER_S
