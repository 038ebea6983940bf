"""How much each of the engine's constants for the 910C matters, since none was measured in public."""

from __future__ import annotations

from typing import Any

from experiments.validity.markdown import signed, table
from experiments.validity.section import Context, Figures, Section
from ooco_gym.calibrate import sensitivity as tool
from ooco_gym.perf.specs import load_chip

CHIP = "ascend_910c"
OUTCOMES = ("decode_s", "prefill_s")


def measure(context: Context) -> dict[str, Any]:
    """Outcomes with each constant a fifth smaller and larger."""
    chip, found = load_chip(CHIP), []
    for model, tp in tool.CASES:
        now = tool.outcome(chip, model, tp)
        changes = {}
        for change in tool.sensitivity(chip, model, tp):
            ends = {key: [100 * (getattr(item, key) / getattr(now, key) - 1) for item in change[1:]]
                    for key in OUTCOMES}
            changes[change.constant] = {"value": getattr(chip, change.constant), **ends,
                                        "saturation": [item.saturation for item in change[1:]]}
        found.append({"model": model, "tp": tp, **now._asdict(), "changes": changes})
    return {"change": tool.CHANGE, "batch": tool.BATCH, "context": tool.CONTEXT, "prompt": tool.PROMPT,
            "deployments": found}


def write(figures: Figures) -> str:
    """A table for each deployment, with only the constants that change something."""
    change = 100 * figures["change"]
    parts = [f"Each constant alone, {change:.0f} % smaller / larger: change of a decode step ({figures['batch']} "
             f"requests at {figures['context']:,} tokens), of a prefill ({figures['prompt']:,} tokens), and the "
             "saturation batch. Constants that change none of them are left out."]
    for item in figures["deployments"]:
        rows = [[f"`{name}`", _value(name, one["value"]),
                 *(" / ".join(signed(value) for value in one[key]) for key in OUTCOMES),
                 " / ".join(f"{value:,}" for value in one["saturation"])]
                for name, one in item["changes"].items() if _matters(one, item)]
        parts.append(f"`{item['model']}`, tp {item['tp']}: decode {1e3 * item['decode_s']:.1f} ms, prefill "
                     f"{1e3 * item['prefill_s']:.0f} ms, saturation at {item['saturation']}.")
        parts.append(table(["constant", "value", "decode step", "prefill", "saturation"], rows))
    return "\n\n".join(parts)


def _value(name: str, value: float) -> str:
    if name.endswith("flops_per_s"):
        return f"{value / 1e12:g} TFLOP/s"
    if name.endswith("bytes_per_s"):
        return f"{value / 1e9:g} GB/s"
    return f"{1e3 * value:g} ms" if value >= 1e-3 else f"{1e6 * value:g} µs"


def _matters(one: Figures, item: Figures) -> bool:
    moved = max(abs(value) for key in OUTCOMES for value in one[key])
    return moved >= 0.05 or any(value != item["saturation"] for value in one["saturation"])


SECTION = Section(430, "Ascend 910C: sensitivity to each constant", measure, write)
