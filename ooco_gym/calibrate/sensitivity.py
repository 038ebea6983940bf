"""How much each constant of a chip matters: what changes when it is a fifth larger or smaller.

`python -m ooco_gym.calibrate.sensitivity` prints the table of docs/calibration.md for the Ascend 910C, whose constants
are the engine's own and were never measured in public.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from ooco_gym.perf.deployment import Deployment
from ooco_gym.perf.specs import ChipSpec, load_chip, load_model
from ooco_gym.perf.table import PS_PER_S, cost_table, decode_latency_ps, prefill_latency_ps

CHANGE = 0.2
BATCH, CONTEXT, PROMPT = 64, 2048, 4096
CASES = (("qwen2_5_7b", 1), ("qwen2_5_72b", 4))
_OVERHEADS = ("prefill_overhead_s", "decode_overhead_s", "prefill_layer_overhead_s", "decode_layer_overhead_s")
CONSTANTS = ("gemm_flops_per_s", "gemm_memory_bytes_per_s", "prefill_attention_flops_per_s",
             "decode_attention_flops_per_s", "attention_memory_bytes_per_s", *_OVERHEADS, "allreduce_bytes_per_s",
             "allreduce_latency_s")


class Outcome(NamedTuple):
    """What a deployment does: a decode step and a prefill in seconds, and the batch at which GEMMs saturate."""

    decode_s: float
    prefill_s: float
    saturation: int


class Change(NamedTuple):
    """Outcomes with one constant smaller and larger."""

    constant: str
    smaller: Outcome
    larger: Outcome


def outcome(chip: ChipSpec, model: str, tp: int, timing: str = "ooco") -> Outcome:
    """A decode step of `BATCH` requests at `CONTEXT` tokens each, a prefill of `PROMPT`, and `bs_sat`."""
    deployment = Deployment(chip, load_model(model), tp=tp, timing=timing)
    table = cost_table(deployment, max_batch=BATCH, max_prefill_tokens=PROMPT)
    return Outcome(decode_latency_ps(table, BATCH, BATCH * CONTEXT) / PS_PER_S,
                   prefill_latency_ps(table, [(PROMPT, PROMPT)]) / PS_PER_S, deployment.bs_sat)


def sensitivity(chip: ChipSpec, model: str, tp: int, constants: Sequence[str] = CONSTANTS) -> list[Change]:
    """Outcomes with each constant changed alone; constants that are 0 are left out."""
    found = []
    for name in constants:
        value = getattr(chip, name)
        if value:
            smaller, larger = (outcome(replace(chip, **{name: factor * value}), model, tp)
                               for factor in (1 - CHANGE, 1 + CHANGE))
            found.append(Change(name, smaller, larger))
    return found


def markdown(chip: ChipSpec, model: str, tp: int) -> str:
    """The table of one deployment, changes in percent against the chip as it is."""
    now = outcome(chip, model, tp)
    lines = [f"`{model}` on `{chip.name}`, tp {tp}: decode step {1e3 * now.decode_s:.2f} ms ({BATCH} requests at "
             f"{CONTEXT:,} tokens), prefill {1e3 * now.prefill_s:.1f} ms ({PROMPT:,} tokens), saturation at a batch of "
             f"{now.saturation}.", "",
             f"| constant | value | decode step at −{CHANGE:.0%} / +{CHANGE:.0%} | prefill | saturation batch |",
             "|---|---|---|---|---|"]
    for change in sensitivity(chip, model, tp):
        cells = [" / ".join(f"{100 * (getattr(item, key) / getattr(now, key) - 1):+.1f} %" for item in change[1:])
                 for key in ("decode_s", "prefill_s")]
        batches = f"{change.smaller.saturation} / {change.larger.saturation}"
        lines.append(f"| `{change.constant}` | {getattr(chip, change.constant):.4g} | {cells[0]} | {cells[1]} | "
                     f"{batches} |")
    return "\n".join(lines)


def main() -> None:
    """Prints the tables of the Ascend 910C."""
    chip = load_chip("ascend_910c")
    print("\n\n".join(markdown(chip, model, tp) for model, tp in CASES))


if __name__ == "__main__":
    main()
