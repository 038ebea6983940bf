"""`ooco_gym/Admission-v2`: in which order do waiting offline requests enter a mixed instance, for the next seconds?"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from ooco_gym.envs import buffers as b
from ooco_gym.envs import online_tuning
from ooco_gym.envs.batching import feature_of, fill_engine
from ooco_gym.envs.buffers import step_kernel
from ooco_gym.envs.custom import OwnFeature, Term, reading
from ooco_gym.envs.decision import Decision
from ooco_gym.envs.features import Feature
from ooco_gym.envs.gating import progress
from ooco_gym.envs.vector import register
from ooco_gym.runtime.features import ENGINE


@step_kernel
def observe_engine(state, buffers, i):
    """Completes the observation: `cluster` describes the first engine."""
    fill_engine(state, 0, buffers.reward_sums[i], buffers.notes[i], buffers.cluster[i])
    return b.NO_KIND


@reading
def offline_output_mean(state, instance):
    """Moving average of the output length of finished offline requests."""
    return state.observed.offline_output_mean


DECISION = replace(
    online_tuning.DECISION, name="order", question="By which weights are waiting offline requests ordered?",
    candidates="weights", cluster=tuple(map(feature_of, ENGINE)), still=(), observe=observe_engine, marks=((353, 174),))


class AdmissionEnv(online_tuning.OnlineTuningEnv):
    """The order in which offline requests enter an engine that puts prompts and decodes of both classes into one batch.

    ## Description
    More offline requests wait than the engine can serve, and which enter first decides how much
    it serves. No order is best everywhere: short predicted outputs first serve 25 % more than
    arrival where documents are shared, and 16 % less where two kinds of clients have equal
    prompts. Here the base policy admits by `admitter:rule=index` (`baselines/admitter.py`): the
    request with the least sum of weights times features of its own. Once in `interval_s` seconds
    an agent sets the weights, and the whole queue follows. Each episode draws another condition
    (`conf/env/admission.yaml`, `vary.condition`), whose name is not observed. The reward pays
    offline work as it is computed, as in [Gating-v2](pools.md#gating-v2).

    ## Action Space
    `MultiDiscrete([L] * P)`: for each of P weights one of L levels; the tuned value is level
    (L - 1)/2 (`conf/env/admission.yaml`, `controls`). All levels are always legal.

    ## Candidates
    One per weight: `level` is its present position among its levels.
    """

    id: ClassVar[str] = "ooco_gym/Admission-v2"
    decisions: ClassVar[tuple[Decision, ...]] = (DECISION,)
    terms: ClassVar[tuple[Term, ...]] = (Term("progress", progress),)
    own_features: ClassVar[tuple[OwnFeature, ...]] = (
        OwnFeature(Feature("offline_output_mean", "tokens", "log", 16_384.0, 0.0, 1.0,
                       "moving average of finished offline requests' output length"), offline_output_mean),)
    default_scenario: ClassVar[str] = "admission"


register(AdmissionEnv)
