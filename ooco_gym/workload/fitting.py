"""Fitting a workload to a trace: tide, bursts, lengths, shared prefixes; what comes out is a workload's YAML.

OU processes on the log-intensity are fitted to the index of dispersion (variance over mean of counts), which a Cox
process has in closed form (`expected_dispersion`). What prompts have in common is found from prefix hashes; its figures
are moved until the generator, played over the trace's span, measures as the trace: a trace of finite length does not
see the prefixes of before, nor long times between turns, nor does the generator's own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from ooco_gym.errors import UserError
from ooco_gym.workload.arrivals import BLOCK_S, DAY_S, Arrivals, OrnsteinUhlenbeck, tide_at
from ooco_gym.workload.checks import Section
from ooco_gym.workload.describe import DISPERSION_S, FEWEST_WINDOWS, dispersion, ks, rank_correlation
from ooco_gym.workload.generate import WorkloadSpec, generate_lengths, play
from ooco_gym.workload.keyed import keyed_generator
from ooco_gym.workload.lengths import Constant, LengthModel, parse_lengths
from ooco_gym.workload.sharing import (
    MOST_ALIKE,
    MOST_MEAN_TURNS,
    Chat,
    ChatRatio,
    Groups,
    parse_chat,
    parse_groups,
    sharing_ratio,
)
from ooco_gym.workload.trace import BLOCK_TOKENS, Trace, with_blocks

FEWEST_REQUESTS = 200
QUANTILES = (0.0, 0.001, 0.005, *(i / 100 for i in range(1, 100)), 0.995, 0.999, 1.0)

FLAT = (1.0,) * 24
TIDE_FROM_S = 20 * 3600.0
BATCHED_FROM = 0.3          # share of requests at the same instant as the one before
MOST_REQUESTS = 2_000_000   # whose processes are fitted; a tide is taken from all
MOST_PROCESSES = 3
FASTEST_S = 0.25            # correlation time; the generator's own limit is 0.2 s
WIDEST = 1.5                # standard deviation of a log-intensity
CLOSE = 0.04                # root mean square of the logarithms below which no further process is sought
FITTED_S = (*DISPERSION_S, 600.0, 1200.0, 3600.0)
PLAYED_REQUESTS, PLAYED_S, FEWEST_SEEDS, MOST_SEEDS = 2_000_000, 1_200_000.0, 4, 100
_TIDE_STEP_S, _POINTS = 30.0, 600

LEAST_RATIO = 0.02          # below it no sharing is fitted
MOST_FOLLOWED = 200_000     # requests whose prefixes are followed
COMMON = 0.5                # of the requests begin with a block that all are taken to begin with
SHORTEST_S, LONGEST_S, USUAL_S = 0.1, 3600.0, 60.0     # mean time between turns
WIDEST_THINK = 2.5          # standard deviation of its logarithm
FEWEST_GAPS = 50            # from which their spread is fitted
LEAST_ALIKE = 0.05          # correlation below which the prompts of a conversation are taken for independent
STEPS, WHOLE_STEPS = 8, 3   # after the whole ones each is shorter, so that one play's chance counts less and less
PLAYS = 4                   # of the ratio that is reported


class Fit(NamedTuple):
    """A fitted workload: what its YAML holds, and how like it is to the trace (JSON-able)."""

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
    sharing = fit_sharing(trace, base, model, seed)
    chat = sharing.form if sharing and isinstance(sharing.form, Chat) else None
    tell("arrivals")
    process, more = fit_arrivals(base, arrival_s, seed, chat)
    assumed += more
    tell("comparison")
    alike = likeness(process, arrival_s, seed + 1, chat)
    if sharing is not None:
        assumed += sharing.assumed
        if chat is None:      # documents and questions make prompts of their own
            lengths["prompt"]["ks"] = sharing.prompt_ks
    known = {"mean rate": True, "tide": len(set(process.tide)) > 1, "OU processes": bool(process.ou),
             "batches": process.batch_s > 0, "prompt lengths": True, "output lengths": True,
             "rank correlation of lengths": model.correlation != 0, "sharing of prefixes": sharing is not None}
    spec = {
        "name": name, "description": f"Fitted to {trace.name}.", "source": source, "licence": None,
        "measured": ", ".join(what for what, is_known in known.items() if is_known), "assumed": "; ".join(assumed),
        "mean_rate_per_s": _round(process.mean_rate_per_s),
        "tide": [_round(x, 5) for x in process.tide] if known["tide"] else None,
        "ou": [{"sigma": x.sigma, "tau_s": x.tau_s} for x in process.ou], "batch_s": process.batch_s or None,
        "lengths": length_spec, "length_correlation": model.correlation or None,
        "sharing": sharing.spec if sharing else None,
    }
    return Fit(spec, {"requests": len(trace), "lengths": lengths, "arrivals": alike,
                      "sharing": sharing.report if sharing else None, "assumed": assumed,
                      "notes": [*trace.notes, *_doubts(alike, arrival_s, process.batch_s)]})


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
    measured = {"prompt": trace.prompt_tokens, "output": trace.output_tokens}
    spec = {side: {"quantiles": list(QUANTILES), "tokens": [_round(x) for x in np.quantile(tokens, QUANTILES)],
                   "mean": _round(float(tokens.mean()))} for side, tokens in measured.items()}
    correlation = rank_correlation(*measured.values())
    model = parse_lengths(Section(spec, "fit"), round(correlation or 0.0, 3))
    drawn = generate_lengths(model, 200_000, seed, stream="fit")
    report: dict[str, Any] = {side: {"ks": ks(ours, tokens), "mean": float(tokens.mean())}
                              for (side, tokens), ours in zip(measured.items(), drawn, strict=True)}
    return spec, model, {"rank_correlation": correlation, **report, "rank_correlation_model": rank_correlation(*drawn)}


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
        return FLAT, rate, ["no tide: the trace is shorter than 20 hours"]
    edges = np.arange(np.floor(arrival_s[0] / 3600.0), np.ceil(arrival_s[-1] / 3600.0) + 1)
    counts = np.diff(np.searchsorted(arrival_s, edges * 3600.0))
    there_s = np.minimum(edges[1:] * 3600.0, arrival_s[-1]) - np.maximum(edges[:-1] * 3600.0, arrival_s[0])
    hour = np.mod(edges[:-1], 24).astype(np.int64)
    requests = np.bincount(hour, counts, minlength=24)
    exposed_s = np.bincount(hour, there_s, minlength=24)
    known = exposed_s > 600.0
    level = np.interp(np.arange(24), np.flatnonzero(known), (requests[known] / exposed_s[known]), period=24)
    level = np.maximum(level, 1e-4 * level.max())
    note = "the trace's time 0 is taken for midnight, and each day's tide for the mean day's"
    if not known.all():
        note += f"; hours {', '.join(str(x) for x in np.flatnonzero(~known))} are not in the trace"
    return tuple(float(x) for x in level / level.mean()), float(level.mean()), [note]


def find_batches(arrival_s: np.ndarray) -> float:
    """Returns the step in seconds, a whole part of 600, at whose multiples requests arrive together; 0 if at none."""
    if len(arrival_s) < 2 or np.mean(np.diff(arrival_s) == 0) < BATCHED_FROM:
        return 0.0
    steps = np.diff(np.unique(arrival_s))
    step = float(np.median(steps))
    multiples = np.maximum(np.rint(steps / step), 1)
    if step < 0.01 or np.mean(np.abs(steps - multiples * step) < 0.05 * step) < 0.8:
        return 0.0
    return BLOCK_S / max(1, round(BLOCK_S / step))


def _unbatched(arrival_s: np.ndarray, batch_s: float, seed: int) -> np.ndarray:
    """The arrivals as they may have been before they were let in together, float64[n] sorted."""
    if not batch_s:
        return arrival_s
    return np.sort(arrival_s + batch_s * keyed_generator(seed, "fit/batches").random(len(arrival_s)))


def _without_tide(arrival_s: np.ndarray, tide: tuple[float, ...]) -> np.ndarray:
    """The arrivals on a clock that runs with the tide, float64[n]: there the rate has none."""
    if len(set(tide)) == 1:
        return arrival_s
    grid = np.arange(arrival_s[0], arrival_s[-1] + 2 * _TIDE_STEP_S, _TIDE_STEP_S)
    level = tide_at(tide, (grid[1:] + grid[:-1]) / 2)
    return np.interp(arrival_s, grid, np.concatenate([[0.0], np.cumsum(level / level.mean() * _TIDE_STEP_S)]))


def fit_arrivals(base: Arrivals, arrival_s: np.ndarray, seed: int, chat: Chat | None) -> tuple[Arrivals, list[str]]:
    """Returns the process with what its counts vary by, and what was assumed."""
    part = arrival_s[:MOST_REQUESTS]
    assumed = [f"bursts are those of the first {MOST_REQUESTS:,} requests"] if len(part) < len(arrival_s) else []
    plain = _without_tide(_unbatched(part, base.batch_s, seed), base.tide)
    span_s = float(plain[-1] - plain[0])
    known = [(window_s, value) for window_s in FITTED_S if (value := dispersion(plain, window_s)) is not None]
    if not known:
        return base, assumed
    window_s, measured = np.array(known).T
    windows = np.maximum((span_s // window_s).astype(np.int64), FEWEST_WINDOWS)
    return replace(base, ou=fit_processes((len(plain) - 1) / span_s, window_s, windows, measured, chat)), assumed


def fit_processes(rate_per_s: float, window_s: np.ndarray, windows: np.ndarray, measured: np.ndarray,
                  chat: Chat | None = None) -> tuple[OrnsteinUhlenbeck, ...]:
    """Returns the fewest OU processes, at most three, that bring the dispersion to what was measured.

    Least squares on the logarithms. None are taken where all that is measured lies within four standard deviations
    of what is expected without.

    Args:
        rate_per_s: mean rate.
        window_s: float64[k].
        windows: int64[k], how many of that length were measured.
        measured: float64[k], index of dispersion, > 0.
        chat: conversations beside them, or None.
    """
    from scipy.optimize import least_squares

    longest_s = min(DAY_S, float(np.max(window_s * windows)) / 3)
    wanted = np.log(np.maximum(measured, 1e-3))

    def read(x: np.ndarray) -> tuple[OrnsteinUhlenbeck, ...]:
        return tuple(OrnsteinUhlenbeck(float(s), float(np.exp(t))) for s, t in x.reshape(-1, 2))

    def error(x: np.ndarray) -> np.ndarray:
        found = expected_dispersion(rate_per_s, read(x), window_s, windows, chat)
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


def expected_dispersion(rate_per_s: float, ou: Sequence[OrnsteinUhlenbeck], window_s: np.ndarray, windows: np.ndarray,
                        chat: Chat | None = None) -> np.ndarray:
    """Returns the expected variance over mean of counts, float64[k].

    Turns of conversations are taken to follow each other at exponential times: with m turns and a mean time θ at the
    rate `h(s) = (1 - 1/m)/θ·e^(-s/(mθ))`, which adds `2∫(w-s)h(s)ds` for each request to a window's variance.

    Args:
        rate_per_s: mean rate.
        ou: processes on the log-intensity.
        window_s: float64[k].
        windows: int64[k], how many windows of that length in a row are measured.
        chat: conversations, or None.
    """
    turns, think_s = (chat.mean_turns, chat.think_s) if chat is not None else (1.0, 1.0)
    end = 1 / (turns * think_s)
    lag = np.concatenate([[0.0], np.geomspace(1e-3, float(np.max(window_s * windows)), _POINTS)])
    exponent = np.zeros_like(lag)
    for process in ou:
        exponent += process.sigma**2 * _seen(process.tau_s, lag, turns, think_s)
    relative = np.expm1(exponent)
    step = np.diff(lag)
    whole = np.concatenate([[0.0], np.cumsum(step * (relative[1:] + relative[:-1]) / 2)])
    first = np.concatenate([[0.0], np.cumsum(step * (lag[1:] * relative[1:] + lag[:-1] * relative[:-1]) / 2)])

    def variance_of(span_s: np.ndarray) -> np.ndarray:
        follow = 2 * (1 - 1 / turns) / think_s * (span_s / end + np.expm1(-end * span_s) / end**2)
        return rate_per_s * (span_s + follow) + 2 * rate_per_s**2 * (
            span_s * np.interp(span_s, lag, whole) - np.interp(span_s, lag, first))

    return (variance_of(window_s) - variance_of(window_s * windows) / windows**2) / (rate_per_s * window_s)


def _seen(tau_s: float, lag_s: np.ndarray, turns: float, think_s: float) -> np.ndarray:
    """The covariance that a process of covariance `e^(-s/τ)` on the beginnings of conversations has in the requests.

    With a = 1/(mθ) and μ = 1/θ the filter's gain is `(μ² + ω²)/(a² + ω²)/m²`; partial fractions give the covariance.
    """
    if turns <= 1:
        return np.exp(-lag_s / tau_s)
    rate, own = 1 / think_s, 1 / tau_s
    end = rate / turns
    own = own * 1.001 if abs(own / end - 1) < 1e-3 else own     # the two terms' poles must not meet
    fast = (rate**2 - own**2) / (end**2 - own**2) * np.exp(-own * lag_s)
    slow = own / end * (rate**2 - end**2) / (own**2 - end**2) * np.exp(-end * lag_s)
    return (fast + slow) / turns**2


def play_arrivals(arrivals: Arrivals, start_s: float, duration_s: float, seed: int,
                  chat: Chat | None = None) -> np.ndarray:
    """Returns the arrival times of one realisation, float64[n]."""
    model = WorkloadSpec("fit", arrivals, LengthModel(Constant(1), Constant(1)), 0.0, chat)
    return play(model, start_s=start_s, duration_s=duration_s, seed=seed, stream="fit").arrival_s


def likeness(arrivals: Arrivals, arrival_s: np.ndarray, seed: int, chat: Chat | None = None) -> dict[str, Any]:
    """Plays a generator over the trace's own span, with 4 to 100 seeds, and measures both alike; JSON-able.

    Keys: `ks_gaps`, Kolmogorov and Smirnov's distance of the gaps between arrivals; `dispersion`, by window `trace`,
    `model` and `ratio`; `seeds`.
    """
    arrival_s = arrival_s[:MOST_REQUESTS]
    start_s, span_s = float(arrival_s[0]), float(arrival_s[-1] - arrival_s[0])
    seeds = int(np.clip(min(PLAYED_REQUESTS // len(arrival_s), PLAYED_S // max(span_s, 1.0)), FEWEST_SEEDS, MOST_SEEDS))
    runs = [play_arrivals(arrivals, start_s, span_s, seed * 1000 + i, chat) for i in range(seeds)]
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


# --- What prompts share -----------------------------------------------------------------------------------------------
class Measured(NamedTuple):
    """What a generator of conversations is to measure: share of prompt tokens seen before, of requests that follow an
    earlier one, mean time between turns and standard deviation of its logarithm (0: exponential)."""

    ratio: float
    shares: float
    think_s: float
    sigma: float


class Prefixes(NamedTuple):
    """What following each request's prefix through the requests before it tells."""

    common_blocks: int  # that more than half of the requests begin with
    shares: float  # of the requests, those that have more than these in common with one before
    extends: float  # of those, the share that holds the whole prompt of the latest such request
    gap_s: np.ndarray  # float64[k], seconds since that one, of those that extend it
    group_sizes: np.ndarray  # int64[m], requests by their first block that is not common, largest first, no single ones


