"""A learned policy inside vLLM: every so often it looks at the engine and sets the rule's parameters anew.

The policy is a bundle of the kind `parameters` (`ooco_gym.runtime.ParameterPolicy`): the 44 features of an engine
(`ooco_gym.runtime.batching_features`) in, values of parameters out. Where it fails, or answers what the rule does not
know, the rule goes on with the parameters that it was set to.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ooco_gym.errors import UserError
from ooco_gym.runtime.batching_features import ENGINE, LOOK_OFFLINE, LOOK_ONLINE, ArrivalRates, Blocks, Found
from ooco_gym.runtime.bundle import Policy
from ooco_gym.runtime.rules import Engine, Fitted, Learned, Request
from ooco_gym.runtime.vllm.settings import Settings
from ooco_gym.runtime.vllm.watching import Watch

INTERVAL_S = 1.0  # where the bundle says none


class Adjuster:
    """Asks the policy at its interval.

    Args:
        settings: the bundle, the rule's own parameters, the violation budget.
        rule: whose `values` are set.
        watch: counts what is done, and what fails.

    Raises:
        UserError: the bundle is none, or is for another rule.
    """

    def __init__(self, settings: Settings, rule: Any, watch: Watch) -> None:
        policy = Policy.load(str(settings.bundle))
        names = getattr(policy, "names", ())
        if getattr(policy, "kind", None) != "parameters" or not names:
            raise UserError(f"bundle '{settings.bundle}' is of another kind; expected one that sets parameters "
                            "(kind 'parameters')")
        values = getattr(rule, "values", {})
        strange = [name for name in (*names, *policy.constants) if name not in values]
        if strange:
            raise UserError(f"bundle '{settings.bundle}' sets '{strange[0]}', which the rule '{settings.rule}' has "
                            f"not; expected one for {settings.rule}")
        policy.check_bounds(settings.rule)  # whatever rule it says that it is for
        if policy.features != [one.name for one in ENGINE]:
            raise UserError(f"bundle '{settings.bundle}' wants other features than those of an engine "
                            "(docs/batching_features.md)")
        # What it was trained with, where the server's settings do not say otherwise.
        values.update({name: value for name, value in policy.constants.items() if name not in settings.values})
        self._policy, self._rule, self._watch = policy, rule, watch
        self._own = dict(values)
        self._every_s = float(policy.interval_s or INTERVAL_S)
        self._next_s, self._budget = 0.0, settings.violation_budget
        self._rates: ArrivalRates | None = None
        self._blocks = Blocks()

    def arrived(self, now_s: float) -> None:
        """An online request has arrived."""
        self._kept(now_s).arrived(now_s)
        self._blocks.arrived(now_s)

    def missed(self, now_s: float) -> None:
        """An online request has missed an SLO, for the first time."""
        self._blocks.missed(now_s)

    def look(self, engine: Engine, belief: Fitted | Learned) -> None:
        """Sets the rule's parameters anew where the interval is over."""
        if engine.now_s < self._next_s:
            return
        self._next_s = engine.now_s + self._every_s
        try:
            found = self._policy.decide(self.observe(engine, belief))
            if not found.keys() <= self._own.keys() or not all(np.isfinite(list(found.values()))):
                raise UserError("the policy answers other parameters than the rule has, or no numbers")
        except Exception as error:
            self._watch.fell_back("could not be adjusted", f"{type(error).__name__}: {error}")
            self._rule.values.update(self._own)
            return
        self._rule.values.update(found)
        self._watch.count("adjustments")

    def observe(self, engine: Engine, belief: Fitted | Learned) -> np.ndarray:
        """The features of an engine, float32 (44,), scaled."""
        online, offline = engine.online.first(LOOK_ONLINE), engine.offline.first(LOOK_OFFLINE)
        described = {
            "now": engine.now_s, "running": [_described(one) for one in engine.running],
            "waiting_online": [_described(one) for one in online],
            "waiting_offline": [_described(one) for one in offline],
            "num_waiting_online": engine.num_waiting[0], "num_waiting_online_tokens": engine.num_waiting[1],
            "num_waiting_offline": engine.num_waiting[2], "num_waiting_offline_tokens": engine.num_waiting[3],
            "num_free_blocks": engine.free_blocks, "num_blocks": engine.total_blocks,
            "max_num_seqs": engine.max_num_seqs, "max_num_batched_tokens": engine.max_num_batched_tokens,
            "tpot_slo": engine.tpot_slo_s, "violation_budget": self._budget,
            "latency": belief.of_batch,
            **self._kept(engine.now_s).describe(), **self._blocks.describe(engine.now_s)}
        return Found(described).cluster()

    def _kept(self, now_s: float) -> ArrivalRates:
        if self._rates is None:
            self._rates = ArrivalRates(now_s)
        return self._rates


def _described(request: Request) -> dict[str, Any]:
    """A request as the features' contract has it."""
    return {"online": request.online, "arrival_time": request.arrival_s, "first_token_time": request.first_token_s,
            "ttft_slo": request.ttft_slo_s, "tpot_slo": request.tpot_slo_s,
            "num_prompt_tokens": request.num_tokens - request.num_output_tokens,
            "num_output_tokens": request.num_output_tokens, "num_computed_tokens": request.num_computed_tokens,
            "num_blocks": request.blocks, "num_cached_tokens": request.look_up()[0] if request.look_up else 0}
