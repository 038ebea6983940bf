"""Fitting of a workload to a trace: hourly rates, bursts and lengths. The result is a workload's
YAML.

Ornstein-Uhlenbeck processes on the log-intensity are fitted to the index of dispersion (variance
over mean of counts), which a Cox process has in closed form (`expected_dispersion`). Shared
prefixes are not fitted: for a trace with them the fit names the `sharing` to add.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from ooco_gym.errors import UserError
from ooco_gym.workload.arrivals import BLOCK_S, DAY_S, Arrivals, OrnsteinUhlenbeck, tide_at
from ooco_gym.workload.describe import DISPERSION_S, FEWEST_WINDOWS, dispersion, ks, rank_correlation
from ooco_gym.workload.generate import WorkloadSpec, generate_lengths, play
from ooco_gym.workload.keyed import keyed_generator
from ooco_gym.workload.lengths import Constant, LengthModel, parse_lengths
from ooco_gym.workload.returns import fit_returns
from ooco_gym.workload.sharing import sharing_ratio
from ooco_gym.workload.trace import Trace

FEWEST_REQUESTS = 200
QUANTILES = (0.0, 0.001, 0.005, *(i / 100 for i in range(1, 100)), 0.995, 0.999, 1.0)

FLAT = (1.0,) * 24
TIDE_FROM_S = 20 * 3600.0
BATCHED_FROM = 0.3          # share of requests at the same time as the previous one
MOST_REQUESTS = 2_000_000   # used to fit bursts; the tide is fitted to all
MOST_PROCESSES = 3
FASTEST_S = 0.25            # correlation time; the generator's limit is 0.2 s
WIDEST = 1.5                # standard deviation of a log-intensity
CLOSE = 0.04                # RMS error of the logarithms at which no further process is added
FITTED_S = (*DISPERSION_S, 600.0, 1200.0, 3600.0)
PLAYED_REQUESTS, PLAYED_S, FEWEST_SEEDS, MOST_SEEDS = 2_000_000, 1_200_000.0, 4, 100
_TIDE_STEP_S, _POINTS = 30.0, 600
LEAST_RATIO = 0.02          # share of repeated prompt tokens from which the fit reports that it omits sharing


class WorkloadFit(NamedTuple):
    """A fitted workload: its YAML's content, and its likeness to the trace (JSON-able)."""

    spec: dict[str, Any]
    report: dict[str, Any]


def fit(trace: Trace, *, name: str, source: str, seed: int = 1,
        tell: Callable[[str], None] = lambda text: None) -> WorkloadFit:
    """Fits arrivals and lengths.

    Args:
        trace: of at least 200 requests.
        name: of the workload.
        source: where the data come from, for the YAML.
        seed: of the generators that are compared with the trace.
        tell: called with the name of each stage.

    Raises:
        UserError: too few requests, or all at once.
    """
    if len(trace) < FEWEST_REQUESTS:
        raise UserError(f"'{trace.name}' holds {len(trace)} requests: a fit needs {FEWEST_REQUESTS} at least")
    arrival_s = trace.arrival_s
    base, assumed = base_of(arrival_s, seed)
    tell("lengths")
    length_spec, model, lengths = _fit_lengths(trace, seed)
    tell("arrivals")
    process, more = fit_arrivals(base, arrival_s, seed)
    assumed += [*more, *_left_out(trace)]
    tell("comparison")
    alike = likeness(process, arrival_s, seed + 1)
    known = {"mean rate": True, "tide": len(set(process.tide)) > 1, "OU processes": bool(process.ou),
             "batches": process.batch_s > 0, "prompt lengths": True, "output lengths": True,
             "rank correlation of lengths": model.correlation != 0}
    spec = {
        "name": name, "description": f"Fitted to {trace.name}.", "source": source, "licence": None,
        "measured": ", ".join(what for what, is_known in known.items() if is_known), "assumed": "; ".join(assumed),
        "mean_rate_per_s": _round(process.mean_rate_per_s),
        "tide": [_round(x, 5) for x in process.tide] if known["tide"] else None,
        "ou": [{"sigma": x.sigma, "tau_s": x.tau_s} for x in process.ou], "batch_s": process.batch_s or None,
        "lengths": length_spec, "length_correlation": model.correlation or None,
    }
    return WorkloadFit(spec, {"requests": len(trace), "lengths": lengths, "arrivals": alike, "assumed": assumed,
                      "notes": [*trace.notes, *_doubts(alike, arrival_s, process.batch_s)]})


