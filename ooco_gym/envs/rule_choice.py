"""`ooco_gym/RuleChoice-v1`: which parameters should the rules use, when the scenario changes
every episode?"""

from __future__ import annotations

from typing import ClassVar

from ooco_gym.envs.custom import OwnFeature, reading
from ooco_gym.envs.features import Feature
from ooco_gym.envs.gating import GatingEnv
from ooco_gym.envs.vector import register
from ooco_gym.policy.rules import predict_decode, predict_prefill

PROMPT_TOKENS = 1024  # length of the prompt and contexts that measure a machine


@reading
def prefill_share(state, instance):
    """Predicted latency of a prompt of 1,024 tokens on the first relaxed instance, over the TTFT
    SLO."""
    return predict_prefill(state, 0, PROMPT_TOKENS) / state.config.default_ttft_ps


@reading
def decode_share(state, instance):
    """Predicted latency of a step of 32 contexts of 1,024 tokens on a strict instance, over the
    TPOT SLO."""
    return predict_decode(state, instance, 32, 32 * PROMPT_TOKENS) / state.config.default_tpot_ps


@reading
def strict_memory(state, instance):
    """KV memory of a strict instance, in tokens."""
    return float(state.instances[instance].total_blocks * state.config.block_tokens)


class RuleChoiceEnv(GatingEnv):
    """Parameters of a pool's rules, chosen for seconds at a time, with a new scenario in every
    episode.

    ## Description
    Each episode draws chips, model, workload, load, offline lengths and SLOs
    (`conf/env/rulechoice.yaml`, `vary.condition`). The agent does not observe the scenario's
    name: it observes loads, memory, and latencies of prompts and steps over the SLOs. It sets the
    base policy's parameters for `interval_s` seconds. The base policy has the best single setting
    over all scenarios, and is hard to beat within each (docs/learned.md). Offline work is paid as
    it is computed, as in [Gating-v2](#gating-v2). Scenarios to test on are the shifts `known_…`
    (training chips in new combinations) and `new_…` (new chips).

    ## Action Space
    `MultiDiscrete([3, 3, 5, 3, 3])`: whether an online arrival stops offline work (always, if its
    first token would violate the TTFT SLO, never), and a level of each other parameter in
    `controls`. All are legal.

    ## Candidates
    One per parameter: `level` is its present position among its levels.
    """

    id: ClassVar[str] = "ooco_gym/RuleChoice-v1"
    own_features: ClassVar[tuple[OwnFeature, ...]] = (
        OwnFeature(Feature("prefill_share", "share", "linear", 0.5, 0.0, 1.0,
                       "prefill latency of a 1,024-token prompt on a relaxed instance, divided by the TTFT SLO"),
               prefill_share),
        OwnFeature(Feature("decode_share", "share", "linear", 2.0, 0.0, 1.0,
                       "latency of a decode step of 32 contexts of 1,024 tokens on a strict instance, divided by the "
                       "TPOT SLO"),
               decode_share),
        OwnFeature(Feature("strict_memory", "tokens", "log", 1e7, 0.0, 1.0, "KV memory of a strict instance"),
               strict_memory))
    default_scenario: ClassVar[str] = "rulechoice"


register(RuleChoiceEnv)