@dataclass(frozen=True)
class Sharing:
    """How the prompts of a trace share: what a workload's YAML says of it, the same parsed, how like it is (by other
    seeds than it was fitted with), Kolmogorov and Smirnov's distance of its prompts, and what the trace does not tell.
    """

    spec: dict[str, Any]
    form: Chat | Groups
    report: dict[str, Any]
    prompt_ks: float
    assumed: list[str]


def fit_sharing(trace: Trace, process: Arrivals, lengths: LengthModel, seed: int) -> Sharing | None:
    """Returns the form that a trace's prompts share by, each of its figures moved by what its own measure is off in a
    play (bursts make no difference to them); None where they do not share, or the trace has no hashes to tell.

    Prompts that mostly hold the whole of an earlier one are conversations, others begin with documents.
    """
    ratio = sharing_ratio(trace)
    if ratio is None or ratio < LEAST_RATIO:
        return None
    there = follow(trace)
    chat = there.shares == 0 or there.extends >= 0.5
    wanted = Measured(ratio, there.shares, float(there.gap_s.mean()) if len(there.gap_s) else USUAL_S,
                      _gap_spread(there.gap_s))

    def formed() -> tuple[dict[str, Any], Chat | Groups]:
        return _chat(wanted, lengths, there) if chat else _documents(wanted, there)

    def played(number: int) -> Trace:
        return play(WorkloadSpec("fit", process, lengths, 0.0, formed()[1]), start_s=float(trace.arrival_s[0]),
                    duration_s=float(trace.arrival_s[-1] - trace.arrival_s[0]), seed=seed + number, stream="fit")

    for step in range(STEPS):
        run = played(step)
        if run.prefix_hashes is not None and len(run):
            wanted = _moved(wanted, ratio, there, run, 1 / (1 + max(0, step - WHOLE_STEPS)))
    runs = [played(STEPS + number) for number in range(PLAYS)]
    spec, form = formed()
    model = float(np.mean([sharing_ratio(run) or 0.0 for run in runs]))
    report = {"form": spec["form"], "trace": ratio, "model": model}
    return Sharing(spec, form, report, ks(runs[-1].prompt_tokens, trace.prompt_tokens) if len(runs[-1]) else 1.0, [
        "within a conversation prompts grow", f"turns follow each other after {spec['think_s']:.3g} s in the mean, "
        + (f"lognormally (sigma {wanted.sigma:.2g})" if wanted.sigma else "exponentially")] if chat else [
        "documents have one length each"])