def _left_out(trace: Trace) -> list[str]:
    """Returns a sentence that names the `sharing` which the trace's shared prefixes need."""
    ratio = sharing_ratio(trace) or 0.0
    if ratio < LEAST_RATIO:
        return []
    returns = fit_returns(trace)
    chat = f"form: chat, ratio: {ratio:.2f}" if returns is None else ", ".join(f"{k}: {v}" for k, v in returns.items())
    return [f"prompts share no prefixes; {100 * ratio:.0f} % of the trace's prompt tokens lie in blocks seen before: "
            f"sharing: {{{chat}}}, or form: documents, makes such prompts (docs/workloads.md)"]


def _doubts(alike: dict[str, Any], arrival_s: np.ndarray, batch_s: float) -> list[str]:
    """Returns sentences on where the generator differs from the trace."""
    doubts = []
    together = float(np.mean(np.diff(arrival_s) == 0))
    if together > 0.05 and not batch_s:
        doubts.append(f"{100 * together:.3g} % of the requests arrive at the same instant as the previous one, but not "
                      "at regular intervals: the generator has no such batches")
    if alike["ks_gaps"] > 0.05:
        doubts.append(f"the generator's gaps differ from the trace's: KS {alike['ks_gaps']:.3f}")
    off = [f"{window} s" for window, item in alike["dispersion"].items()
           if item["ratio"] is None or abs(item["ratio"] - 1) > 0.1]
    if off:
        doubts.append(f"the dispersion differs by more than 10 % in windows of {', '.join(off)}")
    return doubts


def _fit_lengths(trace: Trace, seed: int) -> tuple[dict[str, Any], LengthModel, dict[str, Any]]:
    """Returns the YAML's `lengths`, the model parsed from them, and its likeness to the trace."""
    measured = {"prompt": trace.prompt_tokens, "output": trace.output_tokens}
    spec = {side: _quantiles(tokens) for side, tokens in measured.items()}
    correlation = rank_correlation(*measured.values())
    model = parse_lengths(spec, "fit", round(correlation or 0.0, 3))
    drawn = generate_lengths(model, 200_000, seed, stream="fit")
    report: dict[str, Any] = {side: {"ks": ks(ours, tokens), "mean": float(tokens.mean())}
                              for (side, tokens), ours in zip(measured.items(), drawn, strict=True)}
    return spec, model, {"rank_correlation": correlation, **report, "rank_correlation_model": rank_correlation(*drawn)}


def _quantiles(tokens: np.ndarray) -> dict[str, Any]:
    """Returns one side of a workload's `lengths`: quantiles, and the mean to which they are shifted."""
    return {"quantiles": list(QUANTILES), "tokens": [_round(x) for x in np.quantile(tokens, QUANTILES)],
            "mean": _round(float(tokens.mean()))}


def _round(value: float, digits: int = 6) -> float:
    return float(f"{float(value):.{digits}g}")


# --- Arrivals ---------------------------------------------------------------------------------------------------------
def base_of(arrival_s: np.ndarray, seed: int) -> tuple[Arrivals, list[str]]:
    """Returns rate, tide and batches of a trace, and what was assumed.

    Raises:
        UserError: all requests arrive at once.
    """
    if arrival_s[-1] <= arrival_s[0]:
        raise UserError("all requests arrive at the same time: there are no arrivals to fit")
    batch_s = find_batches(arrival_s)
    tide, rate, assumed = fit_tide(_unbatched(arrival_s, batch_s, seed))
    return Arrivals(rate, tide, batch_s=batch_s), assumed


def fit_tide(arrival_s: np.ndarray) -> tuple[tuple[float, ...], float, list[str]]:
    """Returns (24 hourly rates of mean 1, mean rate over a day, what was assumed)."""
    span_s = float(arrival_s[-1] - arrival_s[0])
    rate = (len(arrival_s) - 1) / span_s
    if span_s < TIDE_FROM_S:
        return FLAT, rate, ["no diurnal load: the trace is shorter than 20 hours"]
    edges = np.arange(np.floor(arrival_s[0] / 3600.0), np.ceil(arrival_s[-1] / 3600.0) + 1)
    counts = np.diff(np.searchsorted(arrival_s, edges * 3600.0))
    there_s = np.minimum(edges[1:] * 3600.0, arrival_s[-1]) - np.maximum(edges[:-1] * 3600.0, arrival_s[0])
    hour = np.mod(edges[:-1], 24).astype(np.int64)
    requests = np.bincount(hour, counts, minlength=24)
    exposed_s = np.bincount(hour, there_s, minlength=24)
    known = exposed_s > 600.0
    level = np.interp(np.arange(24), np.flatnonzero(known), (requests[known] / exposed_s[known]), period=24)
    level = np.maximum(level, 1e-4 * level.max())
    note = "the trace's time 0 is assumed to be midnight, and each day has the mean day's load curve"
    if not known.all():
        note += f"; hours {', '.join(str(x) for x in np.flatnonzero(~known))} are not in the trace"
    return tuple(float(x) for x in level / level.mean()), float(level.mean()), [note]


