"""`ooco_gym/Gating-v2`: how much memory must stay free before offline requests enter, for the next seconds?"""

from __future__ import annotations

from typing import ClassVar

from ooco_gym.envs.custom import Figure, Term, reading
from ooco_gym.envs.features import Feature
from ooco_gym.envs.online_tuning import OnlineTuningEnv
from ooco_gym.envs.reward import work_done
from ooco_gym.envs.vector import register
from ooco_gym.sim.decode import flush_totals


@reading
def relaxed_kv_free(state, instance):
    """Share of the KV blocks of relaxed instances that are free."""
    free = total = 0
    for relaxed in range(state.config.relaxed_count):
        flush_totals(state, relaxed)
        free += state.instances[relaxed].free_blocks
        total += state.instances[relaxed].total_blocks
    return free / max(1, total)


@reading
def relaxed_residents(state, instance):
    """Offline requests that decode on relaxed instances."""
    count = 0
    for relaxed in range(state.config.relaxed_count):
        flush_totals(state, relaxed)
        count += state.instances[relaxed].decodable
    return float(count)


@reading
def progress(state, instance):
    """Reference GPU-seconds of what has been computed, and not been lost, for unfinished offline requests."""
    return work_done(state)


class GatingEnv(OnlineTuningEnv):
    """The gate of a relaxed pool as an answer that holds for seconds; a base policy takes all other decisions.

    ## Description
    A relaxed instance prefills offline requests where it has nothing online to prefill, and decodes them. Let in too
    many, and they are evicted as they grow or as online prompts come; let in too few, and the instance idles. An answer
    says which share of a relaxed instance's blocks must stay free after an offline prefill, and holds for `interval_s`
    seconds. The reward pays offline work as it is computed (`progress`, a potential whose change is the reward: Ng et
    al. 1999) and takes it back where it is lost. The decisions one by one are [PrefillGate-v1](#prefillgate-v1).

    ## Action Space
    `MultiDiscrete([8])`: the share of the blocks of a relaxed instance that must stay free, from 0 to 1, with which an
    offline request starts only where none decodes (`conf/env/gating.yaml`, `controls`). All are legal.

    ## Candidates
    One, the share: `level` is where it stands among its levels.
    """

    id: ClassVar[str] = "ooco_gym/Gating-v2"
    terms: ClassVar[tuple[Term, ...]] = (Term("progress", progress),)
    figures: ClassVar[tuple[Figure, ...]] = (
        Figure(Feature("relaxed_kv_free", "share", "as is", 1.0, 0.0, 1.0,
                       "KV blocks of relaxed instances that are free"), relaxed_kv_free),
        Figure(Feature("relaxed_residents", "requests", "log", 256.0, 0.0, 1.0,
                       "requests that decode on relaxed instances"), relaxed_residents))
    default_scenario: ClassVar[str] = "gating"


register(GatingEnv)