def _moved(wanted: Measured, ratio: float, there: Prefixes, run: Trace, gain: float) -> Measured:
    """What is wanted, moved towards the trace's ratio and share of followers, and towards gaps whose logarithms have
    its mean and spread."""
    here = follow(run)
    wanted = wanted._replace(
        ratio=float(np.clip(wanted.ratio + gain * (ratio - (sharing_ratio(run) or 0.0)), 0.01, 0.99)),
        shares=float(np.clip(wanted.shares + gain * (there.shares - here.shares), 0.0, 0.95)))
    if not len(there.gap_s) or not len(here.gap_s):
        return wanted
    log, found = (np.log(np.maximum(one.gap_s, SHORTEST_S)) for one in (there, here))
    longer, wider = wanted.think_s * np.exp(gain * np.clip(log.mean() - found.mean(), -1.0, 1.0)), wanted.sigma
    if wider:   # the logarithms tell the median; a lognormal's mean grows with its spread
        wider = float(np.clip(wider * (log.std() / max(found.std(), 0.05)) ** gain, 0.05, WIDEST_THINK))
        longer *= np.exp((wider**2 - wanted.sigma**2) / 2)
    return wanted._replace(think_s=float(np.clip(longer, SHORTEST_S, LONGEST_S)), sigma=wider)