def find_batches(arrival_s: np.ndarray) -> float:
    """Returns the batch interval in seconds, 600 divided by a whole number; 0 without batches."""
    if len(arrival_s) < 2 or np.mean(np.diff(arrival_s) == 0) < BATCHED_FROM:
        return 0.0
    steps = np.diff(np.unique(arrival_s))
    step = float(np.median(steps))
    multiples = np.maximum(np.rint(steps / step), 1)
    if step < 0.01 or np.mean(np.abs(steps - multiples * step) < 0.05 * step) < 0.8:
        return 0.0
    return BLOCK_S / max(1, round(BLOCK_S / step))


def _unbatched(arrival_s: np.ndarray, batch_s: float, seed: int) -> np.ndarray:
    """Returns arrivals spread at random over their batch intervals, float64[n] sorted."""
    if not batch_s:
        return arrival_s
    return np.sort(arrival_s + batch_s * keyed_generator(seed, "fit/batches").random(len(arrival_s)))


def _without_tide(arrival_s: np.ndarray, tide: tuple[float, ...]) -> np.ndarray:
    """Returns the arrivals with time rescaled by the tide, so that their rate has none, float64[n]."""
    if len(set(tide)) == 1:
        return arrival_s
    grid = np.arange(arrival_s[0], arrival_s[-1] + 2 * _TIDE_STEP_S, _TIDE_STEP_S)
    level = tide_at(tide, (grid[1:] + grid[:-1]) / 2)
    return np.interp(arrival_s, grid, np.concatenate([[0.0], np.cumsum(level / level.mean() * _TIDE_STEP_S)]))


