"""`ooco-gym perf` (`conf/perf.yaml`): what limits an iteration on one instance, by operator; where
prefill and decode saturate; and the throughput."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ooco_gym.errors import UserError
from ooco_gym.perf.deployment import Deployment, validity_warnings
from ooco_gym.perf.table import decode_attention_s
from ooco_gym.perf.timing import Attention, OperatorCost, Phase
from ooco_gym.report import Column, Table, console
from ooco_gym.schema import Count, check, check_keys, demand, number, whole

if TYPE_CHECKING:
    from omegaconf import DictConfig

COMPUTE, MEMORY, COMMUNICATION, OVERHEAD = "compute", "memory bandwidth", "communication", "overhead"
CAPACITY = "capacity"
_DEPLOYMENT = ("chip", "model", "tp", "pp", "link", "expert_parallel", "moe_backend", "data_parallel", "memory",
               "kv_fraction", "max_num_batched_tokens", "max_num_seqs", "timing")
SCHEMA = "ooco-gym/perf/3"
_THROUGHPUT_KEYS = ("prompt_tokens", "output_tokens", "batch")
_SHORT = {MEMORY: "memory", COMMUNICATION: "links"}


def main(cfg: DictConfig) -> dict[str, Any]:
    """Prints latencies by batch size and length, and what limits them; returns `study`.

    Raises:
        UserError: unknown names, values of the wrong type, a model that does not fit its chips.
    """
    from omegaconf import OmegaConf

    values: Any = OmegaConf.to_container(cfg, resolve=True)
    given = {key: values[key] for key in _DEPLOYMENT if key in values}
    deployment = Deployment.from_config({"timing": None, **given})
    summary = study(deployment, batches=values["batches"], contexts=values["contexts"], prompts=values["prompts"],
                    throughput=values["throughput"])
    screen = console()
    for table in _tables(summary):
        table.show(screen, unbroken=99)
    for line in summary_lines(summary):
        screen.print(line, highlight=False)
    for warning in summary["warnings"]:
        screen.print(f"Note: {warning}", highlight=False, style="yellow")
    return summary


def study(deployment: Deployment, *, batches: Sequence[int], contexts: Sequence[int], prompts: Sequence[int],
          throughput: Mapping[str, float]) -> dict[str, Any]:
    """Returns the numbers of `ooco-gym perf` as a JSON-able mapping: decode steps (each batch size
    at each context length), prefills of one prompt, saturation, capacity, `colocated_throughput` of
    the arguments `throughput`, and `warnings` for sizes beyond what the chip's numbers were fitted
    on."""
    check_keys("throughput", throughput, _THROUGHPUT_KEYS)
    for name, value in throughput.items():
        (whole if name == "batch" else number)(f"throughput.{name}", value)
    for name, values in (("contexts", contexts), ("batches", batches), ("prompts", prompts)):
        demand(check(tuple[Count, ...], name, values), name, values, "a list of one or more")
    decode = [{"batch": batch, "context_tokens": context, **_row(deployment, decode=[context] * batch)}
              for context in contexts for batch in batches]
    prefill = [{"prompt_tokens": tokens, **_row(deployment, prefill=[(tokens, tokens)])} for tokens in prompts]
    steps = [row for row in decode if row["fits"]]
    tokens = [row["prompt_tokens"] for row in prefill if row["fits"]]
    arguments: dict[str, Any] = dict(throughput)
    return {
        "schema": SCHEMA,
        "chip": deployment.chip.name, "model": deployment.model.name, "timing": deployment.timing,
        "tp": deployment.tp, "pp": deployment.pp,
        "capacity": {
            "parameters": deployment.model.parameters, "weight_bytes": deployment.weight_bytes,
            "kv_bytes_per_token": deployment.kv_bytes_per_token, "kv_tokens": deployment.kv_tokens,
            "memory": deployment.memory, "kv_fraction": deployment.kv_fraction, "card_bytes": deployment.card_bytes,
            "peak_bytes": deployment.peak_bytes, "kv_bytes": deployment.kv_capacity_bytes,
            "profiled": deployment.batch_limits if deployment.memory == "vllm" else None,
        },
        "saturation": {"bs_sat": deployment.bs_sat, "prefill_tokens": prefill_saturation(deployment)},
        "decode": decode,
        "prefill": prefill,
        "throughput": colocated_throughput(deployment, **arguments)._asdict(),
        "warnings": validity_warnings(
            deployment, max_batch=max((row["batch"] for row in steps), default=None),
            max_tokens=max(tokens, default=None),
            max_context=max([*tokens, *(row["context_tokens"] for row in steps)], default=None)),
    }


def _row(deployment: Deployment, **batch: Any) -> dict[str, Any]:
    report = describe_iteration(deployment, **batch)
    return {**report._asdict(), "tokens_per_s": report.tokens_per_s, "fits": report.kv_share <= 1}


def summary_lines(summary: dict[str, Any]) -> list[str]:
    capacity, saturation, rate = summary["capacity"], summary["saturation"], summary["throughput"]
    tokens = saturation["prefill_tokens"]
    prefill_from = (f"Prefill saturates at {tokens} tokens: from there on" if tokens
                    else "Prefill never saturates: at no length do")
    return [
        (f"KV capacity: {capacity['kv_tokens']:,} tokens of {capacity['kv_bytes_per_token']:,} bytes beside "
         f"{capacity['weight_bytes'] / 1e9:.1f} GB of weights ({capacity['parameters'] / 1e9:.2f} billion parameters)"),
        _pool_line(capacity, summary["tp"] * summary["pp"]),
        (f"Decode GEMMs saturate at a batch of {saturation['bs_sat']} (bs_sat): from there on every linear layer is "
         "compute-bound"),
        (f"{prefill_from} compute-bound operators take more than half of the operators' time "
         "(overhead and links left out)"),
        (f"Throughput, prefill and decode in turn at a batch of {rate['batch']}: {rate['tokens_per_s']:,.0f} prompt "
         f"and output tokens/s, {rate['output_tokens_per_s']:,.0f} of them output; {rate['prefill_share']:.0%} of "
         "the time goes to prefill"),
    ]


def _pool_line(capacity: dict[str, Any], chips: int) -> str:
    """Sentence on the memory of one chip: weights, activation peak, KV cache."""
    peak, one, whole = "", capacity["kv_bytes"] / chips, capacity["card_bytes"]
    if capacity["profiled"]:
        tokens, seats = capacity["profiled"]
        peak = (f", {capacity['peak_bytes'] / 1e9:.2f} for what the engine profiles ({tokens:,} tokens, "
                f"{seats:,} sequences)")
    return (f"Of a chip (memory={capacity['memory']}): {capacity['kv_fraction']:g} of {whole / 1e9:.2f} GB, less "
            f"{capacity['weight_bytes'] / chips / 1e9:.2f} for weights{peak}: {one / 1e9:.2f} GB "
            f"({one / 2**30:.2f} GiB) of KV cache")


def _bound(row: dict[str, Any]) -> str:
    return str(_SHORT.get(row["bottleneck"], row["bottleneck"])) if row["fits"] else "does not fit"


def _tables(summary: dict[str, Any]) -> tuple[Table, Table]:
    """Decode steps by batch size and context, and prefills of one prompt."""
    rows = summary["decode"]
    contexts = list(dict.fromkeys(row["context_tokens"] for row in rows))
    body = []
    for batch in dict.fromkeys(row["batch"] for row in rows):
        mine = [row for row in rows if row["batch"] == batch]
        cells = [f"{batch:,}"]
        for row in mine:
            cells.append(f"{1e3 * row['latency_s']:.1f} {_bound(row)}" if row["fits"] else _bound(row))
        cells.append(f"{mine[0]['tokens_per_s']:,.0f}" if mine[0]["fits"] else "")
        body.append(cells)
    split = "" if summary["tp"] * summary["pp"] == 1 else f", tp={summary['tp']} pp={summary['pp']}"
    title = f"{summary['model']} on {summary['chip']}{split}, timing {summary['timing']}"
    head = ["batch", *(f"{context:,}" for context in contexts), f"tokens/s\n({contexts[0]:,})"]
    columns = [Column("tokens", "prompt_tokens", ","), Column("ms", lambda row: 1e3 * row["latency_s"], ".1f"),
               Column("tokens/s", "tokens_per_s", ",.0f"), Column("bound by", _bound)]
    return (Table(f"Decode step by batch size and context tokens, ms and bottleneck\n{title}", head, body),
            Table.of(columns, summary["prefill"], f"Prefill of one prompt\n{title}"))


# --- One iteration, operator by operator ----------------------------------------------------------------------------
class IterationReport(NamedTuple):
    """One prefill or decode iteration, broken down by operator (OOCO 3.3.3).

    Attributes:
        latency_s: latency of the whole iteration, overhead included.
        operator_shares: share of the latency by operator; they sum to 1.
        resource_shares: share of the latency by limit: compute, memory bandwidth, communication,
            overhead. A kernel's launch counts as the kernel's limit.
        bottleneck: "capacity" if KV memory has no room for one more request of the batch's mean
            context, otherwise the resource with the largest share.
        tokens: computed tokens.
        kv_share: KV tokens of the batch over those that fit; above 1 it does not fit.
    """

    latency_s: float
    operator_shares: dict[str, float]
    resource_shares: dict[str, float]
    bottleneck: str
    tokens: float
    kv_share: float

    @property
    def tokens_per_s(self) -> float:
        """Computed tokens per second."""
        return self.tokens / self.latency_s


def describe_iteration(deployment: Deployment, *, prefill: Sequence[tuple[float, float]] = (),
                       decode: Sequence[float] = ()) -> IterationReport:
    """Breaks one iteration down by operator.

    It has either prompts `(q, kv)` that complete their prefill (`q` new tokens; `kv`, the context
    including them), or one decode at each context length in `decode`. Lengths need not be integers.

    Raises:
        UserError: both kinds at once, or none.
    """
    if bool(len(prefill)) == bool(len(decode)):
        raise UserError("an iteration is either prefill or decode: give exactly one of 'prefill' and 'decode'")
    phase: Phase = "prefill" if len(prefill) else "decode"
    requests = np.array(prefill if len(prefill) else [(1.0, context) for context in decode], dtype=np.float64)
    costs = _costs(deployment, phase, requests)
    latency = sum(float(cost.seconds) for cost in costs)
    resources: dict[str, float] = dict.fromkeys((COMPUTE, MEMORY, COMMUNICATION, OVERHEAD), 0.0)
    for cost in costs:
        if cost.kind in (COMMUNICATION, OVERHEAD):
            limit = cost.kind
        else:
            limit = COMPUTE if cost.compute_bound else MEMORY
        resources[limit] += float(cost.seconds) / latency
    held = float(requests[:, 1].sum())
    full = held + requests[:, 1].mean() > deployment.kv_tokens
    bottleneck = CAPACITY if full else max(resources, key=lambda name: resources[name])
    shares = {cost.name: float(cost.seconds) / latency for cost in costs}
    return IterationReport(latency, shares, resources, bottleneck, float(requests[:, 0].sum()),
                           held / deployment.kv_tokens)


def prefill_saturation(deployment: Deployment, limit: int = 65_536) -> int | None:
    """Returns the smallest length of a single prompt, up to `limit` tokens, from which
    compute-bound operators take more than half the time, or None. Overhead and communication are
    left out, as they depend on host and links, not on the roofline. The paper gives about 250 to
    300 on 910C."""
    tokens = np.arange(1, limit + 1, dtype=np.float64)
    compute, other = np.zeros(limit), np.zeros(limit)
    form, shard = deployment.form, deployment.shard
    form_of_prompts = form.layered_attention(shard, "prefill")[0]
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
    batched, sliding = form.layered_attention(shard, phase)
    attention = _attention(batched, *(batched.features(q, kv) if phase == "prefill"
                                      else np.array([kv.sum(), len(kv), kv.sum(), len(kv)], dtype=np.float64)))
    if sliding is not None:
        size, mean = np.array(float(len(kv))), np.array(kv.mean())
        attention = attention._replace(seconds=decode_attention_s(batched, sliding, shard.model.window, size, mean))
    measured = form.measured_attention(shard)
    if measured and phase == "prefill":
        attention = attention._replace(seconds=measured.prefill_s(q, kv).sum())
    elif measured:
        batch, context = np.array([float(len(kv))]), np.array([kv.mean()])
        attention = attention._replace(seconds=measured.decode_s(batch, context)[0])
    work = [*form.dense(shard, q.sum()), attention, *form.head(shard, np.array(float(len(requests))))]
    return [*work, OperatorCost("overhead", "overhead", np.array(form.overhead_s(shard, phase)), np.array(False))]


def _attention(attention: Attention, *features: np.ndarray) -> OperatorCost:
    roofs = np.stack(np.broadcast_arrays(*features), axis=-1) @ attention.roofs_s.T
    return OperatorCost("attention", "attention", attention.seconds(*features),
                        roofs[..., 0] >= roofs[..., 1:].max(axis=-1))


class Throughput(NamedTuple):
    """Steady state of one instance under endless load: prompt and output tokens per second together
    (as in Table 6), output tokens per second, completed requests per second, the decode batch, and
    the share of time spent on prefill."""

    tokens_per_s: float
    output_tokens_per_s: float
    requests_per_s: float
    batch: int
    prefill_share: float


def colocated_throughput(deployment: Deployment, prompt_tokens: float = 1512.30, output_tokens: float = 98.75,
                         batch: int = 256) -> Throughput:
    """Estimates the throughput of one non-disaggregated instance at its limit, with requests of
    mean length (default: Azure Conv's; OOCO, Table 5).

    A request costs its own prefill iteration, and for each output token after the first its share
    of a decode step of `batch` requests (fewer if KV memory is too small) with half their output
    generated.

    Raises:
        UserError: a length or size below 1, or no request fits.
    """
    for name, value in (("prompt_tokens", prompt_tokens), ("output_tokens", output_tokens), ("batch", batch)):
        number(name, value, 1)
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
