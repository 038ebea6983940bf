"""Largest throughput of one instance that does prefill and decode in turn: the estimate beside OOCO's Table 6."""

from __future__ import annotations

from dataclasses import dataclass

from ooco_gym.errors import UserError
from ooco_gym.perf.deployment import Deployment
from ooco_gym.perf.describe import describe_iteration

AZURE_CONV_PROMPT_TOKENS = 1512.30
"""Mean prompt length of Azure Conv (OOCO, Table 5)."""
AZURE_CONV_OUTPUT_TOKENS = 98.75
"""Mean output length of Azure Conv (OOCO, Table 5)."""
DEFAULT_BATCH = 256
"""Decode batch; the default limit on running sequences of the engines that Table 6 compares."""
TABLE_6_TOKENS_PER_S = {"h800": 36_099.72, "ascend_910c": 12_083.43}
"""Measured, Qwen2.5-7B: vLLM on H800 and xLLM on one 910C chip (OOCO, Table 6). Shown beside the estimate only."""


@dataclass(frozen=True)
class Throughput:
    """Steady state of one instance under endless load.

    Attributes:
        tokens_per_s: prompt and output tokens together, as Table 6 counts.
        output_tokens_per_s: output tokens alone.
        requests_per_s: requests completed.
        batch: decode batch, after the limit of the KV memory.
        prefill_share: share of the time spent on prefill.
    """

    tokens_per_s: float
    output_tokens_per_s: float
    requests_per_s: float
    batch: int
    prefill_share: float


def colocated_throughput(deployment: Deployment, prompt_tokens: float = AZURE_CONV_PROMPT_TOKENS,
                         output_tokens: float = AZURE_CONV_OUTPUT_TOKENS, batch: int = DEFAULT_BATCH,
                         prompts_per_prefill: int = 1) -> Throughput:
    """Estimates the throughput of one non-disaggregated instance at its limit, all requests of mean length.

    A request costs its share of a prefill iteration, and for each output token after the first its share of a decode
    step of `batch` requests, half of their output generated.

    Args:
        deployment: model, chips and timing form.
        prompt_tokens: mean prompt length.
        output_tokens: mean output length, at least 1.
        batch: decode batch wanted; less where KV memory does not hold as many whole requests.
        prompts_per_prefill: prompts computed in one prefill iteration.

    Raises:
        UserError: a length or size below 1, or not one request fits.
    """
    for name, value in (("prompt_tokens", prompt_tokens), ("output_tokens", output_tokens), ("batch", batch),
                        ("prompts_per_prefill", prompts_per_prefill)):
        if value < 1:
            raise UserError(f"{name} must be at least 1, got {value}")
    batch = min(batch, int(deployment.kv_tokens // (prompt_tokens + output_tokens)))
    if batch < 1:
        raise UserError(f"KV memory holds {deployment.kv_tokens} tokens: not one request of "
                        f"{prompt_tokens + output_tokens:g} tokens fits")
    prompts = [(prompt_tokens, prompt_tokens)] * prompts_per_prefill
    prefill_s = describe_iteration(deployment, prefill=prompts).latency_s / prompts_per_prefill
    contexts = [prompt_tokens + output_tokens / 2] * batch
    decode_s = (output_tokens - 1) * describe_iteration(deployment, decode=contexts).latency_s / batch
    requests_per_s = 1.0 / (prefill_s + decode_s)
    return Throughput((prompt_tokens + output_tokens) * requests_per_s, output_tokens * requests_per_s,
                      requests_per_s, batch, prefill_s * requests_per_s)