def _gap_spread(gap_s: np.ndarray) -> float:
    """The standard deviation of the logarithm where gaps are rather lognormal than exponential; otherwise 0."""
    if len(gap_s) < FEWEST_GAPS:
        return 0.0
    gap_s = np.maximum(gap_s, SHORTEST_S)
    log = np.log(gap_s)
    sigma = max(float(log.std()), 0.05)
    exponential = -np.log(gap_s.mean()) - 1.0
    lognormal = -log.mean() - np.log(sigma) - 0.5 * np.log(2 * np.pi) - 0.5
    return min(sigma, WIDEST_THINK) if lognormal > exponential + 2.0 / len(gap_s) else 0.0


def _chat(wanted: Measured, lengths: LengthModel, there: Prefixes) -> tuple[dict[str, Any], Chat]:
    """Conversations of a ratio in which so large a share of the requests follows an earlier one.

    The ratio follows from how many turns conversations have and how alike their prompts are; both are moved, the
    ratio into what is possible and the likeness to that share of requests.
    """
    common = there.common_blocks
    alike = _likeness(wanted.ratio, wanted.shares, common, lengths)
    model = ChatRatio(lengths, common, alike)
    lowest, highest = np.ceil(model.at(1.0) * 1e4) / 1e4, np.floor(model.at(MOST_MEAN_TURNS) * 1e4) / 1e4
    spec = {"form": "chat", "ratio": float(np.clip(round(wanted.ratio, 4), lowest, highest)),
            "think_s": _round(np.clip(wanted.think_s, SHORTEST_S, LONGEST_S), 4),
            "think_sigma": _round(wanted.sigma, 4), "correlation": alike, "common_blocks": common}
    return spec, parse_chat(Section(spec, "fit"), lengths)


