"""Whether a fit is any good: a word for its errors on what it has not seen, and what to do where it is poor."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

GOOD, FAIR = (5.0, 15.0), (10.0, 30.0)
"""Greatest median and 90th percentile of the errors, in percent, of a fit that is good, and of one that is fair."""
_ADVICE = {
    "gemm": "measure more numbers of tokens of your model's widths",
    "attn_prefill": "measure more lengths, with and without tokens before them",
    "attn_decode": "measure more batch sizes and contexts that a server reaches",
    "all_reduce": "measure 1 kB to 100 MB over as many chips as are used",
    "elementwise": "measure each kind at two widths and up to the largest iteration",
    "engine": "measure more passes on a machine with nothing else to do",
}


class Verdict(NamedTuple):
    """One fit judged.

    Attributes:
        operation: what was fitted.
        form: of timing.
        verdict: "good", "fair" or "poor".
        median: of the errors, in percent.
        p90: 90th percentile of the errors, in percent.
        bias: median of the signed errors, in percent; + is predicted too long.
        advice: what to do, where it is poor; '' otherwise.
    """

    operation: str
    form: str
    verdict: str
    median: float
    p90: float
    bias: float
    advice: str


def word(median: float, p90: float) -> str:
    """The verdict on a median and a 90th percentile of errors in percent."""
    for name, (middle, most) in (("good", GOOD), ("fair", FAIR)):
        if median <= middle and p90 <= most:
            return name
    return "poor"


def judge(operation: str, form: str, errors: Mapping[str, Any]) -> Verdict:
    """Judges a fit by its errors (`fitting.errors`)."""
    said = word(errors["median"], errors["p90"])
    return Verdict(operation, form, said, errors["median"], errors["p90"], errors["median_bias"],
                   _advice(operation, form) if said == "poor" else "")


def judged(figures: Mapping[str, Any]) -> list[Verdict]:
    """Every fit of a calibration.

    The roofline's operators (`timing=ooco`) are not judged one by one where its rates were fitted to whole iterations:
    these are what it is for.

    Args:
        figures: `held_out_shapes`, `held_out_architecture`, `whole_steps`, `held_out_iterations` of its summary.
    """
    whole = [("iterations, unseen architecture", figures["held_out_architecture"]),
             ("iterations, unseen sizes", figures["whole_steps"]),
             ("engine's iterations, unseen", figures["held_out_iterations"])]
    found, composed = [], any(forms for _, forms in whole)
    for operation, forms in figures["held_out_shapes"].items():
        for form, item in forms.items():
            if form == "ooco" and composed:
                continue
            found.append(judge(operation, form, item))
            found += [judge(f"{operation}: {kind}", form, part) for kind, part in item.get("by_kind", {}).items()]
    return found + [judge(operation, form, item) for operation, forms in whole for form, item in forms.items()]


def _advice(operation: str, form: str) -> str:
    first = operation.partition(":")[0]
    if first.startswith("iterations"):
        better = "take timing=extended or measured" if form == "ooco" else "take timing=measured"
        return f"{better}, or measure iterations of the engine itself (ooco-gym calibrate measure)"
    if first.startswith("engine"):
        return _ADVICE["engine"]
    more = _ADVICE.get(first, "measure more sizes")
    return f"{more}, or take timing=measured, which looks up what was measured in place of this fit"
