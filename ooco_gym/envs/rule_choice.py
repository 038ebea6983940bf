"""`ooco_gym/RuleChoice-v1`: which settings of the rules, where every episode is another condition?"""

from __future__ import annotations

from typing import ClassVar

from ooco_gym.envs.custom import Figure, reading
from ooco_gym.envs.features import Feature
from ooco_gym.envs.gating import GatingEnv
from ooco_gym.envs.vector import register
from ooco_gym.policy.rules import predict_decode, predict_prefill

PROMPT_TOKENS = 1024  # of the prompt and of the contexts by which machines are told apart


@reading
def prefill_share(state, instance):
    """Share of the TTFT SLO that a prompt of 1,024 tokens takes on the first relaxed instance, as is believed."""
    return predict_prefill(state, 0, PROMPT_TOKENS) / state.config.default_ttft_ps


@reading
def decode_share(state, instance):
    """Share of the TPOT SLO that a step of 32 contexts of 1,024 tokens takes on a strict instance, as is believed."""
    return predict_decode(state, instance, 32, 32 * PROMPT_TOKENS) / state.config.default_tpot_ps


@reading
def strict_memory(state, instance):
    """Tokens that the KV memory of a strict instance holds."""
    return float(state.instances[instance].total_blocks * state.config.block_tokens)


class RuleChoiceEnv(GatingEnv):
    """The settings of a pool's rules, chosen for seconds at a time, where every episode is another condition.

    ## Description
    Chips, model, workload, load, lengths of the offline work and SLOs are drawn anew for each episode
    (`conf/env/rulechoice.yaml`, `vary.condition`). An agent is not told which condition it is in: it sees loads, memory
    and how long prompts and steps take of the SLOs, and sets the rules of a base policy for `interval_s` seconds.
    The base policy is the best single setting over all conditions, and hard to beat within each (docs/learned.md).
    Offline work is paid as it is computed, as in [Gating-v2](#gating-v2). Conditions to test on are the shifts
    `known_…` (chips of training in new combinations) and `new_…` (chips that training has not met).

    ## Action Space
    `MultiDiscrete([3, 3, 5, 3, 3])`: whether an online arrival stops offline work (always, where its first token would
    be late, never), and of each other parameter in `controls` a level. All are legal.

    ## Candidates
    One a parameter: `level` is where it stands now among its levels.
    """

    id: ClassVar[str] = "ooco_gym/RuleChoice-v1"
    figures: ClassVar[tuple[Figure, ...]] = (
        *GatingEnv.figures,
        Figure(Feature("prefill_share", "share", "linear", 0.5, 0.0, 1.0,
                       "share of the TTFT SLO that a prompt of 1,024 tokens takes on a relaxed instance"),
               prefill_share),
        Figure(Feature("decode_share", "share", "linear", 2.0, 0.0, 1.0,
                       "share of the TPOT SLO that a step of 32 contexts of 1,024 tokens takes on a strict instance"),
               decode_share),
        Figure(Feature("strict_memory", "tokens", "log", 1e7, 0.0, 1.0, "KV memory of a strict instance"),
               strict_memory))
    default_scenario: ClassVar[str] = "rulechoice"


register(RuleChoiceEnv)