def _likeness(ratio: float, shares: float, common: int, lengths: LengthModel) -> float:
    """The correlation of a conversation's prompts with which that share of followers gives the ratio."""
    mean_turns = float(np.clip(1 / (1 - min(shares, 0.99)), 1.0, MOST_MEAN_TURNS))
    if ChatRatio(lengths, common, 0.0).at(mean_turns) >= ratio:
        return 0.0
    low, high = 0.0, MOST_ALIKE
    for _ in range(12):
        middle = (low + high) / 2
        low, high = (low, middle) if ChatRatio(lengths, common, middle).at(mean_turns) > ratio else (middle, high)
    return round(high, 3) if high >= LEAST_ALIKE else 0.0


def _documents(wanted: Measured, there: Prefixes) -> tuple[dict[str, Any], Groups]:
    """Questions on as many documents as the trace has, asked as often."""
    sizes = there.group_sizes
    zipf = -np.polyfit(np.log(np.arange(1, len(sizes) + 1)), np.log(sizes), 1)[0] if len(sizes) > 2 else 0.0
    spec = {"form": "documents", "ratio": round(float(np.clip(wanted.ratio, 0.01, 0.99)), 4),
            "groups": max(1, len(sizes)), "zipf": round(float(np.clip(zipf, 0.0, 5.0)), 3)}
    return spec, parse_groups(Section(spec, "fit"), "documents")


