"""Prior of a latency model before any observation: the cost table of chip and model, and the host's time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ooco_gym.perf.deployment import Deployment
from ooco_gym.perf.engine_clock import EngineClock
from ooco_gym.perf.table import PS_PER_S, CostTable, cost_table, mixed_latency_ps
from ooco_gym.runtime.beliefs import Terms

_TOKENS, _BATCH = 8192, 256  # lengths of the curves; linear beyond


def prior_of(values: Mapping[str, Any]) -> Terms:
    """Returns the terms of a deployment, such as {chip: h100, model: llama_3_1_8b, timing:
    extended}, and `engine_clock`.

    They are exact for 32 decodes and for a prompt of 512 tokens alone; elsewhere they deviate as
    far as kernel times are no sums of terms.

    Raises:
        UserError: an unknown key or name, or weights that do not fit.
    """
    deployment = {key: value for key, value in values.items() if key != "engine_clock"}
    clock = EngineClock.load(values.get("engine_clock"))
    table = cost_table(Deployment.from_config(deployment), _BATCH, _TOKENS)
    dense = np.maximum(table.prefill_ps - table.prefill_ps[1], 0) / PS_PER_S
    sequence = max(0.0, float(table.head_ps[-1] - table.head_ps[1]) / PS_PER_S / (_BATCH - 1))
    near, far = (_seconds(table, decodes=32, context=32 * each) for each in (512, 2048))
    context = (far - near) / (32 * 1536)
    step = max(0.0, near - float(dense[32]) - 32 * sequence - context * 32 * 512)
    short, long = (_seconds(table, new=512, before=before) for before in (0, 4096))
    work = (long - short) / (512 * 4096)
    pieces = max(0.0, short - step - float(dense[512]) - sequence - work * 512 * 512)
    pieces += max(0.0, clock.prefill_s - clock.decode_s)
    step += clock.decode_s + (0.0 if clock.async_scheduling else clock.schedule_s)
    return Terms(step, pieces, sequence + clock.sequence_s, 0.0, work, 0.0, context,
                 (dense + clock.prefill_token_s * np.arange(len(dense))).tolist(), (0.0, 0.0))


def _seconds(table: CostTable, new: int = 0, before: int = 0, decodes: int = 0, context: int = 0) -> float:
    return float(mixed_latency_ps(table, [[new]], [[before]], [decodes], [context])[0]) / PS_PER_S