def fit_arrivals(base: Arrivals, arrival_s: np.ndarray, seed: int) -> tuple[Arrivals, list[str]]:
    """Returns the arrival process with fitted rate variation, and the assumptions made."""
    part = arrival_s[:MOST_REQUESTS]
    assumed = [f"bursts are fitted to the first {MOST_REQUESTS:,} requests"] if len(part) < len(arrival_s) else []
    plain = _without_tide(_unbatched(part, base.batch_s, seed), base.tide)
    span_s = float(plain[-1] - plain[0])
    known = [(window_s, value) for window_s in FITTED_S if (value := dispersion(plain, window_s)) is not None]
    if not known:
        return base, assumed
    window_s, measured = np.array(known).T
    windows = np.maximum((span_s // window_s).astype(np.int64), FEWEST_WINDOWS)
    return replace(base, ou=fit_processes((len(plain) - 1) / span_s, window_s, windows, measured)), assumed


def fit_processes(rate_per_s: float, window_s: np.ndarray, windows: np.ndarray,
                  measured: np.ndarray) -> tuple[OrnsteinUhlenbeck, ...]:
    """Returns the fewest OU processes, at most three, whose dispersion matches the measured one.

    The fit is least squares on the logarithms. It returns no process if all measured values are
    within four standard deviations of a Poisson process's.

    Args:
        rate_per_s: mean rate.
        window_s: float64[k].
        windows: int64[k], number of measured windows of that length.
        measured: float64[k], index of dispersion, > 0.
    """
    from scipy.optimize import least_squares

    longest_s = min(DAY_S, float(np.max(window_s * windows)) / 3)
    wanted = np.log(np.maximum(measured, 1e-3))

    def read(x: np.ndarray) -> tuple[OrnsteinUhlenbeck, ...]:
        return tuple(OrnsteinUhlenbeck(float(s), float(np.exp(t))) for s, t in x.reshape(-1, 2))

    def error(x: np.ndarray) -> np.ndarray:
        found = expected_dispersion(rate_per_s, read(x), window_s, windows)
        return np.log(np.maximum(found, 1e-3)) - wanted

    best = np.zeros(0)
    if np.all(np.abs(error(best)) <= 4 * np.sqrt(2 / windows)):
        return ()
    best_error = _rms(error(best))
    for count in range(1, MOST_PROCESSES + 1):
        if best_error <= CLOSE:
            break
        low = np.tile([0.0, np.log(FASTEST_S)], count)
        high = np.tile([WIDEST, np.log(max(longest_s, 2 * FASTEST_S))], count)
        for shares in ([0.35], [0.7]) if count == 1 else ([0.1, 0.8], [0.3, 0.6], [0.5, 0.95]):
            taus = [low[1] + share * (high[1] - low[1]) for share in (shares * count)[:count]]
            start = np.concatenate([[0.2, tau] for tau in taus])
            fitted = least_squares(error, np.clip(start, low + 1e-6, high - 1e-6), bounds=(low, high))
            if _rms(fitted.fun) < best_error - 0.005:
                best, best_error = fitted.x, _rms(fitted.fun)
    kept = [OrnsteinUhlenbeck(float(f"{one.sigma:.4g}"), float(np.clip(float(f"{one.tau_s:.4g}"), FASTEST_S, DAY_S)))
            for one in read(best) if one.sigma >= 0.005]
    return tuple(sorted(kept, key=lambda process: process.tau_s))


def _rms(values: np.ndarray) -> float:
    return float(np.sqrt(np.mean(values**2)))


def expected_dispersion(rate_per_s: float, ou: Sequence[OrnsteinUhlenbeck], window_s: np.ndarray,
                        windows: np.ndarray) -> np.ndarray:
    """Returns the expected variance over mean of counts, float64[k].

    Args:
        rate_per_s: mean rate.
        ou: processes on the log-intensity.
        window_s: float64[k].
        windows: int64[k], number of successive windows of that length.
    """
    lag = np.concatenate([[0.0], np.geomspace(1e-3, float(np.max(window_s * windows)), _POINTS)])
    exponent = np.zeros_like(lag)
    for process in ou:
        exponent += process.sigma**2 * np.exp(-lag / process.tau_s)
    relative = np.expm1(exponent)
    step = np.diff(lag)
    whole = np.concatenate([[0.0], np.cumsum(step * (relative[1:] + relative[:-1]) / 2)])
    first = np.concatenate([[0.0], np.cumsum(step * (lag[1:] * relative[1:] + lag[:-1] * relative[:-1]) / 2)])

    def variance_of(span_s: np.ndarray) -> np.ndarray:
        covered = span_s * np.interp(span_s, lag, whole) - np.interp(span_s, lag, first)
        return rate_per_s * span_s + 2 * rate_per_s**2 * covered

    return (variance_of(window_s) - variance_of(window_s * windows) / windows**2) / (rate_per_s * window_s)


def play_arrivals(arrivals: Arrivals, start_s: float, duration_s: float, seed: int) -> np.ndarray:
    """Returns the arrival times of one realisation, float64[n]."""
    model = WorkloadSpec("fit", arrivals, LengthModel(Constant(1), Constant(1)), 0.0, None)
    return play(model, start_s=start_s, duration_s=duration_s, seed=seed, stream="fit").arrival_s


def likeness(arrivals: Arrivals, arrival_s: np.ndarray, seed: int) -> dict[str, Any]:
    """Compares a generator over the trace's span, with 4 to 100 seeds, with the trace; JSON-able.

    Keys: `ks_gaps`, Kolmogorov-Smirnov distance of the gaps between arrivals; `dispersion`, by
    window `trace`, `model` and `ratio`; `seeds`.
    """
    arrival_s = arrival_s[:MOST_REQUESTS]
    start_s, span_s = float(arrival_s[0]), float(arrival_s[-1] - arrival_s[0])
    seeds = int(np.clip(min(PLAYED_REQUESTS // len(arrival_s), PLAYED_S // max(span_s, 1.0)), FEWEST_SEEDS, MOST_SEEDS))
    runs = [play_arrivals(arrivals, start_s, span_s, seed * 1000 + i) for i in range(seeds)]
    runs = [run for run in runs if len(run) > 1]

    table = {}
    for window_s in DISPERSION_S:
        trace = dispersion(arrival_s, window_s)
        if trace is not None:
            played = [dispersion(run, window_s, span_s - (run[0] - start_s)) or 0.0 for run in runs]
            model = float(np.mean(played or [0.0]))
            table[f"{window_s:g}"] = {"trace": trace, "model": model, "ratio": model / trace if trace else None}
    gaps = np.concatenate([np.diff(run) for run in runs] or [np.zeros(1)])
    return {"ks_gaps": ks(np.diff(arrival_s), gaps), "dispersion": table, "seeds": len(runs)}
