"""Fitting a workload to a trace: tide, bursts, lengths, shared prefixes; what comes out is a workload's YAML."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ooco_gym.errors import UserError
from ooco_gym.workload.arrivals import Arrivals
from ooco_gym.workload.checks import Section
from ooco_gym.workload.describe import ks, rank_correlation
from ooco_gym.workload.fit_arrivals import base_of, fit_arrivals, likeness
from ooco_gym.workload.fit_sharing import Found, compare_sharing, find_sharing, fit_sharing
from ooco_gym.workload.generate import generate_lengths
from ooco_gym.workload.lengths import LengthModel, parse_lengths
from ooco_gym.workload.sharing import Chat
from ooco_gym.workload.trace import Trace

SIDES = ("prompt", "output")
FEWEST_REQUESTS = 200
QUANTILES = (0.0, 0.001, 0.005, *(i / 100 for i in range(1, 100)), 0.995, 0.999, 1.0)


@dataclass(frozen=True)
class Fit:
    """A fitted workload.

    Attributes:
        spec: what a workload's YAML holds.
        report: how like it is to the trace; JSON-able.
    """

    spec: dict[str, Any]
    report: dict[str, Any]


def fit(trace: Trace, *, name: str, source: str, seed: int = 1,
        tell: Callable[[str], None] = lambda text: None) -> Fit:
    """Fits arrivals, lengths and what prompts share.

    Args:
        trace: of at least 200 requests.
        name: of the workload.
        source: where the data come from, for the YAML.
        seed: of the generators that are compared with the trace.
        tell: called with what is being done.

    Raises:
        UserError: too few requests, or all at once.
    """
    if len(trace) < FEWEST_REQUESTS:
        raise UserError(f"'{trace.name}' holds {len(trace)} requests: a fit needs {FEWEST_REQUESTS} at least")
    arrival_s = trace.arrival_s
    base, assumed = base_of(arrival_s, seed)
    tell("lengths")
    length_spec, model, lengths = _fit_lengths(trace, seed)
    tell("shared prefixes")
    found = find_sharing(trace, model)
    if found is not None:
        found = fit_sharing(found, trace, base, model, seed)
    chat = found.sharing if found and isinstance(found.sharing, Chat) else None
    tell("arrivals")
    process, more = fit_arrivals(base, arrival_s, seed, chat)
    assumed += more
    tell("comparison")
    alike, sharing = likeness(process, arrival_s, seed + 1, chat), None
    if found is not None:
        sharing, last = compare_sharing(found, trace, process, model, seed)
        assumed += found.assumed
        if chat is None and len(last):      # documents and questions make prompts of their own
            lengths["prompt"]["ks"] = ks(last.prompt_tokens, trace.prompt_tokens)
    spec = {
        "name": name, "description": f"Fitted to {trace.name}.", "source": source, "licence": None,
        "measured": ", ".join(_measured(process, found, model)), "assumed": "; ".join(assumed),
        "mean_rate_per_s": _round(process.mean_rate_per_s),
        "tide": [_round(x, 5) for x in process.tide] if len(set(process.tide)) > 1 else None,
        "ou": [{"sigma": x.sigma, "tau_s": x.tau_s} for x in process.ou], "batch_s": process.batch_s or None,
        "lengths": length_spec, "length_correlation": model.correlation or None,
        "sharing": found.spec if found else None,
    }
    return Fit(spec, {"requests": len(trace), "lengths": lengths, "arrivals": alike, "sharing": sharing,
                      "assumed": assumed, "notes": [*trace.notes, *_doubts(alike, arrival_s, process.batch_s)]})


def _measured(process: Arrivals, found: Found | None, model: LengthModel) -> list[str]:
    """What of the workload comes from the data, in words."""
    known = {"mean rate": True, "tide": len(set(process.tide)) > 1,
             "OU processes": bool(process.ou), "batches": process.batch_s > 0, "prompt lengths": True,
             "output lengths": True, "rank correlation of lengths": model.correlation != 0,
             "sharing of prefixes": found is not None}
    return [what for what, is_known in known.items() if is_known]


def _doubts(alike: dict[str, Any], arrival_s: np.ndarray, batch_s: float) -> list[str]:
    """Says where the generator is not like the trace."""
    doubts = []
    together = float(np.mean(np.diff(arrival_s) == 0))
    if together > 0.05 and not batch_s:
        doubts.append(f"{100 * together:.3g} % of the requests arrive at the same instant as the one before, but not "
                      "at a regular step: the generator has no such batches")
    if alike["ks_gaps"] > 0.05:
        doubts.append(f"the generator's gaps are not the trace's: KS {alike['ks_gaps']:.3f}")
    off = [f"{window} s" for window, item in alike["dispersion"].items()
           if item["ratio"] is None or abs(item["ratio"] - 1) > 0.1]
    if off:
        doubts.append(f"the dispersion differs by more than 10 % in windows of {', '.join(off)}")
    return doubts


def _fit_lengths(trace: Trace, seed: int) -> tuple[dict[str, Any], LengthModel, dict[str, Any]]:
    """Returns (what the YAML says, the same parsed, how like it is)."""
    measured = dict(zip(SIDES, (trace.prompt_tokens, trace.output_tokens), strict=True))
    spec = {side: {"quantiles": list(QUANTILES), "tokens": [_round(x) for x in np.quantile(tokens, QUANTILES)],
                   "mean": _round(float(tokens.mean()))} for side, tokens in measured.items()}
    correlation = rank_correlation(*measured.values())
    model = parse_lengths(Section(spec, "fit"), round(correlation or 0.0, 3))
    drawn: dict[str, np.ndarray] = dict(
        zip(SIDES, generate_lengths(model, 200_000, seed, stream="fit"), strict=True))
    report: dict[str, Any] = {side: {"ks": ks(drawn[side], tokens), "mean": float(tokens.mean())}
                              for side, tokens in measured.items()}
    return spec, model, {"rank_correlation": correlation, **report,
                         "rank_correlation_model": rank_correlation(*drawn.values())}


def _round(value: float, digits: int = 6) -> float:
    return float(f"{float(value):.{digits}g}")
