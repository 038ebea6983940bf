"""`ooco-gym perf`: what the roofline says of one instance (configuration: `conf/perf.yaml`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ooco_gym.errors import UserError, nearest
from ooco_gym.perf.deployment import Deployment, validity_warnings
from ooco_gym.perf.describe import (
    TABLE_6_TOKENS_PER_S,
    IterationReport,
    colocated_throughput,
    decode_saturation,
    describe_iteration,
    prefill_saturation,
)
from ooco_gym.perf.show import print_study, write_plot
from ooco_gym.perf.specs import load_chip

if TYPE_CHECKING:
    from omegaconf import DictConfig


_DEPLOYMENT = ("chip", "model", "tp", "pp", "kv_fraction", "timing")
SCHEMA = "ooco-gym/perf/1"
_THROUGHPUT_KEYS = ("prompt_tokens", "output_tokens", "batch", "prompts_per_prefill")


def main(cfg: DictConfig) -> dict[str, Any]:
    """Prints latency against batch size and length with what limits it, and writes `perf.html` to `cfg.out`.

    Args:
        cfg: keys as in `conf/perf.yaml`; `chip`, `model` and `timing` are names, paths or mappings.

    Returns:
        The figures shown (`ooco_gym.perf.command.study`).

    Raises:
        UserError: unknown names, values of the wrong kind, a model that does not fit its chips.
    """
    from omegaconf import OmegaConf

    values = OmegaConf.to_container(cfg, resolve=True)
    if not isinstance(values, dict):
        raise UserError("the configuration of perf must be a mapping")
    shared = {key: values[key] for key in _DEPLOYMENT if key in values}
    deployment = Deployment.from_config(shared)
    other, refusal = _other(shared, values.get("compare_chip"))
    figures = study(deployment, batches=values["batches"], contexts=values["contexts"], prompts=values["prompts"],
                    throughput=values["throughput"], other=other)
    print_study(figures, refusal)
    if values.get("out"):
        write_plot(figures, Path(values["out"]) / "perf.html", png=bool(values.get("png")))
    return figures


def _other(shared: dict[str, Any], chip: Any) -> tuple[Deployment | None, str]:
    """The same instance on another chip; where it does not fit there, why not."""
    if not chip or load_chip(chip) == load_chip(shared.get("chip", chip)):
        return None, ""
    try:
        other = Deployment.from_config(shared | {"chip": chip})
        return (other, "") if other.bs_sat else (None, "")  # asked for, since a timing may lack the chip's figures
    except UserError as error:
        return None, f"no comparison: {error}"


def study(deployment: Deployment, *, batches: Sequence[int], contexts: Sequence[int], prompts: Sequence[int],
          throughput: Mapping[str, float], other: Deployment | None = None) -> dict[str, Any]:
    """Collects everything that `ooco-gym perf` shows.

    Args:
        deployment: the instance.
        batches: decode batch sizes.
        contexts: context lengths, the same for each request of a batch.
        prompts: lengths of a single prompt.
        throughput: keyword arguments of `colocated_throughput`.
        other: an instance to compare throughput with.

    Returns:
        A JSON-able mapping: `capacity`, `saturation`, `decode` and `prefill` (one row a cell), `throughput`,
        `comparison` (None without `other`), `warnings` (where the sizes leave what the chip's figures were fitted on).
    """
    estimate = colocated_throughput(deployment, **_throughput_arguments(throughput))
    decode = [_decode_row(deployment, batch, context)
              for context in _sizes("contexts", contexts) for batch in _sizes("batches", batches)]
    prefill = [_prefill_row(deployment, tokens) for tokens in _sizes("prompts", prompts)]
    return {
        "schema": SCHEMA,
        "chip": deployment.chip.name, "model": deployment.model.name, "timing": deployment.timing,
        "tp": deployment.tp, "pp": deployment.pp,
        "capacity": {
            "parameters": deployment.model.parameters, "weight_bytes": deployment.weight_bytes,
            "kv_bytes_per_token": deployment.kv_bytes_per_token, "kv_tokens": deployment.kv_tokens,
        },
        "saturation": {
            "bs_sat": deployment.bs_sat, "decode_gemm_batch": decode_saturation(deployment),
            "prefill_tokens": prefill_saturation(deployment),
        },
        "decode": decode,
        "prefill": prefill,
        "throughput": asdict(estimate),
        "comparison": compare(deployment, other, throughput) if other else None,
        "warnings": _warnings(deployment, decode, prefill),
    }


def compare(deployment: Deployment, other: Deployment, throughput: Mapping[str, float]) -> dict[str, Any]:
    """Throughput of `other` over that of `deployment`, with the measured ratio of Table 6 where it has both chips."""
    arguments = _throughput_arguments(throughput)
    ours = colocated_throughput(deployment, **arguments).tokens_per_s
    theirs = colocated_throughput(other, **arguments).tokens_per_s
    measured = TABLE_6_TOKENS_PER_S
    known = (deployment.model.name == "qwen2_5_7b" and deployment.chips == 1
             and {deployment.chip.name, other.chip.name} <= set(measured))
    return {
        "chip": other.chip.name, "tokens_per_s": theirs, "over": deployment.chip.name, "ratio": theirs / ours,
        "table_6_ratio": measured[other.chip.name] / measured[deployment.chip.name] if known else None,
    }


def _warnings(deployment: Deployment, decode: list[dict[str, Any]], prefill: list[dict[str, Any]]) -> list[str]:
    """Where the cells that fit leave what the chip's figures were fitted on."""
    tokens = [row["prompt_tokens"] for row in prefill if row["fits"]]
    steps = [row for row in decode if row["fits"]]
    contexts = [*tokens, *(row["context_tokens"] for row in steps)]
    return validity_warnings(deployment, max_batch=max((row["batch"] for row in steps), default=None),
                             max_tokens=max(tokens, default=None), max_context=max(contexts, default=None))


def _decode_row(deployment: Deployment, batch: int, context: int) -> dict[str, Any]:
    report = describe_iteration(deployment, decode=[context] * batch)
    return {"batch": batch, "context_tokens": context, **_row(report)}


def _prefill_row(deployment: Deployment, tokens: int) -> dict[str, Any]:
    report = describe_iteration(deployment, prefill=[(tokens, tokens)])
    return {"prompt_tokens": tokens, **_row(report)}


def _row(report: IterationReport) -> dict[str, Any]:
    return {
        "latency_s": report.latency_s, "tokens_per_s": report.tokens_per_s, "bottleneck": report.bottleneck,
        "kv_share": report.kv_share, "fits": report.kv_share <= 1,
        "operator_shares": report.operator_shares, "kind_shares": report.kind_shares,
        "resource_shares": report.resource_shares,
    }


def _sizes(name: str, values: Sequence[int]) -> list[int]:
    if isinstance(values, (str, int)) or not values:
        raise UserError(f"{name} must be a list of whole numbers, got '{values}'")
    for value in values:
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise UserError(f"{name} must hold whole numbers of at least 1, got '{value}'")
    return list(values)


def _throughput_arguments(values: Mapping[str, float]) -> dict[str, Any]:
    for name, value in values.items():
        if name not in _THROUGHPUT_KEYS:
            raise UserError(f"unknown key 'throughput.{name}'{nearest(name, _THROUGHPUT_KEYS)}; "
                            f"expected: {', '.join(_THROUGHPUT_KEYS)}")
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise UserError(f"throughput.{name} must be a number, got '{value}'")
    for name in ("batch", "prompts_per_prefill"):
        if name in values and not isinstance(values[name], int):
            raise UserError(f"throughput.{name} must be a whole number, got '{values[name]}'")
    return dict(values)
