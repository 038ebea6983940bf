"""`ooco_gym/Gating-v2`: how much memory must stay free for an offline request to be admitted, for
the next seconds?"""

from __future__ import annotations

from typing import ClassVar

from ooco_gym.envs.custom import OwnFeature, Term, reading
from ooco_gym.envs.features import Feature
from ooco_gym.envs.online_tuning import OnlineTuningEnv
from ooco_gym.envs.reward import work_done
from ooco_gym.envs.vector import register
from ooco_gym.sim.decode import flush_totals


@reading
def relaxed_kv_free(state, instance):
    """Share of free KV blocks of relaxed instances."""
    free = total = 0
    for relaxed in range(state.config.relaxed_count):
        flush_totals(state, relaxed)
        free += state.instances[relaxed].free_blocks
        total += state.instances[relaxed].total_blocks
    return free / max(1, total)


@reading
def relaxed_residents(state, instance):
    """Number of offline requests that decode on relaxed instances."""
    count = 0
    for relaxed in range(state.config.relaxed_count):
        flush_totals(state, relaxed)
        count += state.instances[relaxed].decodable
    return float(count)


@reading
def progress(state, instance):
    """Reference GPU-seconds computed, and not lost, for unfinished offline requests."""
    return work_done(state)


class GatingEnv(OnlineTuningEnv):
    """The gate of a relaxed pool as an action that holds for seconds; a base policy takes all
    other decisions.

    ## Description
    A relaxed instance prefills offline requests when it has no online prompt, and decodes them.
    If it admits too many, they are evicted as they grow or as online prompts come; if too few,
    the instance idles. An action sets the share of a relaxed instance's blocks that must stay
    free after an offline prefill, for `interval_s` seconds. The reward pays offline work as it is
    computed (`progress`, a potential whose change is the reward: Ng et al. 1999) and takes it
    back if it is lost. [PrefillGate-v1](#prefillgate-v1) asks for each prefill.

    ## Action Space
    `MultiDiscrete([8])`: the share of a relaxed instance's blocks that must stay free, from 0 to
    1; at 1 an offline request starts only if none decodes (`conf/env/gating.yaml`, `controls`).
    All levels are legal.

    ## Candidates
    One, the share: `level` is its position among the levels.
    """

    id: ClassVar[str] = "ooco_gym/Gating-v2"
    terms: ClassVar[tuple[Term, ...]] = (Term("progress", progress),)
    own_features: ClassVar[tuple[OwnFeature, ...]] = (
        OwnFeature(Feature("relaxed_kv_free", "share", "as is", 1.0, 0.0, 1.0,
                       "free share of the relaxed instances' KV blocks"), relaxed_kv_free),
        OwnFeature(Feature("relaxed_residents", "requests", "log", 256.0, 0.0, 1.0,
                       "requests decoding on relaxed instances"), relaxed_residents))
    default_scenario: ClassVar[str] = "gating"


register(GatingEnv)
