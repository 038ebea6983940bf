"""Fitting a workload to a trace: tide, bursts, lengths; what comes out is a workload's YAML."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from ooco_gym.errors import UserError, unknown
from ooco_gym.workload.arrivals import DAY_S, Arrivals, Bursts, OrnsteinUhlenbeck
from ooco_gym.workload.checks import Section
from ooco_gym.workload.checks import plain as plain_values
from ooco_gym.workload.describe import DISPERSION_S, FEWEST_WINDOWS, dispersion, ks, likeness, rank_correlation
from ooco_gym.workload.dispersion import expected_dispersion
from ooco_gym.workload.fit_arrivals import (
    FLAT,
    find_batches,
    find_bursts,
    fit_processes,
    fit_tide,
    spread_batches,
    without_tide,
)
from ooco_gym.workload.fit_sharing import Found, compare_sharing, find_sharing, fit_sharing
from ooco_gym.workload.generate import generate_lengths
from ooco_gym.workload.lengths import LengthModel, parse_lengths
from ooco_gym.workload.reading import Sample
from ooco_gym.workload.sharing import Chat

SIDES = ("prompt", "output")
ARRIVAL_FORMS = ("auto", "cox", "on_off", "poisson")
FEWEST_REQUESTS = 200
MOST_REQUESTS = 2_000_000       # whose arrivals are fitted; a tide is taken from all
BIN_S = (0.5, 2.0, 8.0)
BETTER = 0.7                    # on/off is picked where its score is below this share of the Cox process's
LONG_WINDOWS_S = (*DISPERSION_S, 600.0, 1200.0, 3600.0)
QUANTILES = (0.0, 0.001, 0.005, *(i / 100 for i in range(1, 100)), 0.995, 0.999, 1.0)


@dataclass(frozen=True)
class Fit:
    """A fitted workload.

    Attributes:
        spec: what a workload's YAML holds.
        report: how like it is to the trace, and what else was tried; JSON-able.
    """

    spec: dict[str, Any]
    report: dict[str, Any]


def fit(sample: Sample, *, name: str, source: str, seed: int = 1, arrivals: str = "auto",
        assume: Mapping[str, Any] | None = None, tell: Callable[[str], None] = lambda text: None) -> Fit:
    """Fits arrivals and lengths.

    Args:
        sample: a trace of at least 200 requests, or a set of lengths (its arrivals are then a Poisson process of
            one request a second).
        name: of the workload.
        source: where the data come from, for the YAML.
        seed: of the generators that are compared with the trace.
        arrivals: `cox` (OU processes), `on_off` (on/off bursts besides), `poisson`, or `auto`: on/off where gaps,
            counts and dispersion are clearly more alike with it.
        assume: lengths that the sample does not have: `prompt` or `output` to a mapping as a workload's YAML has it.
        tell: called with what is being done.

    Raises:
        UserError: too few requests, one of the two lengths is neither there nor assumed, or an unknown form.
    """
    if arrivals not in ARRIVAL_FORMS:
        raise unknown("form of arrivals", arrivals, ARRIVAL_FORMS)
    given = {side: value for side, value in (assume or {}).items() if value is not None}
    for side in SIDES:
        there = getattr(sample, f"{side}_tokens") is not None
        if there and side in given:
            raise UserError(f"'{sample.name}' has {side}_tokens: assume.{side} is for what a file does not have")
        if not there and side not in given:
            raise UserError(f"'{sample.name}' has no {side}_tokens: a workload needs both lengths; give "
                            f"assume.{side}, such as 'assume.{side}={{constant: 100}}'")
    if sample.requests < FEWEST_REQUESTS:
        raise UserError(f"'{sample.name}' holds {sample.requests} requests: a fit needs {FEWEST_REQUESTS} at least")
    assumed = [f"{side} lengths: given, not fitted" for side in given]
    notes = list(sample.notes)
    tell("lengths")
    length_spec, model, length_report = _fit_lengths(sample, given, seed)
    report: dict[str, Any] = {"requests": sample.requests, "lengths": length_report, "sharing": None}
    found = None
    if sample.trace is None:
        assumed.append("arrivals: a Poisson process of one request a second")
        process = Arrivals(1.0, FLAT)
        report |= {"form": "poisson", "arrivals": None}
    else:
        tell("shared prefixes")
        found = find_sharing(sample.trace, model)
        base, more = _base(sample.trace.arrival_s, seed)
        assumed += more
        if found is not None:
            found = fit_sharing(found, sample.trace, base, model, seed)
        chat = found.sharing if found and isinstance(found.sharing, Chat) else None
        process, arrival_report, more = _fit_arrivals(base, sample.trace.arrival_s, arrivals, seed, tell, chat)
        if found is not None:
            report["sharing"], last = compare_sharing(found, sample.trace, process, model, seed)
            more += found.assumed
            if chat is None and len(last):      # documents and questions make prompts of their own
                length_report["prompt"]["ks"] = ks(last.prompt_tokens, sample.trace.prompt_tokens)
        report |= arrival_report
        assumed += more
        notes += _doubts(report["arrivals"], sample.trace.arrival_s, process.batch_s)
    spec = {
        "name": name, "description": f"Fitted to {sample.name}.", "source": source, "licence": None,
        "measured": ", ".join(_measured(process, found, model, [side for side in SIDES if side not in given], sample)),
        "assumed": "; ".join(assumed), "mean_rate_per_s": _round(process.mean_rate_per_s, 6),
        "tide": [_round(x, 5) for x in process.tide] if len(set(process.tide)) > 1 else None,
        "ou": [{"sigma": _round(x.sigma), "tau_s": _round(x.tau_s)} for x in process.ou],
        "bursts": {key: _round(x) for key, x in asdict(process.bursts).items()} if process.bursts else None,
        "batch_s": process.batch_s or None,
        "lengths": length_spec, "length_correlation": model.correlation or None,
        "sharing": found.spec if found else None,
    }
    return Fit(spec, {**report, "assumed": assumed, "notes": notes})


def _measured(process: Arrivals, found: Found | None, model: LengthModel, sides: Sequence[str],
              sample: Sample) -> list[str]:
    """Returns what of the workload comes from the data, in words."""
    there = sample.trace is not None
    known = {"mean rate": there, "tide": len(set(process.tide)) > 1,
             "OU processes": bool(process.ou), "on/off bursts": process.bursts is not None,
             "batches": process.batch_s > 0, **{f"{side} lengths": side in sides for side in SIDES},
             "rank correlation of lengths": model.correlation != 0, "sharing of prefixes": found is not None}
    return [what for what, is_known in known.items() if is_known]


def _base(arrival_s: np.ndarray, seed: int) -> tuple[Arrivals, list[str]]:
    """Returns the process without its bursts, and what was assumed."""
    if arrival_s[-1] <= arrival_s[0]:
        raise UserError("all requests arrive at the same time: there are no arrivals to fit")
    batch_s = find_batches(arrival_s)
    tide, rate, assumed = fit_tide(spread_batches(arrival_s, batch_s, seed) if batch_s else arrival_s)
    return Arrivals(rate, tide, batch_s=batch_s), assumed


def _fit_arrivals(base: Arrivals, arrival_s: np.ndarray, form: str, seed: int, tell: Callable[[str], None],
                  chat: Chat | None) -> tuple[Arrivals, dict[str, Any], list[str]]:
    assumed: list[str] = []
    part = arrival_s[:MOST_REQUESTS]
    if len(part) < len(arrival_s):
        assumed.append(f"bursts are those of the first {MOST_REQUESTS:,} requests")
    plain = without_tide(spread_batches(part, base.batch_s, seed) if base.batch_s else part, base.tide)
    tried: dict[str, tuple[Arrivals, float]] = {}
    if form in ("auto", "cox", "poisson"):
        tell("Cox process")
        tried["cox"] = _best(base, plain, part, [None], seed, chat, 0 if form == "poisson" else None)
    if form in ("auto", "on_off"):
        tell("on/off bursts")
        found = [find_bursts(_bins(plain, bin_s), bin_s) for bin_s in BIN_S]
        candidates = [bursts for bursts in found if bursts is not None]
        if candidates:
            tried["on_off"] = _best(base, plain, part, candidates, seed, chat)
        elif form == "on_off":
            raise UserError("no on/off bursts were found in this trace; expected arrivals=auto, cox or poisson")
    chosen = min(tried, key=lambda key: tried[key][1] * (BETTER if key == "cox" else 1.0))
    process = tried[chosen][0]
    tell("comparison")
    # By other seeds than those the form was chosen by.
    alike = likeness(process, part, seed + 1, most=100, chat=chat)
    shown = "poisson" if chosen == "cox" and not process.ou else chosen
    return process, {"form": shown, "arrivals": alike.describe(),
                     "scores": {key: unlike for key, (_, unlike) in tried.items()}}, assumed


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


def _best(base: Arrivals, plain: np.ndarray, arrival_s: np.ndarray, candidates: Sequence[Bursts | None],
          seed: int, chat: Chat | None, most: int | None = None) -> tuple[Arrivals, float]:
    """Fits the OU processes beside each on/off candidate; returns the most alike, and how unlike it still is."""
    fitted = [_with_processes(base, plain, arrival_s, bursts, seed, most, chat) for bursts in candidates]
    return min(fitted, key=lambda item: item[1])


def _with_processes(base: Arrivals, plain: np.ndarray, arrival_s: np.ndarray, bursts: Bursts | None, seed: int,
                    most: int | None, chat: Chat | None) -> tuple[Arrivals, float]:
    """Fits OU processes to what the dispersion shows beside `bursts`; `plain` are the arrivals without their tide.

    How unlike the outcome is to the trace: KS of gaps, mean KS of counts, and 0.3 times the root mean square of the
    dispersion's log ratio, in closed form (played, it would need hundreds of seeds to tell two forms apart).
    """
    span_s = float(plain[-1] - plain[0])
    rate = (len(plain) - 1) / span_s
    measured = [(window_s, dispersion(plain, window_s)) for window_s in LONG_WINDOWS_S]
    known = [(window_s, value) for window_s, value in measured if value is not None]
    ou: tuple[OrnsteinUhlenbeck, ...] = ()
    misfit = 0.0
    if known:
        window_s, target = np.array(known).T
        windows = np.maximum((span_s // window_s).astype(np.int64), FEWEST_WINDOWS)
        most = (2 if bursts else 3) if most is None else most
        ou = tuple(_rounded(x) for x in fit_processes(rate, window_s, windows, target, bursts=bursts, most=most,
                                                       chat=chat))
        found = expected_dispersion(rate, ou, bursts, window_s, windows, chat)
        misfit = float(np.sqrt(np.mean(np.log(np.maximum(found, 1e-3) / np.maximum(target, 1e-3)) ** 2)))
    process = replace(base, ou=ou, bursts=bursts)
    alike = likeness(process, arrival_s, seed, chat=chat, fewest=1)
    return process, alike.ks_gaps + alike.ks_counts + 0.3 * misfit


def _bins(arrival_s: np.ndarray, bin_s: float) -> np.ndarray:
    return np.bincount(((arrival_s - arrival_s[0]) // bin_s).astype(np.int64))


def _rounded(process: OrnsteinUhlenbeck) -> OrnsteinUhlenbeck:
    return OrnsteinUhlenbeck(_round(process.sigma), float(np.clip(_round(process.tau_s), 0.2, DAY_S)))


def _fit_lengths(sample: Sample, given: Mapping[str, Any],
                 seed: int) -> tuple[dict[str, Any], LengthModel, dict[str, Any]]:
    """Returns (what the YAML says, the same parsed, how like it is)."""
    spec: dict[str, Any] = {}
    report: dict[str, Any] = {"rank_correlation": None}
    measured = {side: np.asarray(tokens) for side in SIDES
                if (tokens := getattr(sample, f"{side}_tokens")) is not None}
    for side in SIDES:
        if side in given:
            spec[side] = plain_values(given[side])
            continue
        tokens = measured[side]
        spec[side] = {"quantiles": list(QUANTILES), "tokens": [_round(x, 6) for x in np.quantile(tokens, QUANTILES)],
                      "mean": _round(float(tokens.mean()), 6)}
    if len(measured) == 2:
        report["rank_correlation"] = rank_correlation(measured["prompt"], measured["output"])
    model = parse_lengths(Section(spec, "fit", "assume" if given else ""), round(report["rank_correlation"] or 0.0, 3))
    drawn = dict(zip(SIDES, generate_lengths(model, 200_000, seed, stream="fit"), strict=True))
    for side in SIDES:
        known = side in measured
        report[side] = {"ks": ks(drawn[side], measured[side]) if known else None,
                        "mean": float((measured if known else drawn)[side].mean())}
    report["rank_correlation_model"] = rank_correlation(*drawn.values())
    return spec, model, report


def _round(value: float, digits: int = 4) -> float:
    return float(f"{float(value):.{digits}g}")