def follow(trace: Trace) -> Prefixes:
    """Follows the prefixes of the first 200,000 requests of a trace that has hashes, in blocks of 512 tokens."""
    n = min(len(trace), MOST_FOLLOWED)
    trace = with_blocks(trace.take(slice(0, n)), BLOCK_TOKENS)
    assert trace.prefix_hashes is not None
    offsets, values = trace.prefix_hashes
    counts = np.diff(offsets)
    rows = np.repeat(np.arange(n), counts)
    position = np.arange(len(values)) - np.repeat(offsets[:-1], counts)
    common = _common(values, position, n)
    before = _latest_use(values, rows)
    depth = _depth(before, position, counts, offsets)
    sharing = np.flatnonzero(depth > common)
    latest = before[offsets[sharing] + depth[sharing] - 1]
    extends = depth[sharing] >= trace.prompt_tokens[latest] // BLOCK_TOKENS
    gap_s = (trace.arrival_s[sharing] - trace.arrival_s[latest])[extends]
    sizes = np.unique(values[position == common], return_counts=True)[1]
    return Prefixes(common, len(sharing) / max(n, 1), float(extends.mean()) if len(sharing) else 0.0, gap_s,
                    np.sort(sizes[sizes > 1])[::-1].astype(np.int64))


def _latest_use(values: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Returns the latest request before that had each block, int64[blocks]; -1 where none had."""
    order = np.argsort(values, kind="stable")
    again = np.flatnonzero(np.diff(values[order]) == 0)
    before = np.full(len(values), -1, np.int64)
    before[order[again + 1]] = rows[order[again]]
    return before


def _depth(before: np.ndarray, position: np.ndarray, counts: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """Returns how many leading blocks of each request have been used before, int64[n]."""
    depth = np.zeros(len(counts), np.int64)
    there = counts > 0
    if there.any():
        new_at = np.where(before >= 0, np.iinfo(np.int64).max, position)
        depth[there] = np.minimum(np.minimum.reduceat(new_at, offsets[:-1][there]), counts[there])
    return depth


def _common(values: np.ndarray, position: np.ndarray, n: int) -> int:
    """Returns how many leading blocks more than half of the requests have, all the same."""
    common = 0
    while True:
        there = values[position == common]
        if not len(there) or np.unique(there, return_counts=True)[1].max() <= COMMON * n:
            return common
        common += 1
