"""What limits an iteration: shares of its operators, its bottleneck, and where prefill and decode saturate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ooco_gym.errors import UserError
from ooco_gym.perf.deployment import Deployment
from ooco_gym.perf.timing import Attention, OperatorCost, Phase

COMPUTE, MEMORY, COMMUNICATION, OVERHEAD = "compute", "memory bandwidth", "communication", "overhead"
CAPACITY = "capacity"
_RESOURCES: tuple[str, ...] = (COMPUTE, MEMORY, COMMUNICATION, OVERHEAD)
KINDS: tuple[str, ...] = ("gemm", "attention", "elementwise", "communication", "overhead")
AZURE_CONV_PROMPT_TOKENS = 1512.30
"""Mean prompt length of Azure Conv (OOCO, Table 5)."""
AZURE_CONV_OUTPUT_TOKENS = 98.75
"""Mean output length of Azure Conv (OOCO, Table 5)."""
DEFAULT_BATCH = 256
"""Decode batch; the default limit on running sequences of the engines that Table 6 compares."""


@dataclass(frozen=True)
class IterationReport:
    """One prefill or decode iteration, broken down by operator (OOCO 3.3.3).

    Attributes:
        latency_s: of the whole iteration, overhead included.
        operator_shares: share of the latency by operator; they sum to 1.
        kind_shares: the same by kind: gemm, attention, elementwise, communication, overhead.
        resource_shares: share of the latency by what limits it: compute, memory bandwidth, communication, overhead.
            A kernel's launch counts to what limits the kernel.
        bottleneck: "capacity" where the KV memory could not take one more request of the batch's mean context,
            otherwise the resource with the largest share.
        tokens: tokens computed.
        kv_share: KV tokens of the batch over those that fit; above 1 the batch does not fit.
    """

    latency_s: float
    operator_shares: dict[str, float]
    kind_shares: dict[str, float]
    resource_shares: dict[str, float]
    bottleneck: str
    tokens: float
    kv_share: float

    @property
    def tokens_per_s(self) -> float:
        """Tokens computed a second."""
        return self.tokens / self.latency_s


def describe_iteration(deployment: Deployment, *, prefill: Sequence[tuple[float, float]] = (),
                       decode: Sequence[float] = ()) -> IterationReport:
    """Breaks one iteration down by operator.

    Args:
        deployment: model, chips and timing form.
        prefill: `(q, kv)` of each prompt: new tokens, and context with the new tokens; all complete their prefill.
        decode: context length of each decoding request. Mean lengths need not be whole numbers.

    Raises:
        UserError: both kinds at once, or none.
    """
    if bool(len(prefill)) == bool(len(decode)):
        raise UserError("an iteration is either prefill or decode: give exactly one of 'prefill' and 'decode'")
    phase: Phase = "prefill" if len(prefill) else "decode"
    requests = np.array(prefill if len(prefill) else [(1.0, context) for context in decode], dtype=np.float64)
    costs = _costs(deployment, phase, requests)
    latency = sum(float(cost.seconds) for cost in costs)
    kinds, resources = dict.fromkeys(KINDS, 0.0), dict.fromkeys(_RESOURCES, 0.0)
    for cost in costs:
        kinds[cost.kind] += float(cost.seconds) / latency
        limit = cost.kind if cost.kind in (COMMUNICATION, OVERHEAD) else COMPUTE if cost.compute_bound else MEMORY
        resources[limit] += float(cost.seconds) / latency
    held = float(requests[:, 1].sum())
    full = held + requests[:, 1].mean() > deployment.kv_tokens
    bottleneck = CAPACITY if full else max(resources, key=lambda name: resources[name])
    shares = {cost.name: float(cost.seconds) / latency for cost in costs}
    return IterationReport(latency, shares, kinds, resources, bottleneck, float(requests[:, 0].sum()),
                           held / deployment.kv_tokens)


def prefill_saturation(deployment: Deployment, limit: int = 65_536) -> int | None:
    """Tokens of a single prompt from which prefill is saturated: compute-bound operators take more than half the time.

    Overhead and communication are left out: they depend on the host and the links, not on the roofline. The paper's
    text gives about 250 to 300 on 910C.

    Returns:
        The smallest such number of tokens, or None where there is none up to `limit`.
    """
    tokens = np.arange(1, limit + 1, dtype=np.float64)
    compute, other = np.zeros(limit), np.zeros(limit)
    form, shard = deployment.form, deployment.shard
    form_of_prompts = form.attention(shard, "prefill")
    attention = _attention(form_of_prompts, *form_of_prompts.of_prompts(tokens, tokens))
    measured = form.measured_attention(shard)
    if measured:
        attention = attention._replace(seconds=measured.prefill_s(tokens, tokens))
    costs = [*form.dense(shard, tokens), *form.head(shard, np.ones(limit)), attention]
    for cost in costs:
        if cost.kind in ("gemm", "attention"):
            compute += np.where(cost.compute_bound, cost.seconds, 0.0)
            other += np.where(cost.compute_bound, 0.0, cost.seconds)
    saturated = np.flatnonzero(compute > other)
    return int(tokens[saturated[0]]) if len(saturated) else None


def _costs(deployment: Deployment, phase: Phase, requests: np.ndarray) -> list[OperatorCost]:
    form, shard = deployment.form, deployment.shard
    q, kv = requests[:, 0], requests[:, 1]
    batched = form.attention(shard, phase)
    attention = _attention(batched, *(batched.features(q, kv) if phase == "prefill"
                                      else np.array([kv.sum(), len(kv), kv.sum(), len(kv)], dtype=np.float64)))
    measured = form.measured_attention(shard)
    if measured and phase == "prefill":
        attention = attention._replace(seconds=measured.prefill_s(q, kv).sum())
    elif measured:
        batch, context = np.array([float(len(kv))]), np.array([kv.mean()])
        attention = attention._replace(seconds=measured.decode_s(batch, context)[0])
    work = [*form.dense(shard, q.sum()), attention, *form.head(shard, np.array(float(len(requests))))]
    added, floor = {"overhead": form.overhead_s(shard, phase)}, form.floor_s(shard, phase)
    if floor:  # the chip waits for its host
        added["host"] = max(0.0, floor - sum(float(cost.seconds) for cost in work))
    return [*work, *(OperatorCost(name, "overhead", np.array(seconds), np.array(False))
                     for name, seconds in added.items())]


def _attention(attention: Attention, *features: np.ndarray) -> OperatorCost:
    roofs = np.stack(np.broadcast_arrays(*features), axis=-1) @ attention.roofs_s.T
    return OperatorCost("attention", "attention", attention.seconds(*features),
                        roofs[..., 0] >= roofs[..., 1:].max(axis=-1))


class Throughput(NamedTuple):
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
                         output_tokens: float = AZURE_CONV_OUTPUT_TOKENS, batch: int = DEFAULT_BATCH) -> Throughput:
    """Estimates the throughput of one non-disaggregated instance at its limit, all requests of mean length.

    A request costs a prefill iteration of its own, and for each output token after the first its share of a decode
    step of `batch` requests, half of their output generated.

    Args:
        deployment: model, chips and timing form.
        prompt_tokens: mean prompt length.
        output_tokens: mean output length, at least 1.
        batch: decode batch wanted; less where KV memory does not hold as many whole requests.

    Raises:
        UserError: a length or size below 1, or not one request fits.
    """
    for name, value in (("prompt_tokens", prompt_tokens), ("output_tokens", output_tokens), ("batch", batch)):
        if value < 1:
            raise UserError(f"{name} must be at least 1, got {value}")
    batch = min(batch, int(deployment.kv_tokens // (prompt_tokens + output_tokens)))
    if batch < 1:
        raise UserError(f"KV memory holds {deployment.kv_tokens} tokens: not one request of "
                        f"{prompt_tokens + output_tokens:g} tokens fits")
    prefill_s = describe_iteration(deployment, prefill=[(prompt_tokens, prompt_tokens)]).latency_s
    contexts = [prompt_tokens + output_tokens / 2] * batch
    decode_s = (output_tokens - 1) * describe_iteration(deployment, decode=contexts).latency_s / batch
    requests_per_s = 1.0 / (prefill_s + decode_s)
    return Throughput((prompt_tokens + output_tokens) * requests_per_s, output_tokens * requests_per_s,
                      requests_per_s, batch, prefill_s * requests_per_s)
