"""What prompts of a trace have in common: conversations or groups, found from prefix hashes, and fitted.

The parameters are moved until the generator, played over the trace's span, measures as the trace: a trace of finite
length does not see the prefixes of before, nor long times between turns, nor does the generator's own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ooco_gym.workload.arrivals import Arrivals
from ooco_gym.workload.checks import Section
from ooco_gym.workload.generate import WorkloadSpec, play
from ooco_gym.workload.lengths import LengthModel
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

LEAST_RATIO = 0.02          # below it nothing is fitted
MOST_REQUESTS = 200_000     # whose prefixes are followed
COMMON = 0.5                # of the requests begin with a block that all are taken to begin with
SHORTEST_S, LONGEST_S, USUAL_S = 0.1, 3600.0, 60.0     # mean time between turns
WIDEST = 2.5                # standard deviation of its logarithm
FEWEST_GAPS = 50            # from which their spread is fitted
LEAST_ALIKE = 0.05          # correlation below which the prompts of a conversation are taken for independent
STEPS, WHOLE_STEPS = 8, 3       # after the whole ones each is shorter, so that one play's chance counts less and less
PLAYS = 4                       # of the ratio that is reported


class Measured(NamedTuple):
    """What a generator of conversations is to measure: share of prompt tokens seen before, of requests that follow an
    earlier one, mean time between turns and standard deviation of its logarithm (0: exponential)."""

    ratio: float
    shares: float
    think_s: float
    sigma: float = 0.0


@dataclass(frozen=True)
class Found:
    """How the prompts of a trace share."""

    spec: dict[str, Any]  # what a workload's YAML says of it
    sharing: Chat | Groups  # the same, parsed
    ratio: float  # measured share of prompt tokens seen before
    prefixes: Prefixes  # what else was measured
    assumed: tuple[str, ...]  # what the trace does not tell


@dataclass(frozen=True)
class Prefixes:
    """What following each request's prefix through the requests before it tells."""

    common_blocks: int  # that more than half of the requests begin with
    shares: float  # of the requests, those that have more than these in common with one before
    extends: float  # of those, the share that holds the whole prompt of the latest such request
    gap_s: np.ndarray  # float64[k], seconds since that one, of those that extend it
    group_sizes: np.ndarray  # int64[m], requests by their first block that is not common, largest first, no single ones


def find_sharing(trace: Trace, lengths: LengthModel) -> Found | None:
    """Returns the form that a trace's prompts share by; None where they do not, or the trace has no hashes to tell.

    Prompts that mostly hold the whole of an earlier one are conversations, others begin with documents.
    """
    ratio = sharing_ratio(trace)
    if ratio is None or ratio < LEAST_RATIO:
        return None
    prefixes = follow(trace)
    if prefixes.shares == 0 or prefixes.extends >= 0.5:
        mean_s = float(prefixes.gap_s.mean()) if len(prefixes.gap_s) else USUAL_S
        wanted = Measured(ratio, prefixes.shares, mean_s, _spread(prefixes.gap_s))
        return _chat(wanted, lengths, ratio, prefixes)
    sizes = prefixes.group_sizes
    zipf = -np.polyfit(np.log(np.arange(1, len(sizes) + 1)), np.log(sizes), 1)[0] if len(sizes) > 2 else 0.0
    return _documents(ratio, max(1, len(sizes)), float(zipf), ratio, prefixes)


def _spread(gap_s: np.ndarray) -> float:
    """The standard deviation of the logarithm where gaps are rather lognormal than exponential; otherwise 0."""
    if len(gap_s) < FEWEST_GAPS:
        return 0.0
    gap_s = np.maximum(gap_s, SHORTEST_S)
    log = np.log(gap_s)
    sigma = max(float(log.std()), 0.05)
    exponential = -np.log(gap_s.mean()) - 1.0
    lognormal = -log.mean() - np.log(sigma) - 0.5 * np.log(2 * np.pi) - 0.5
    return min(sigma, WIDEST) if lognormal > exponential + 2.0 / len(gap_s) else 0.0


def _chat(wanted: Measured, lengths: LengthModel, measured: float, prefixes: Prefixes) -> Found:
    """Conversations of a ratio in which so large a share of the requests follows an earlier one.

    The ratio follows from how many turns conversations have and how alike their prompts are; both are moved, the
    ratio into what is possible and the likeness to that share of requests.
    """
    common = prefixes.common_blocks
    think_s = float(np.clip(wanted.think_s, SHORTEST_S, LONGEST_S))
    alike = _likeness(wanted.ratio, wanted.shares, common, lengths)
    model = ChatRatio(lengths, common, alike)
    lowest, highest = np.ceil(model.at(1.0) * 1e4) / 1e4, np.floor(model.at(MOST_MEAN_TURNS) * 1e4) / 1e4
    spec = {"form": "chat", "ratio": float(np.clip(round(wanted.ratio, 4), lowest, highest)),
            "think_s": float(f"{think_s:.4g}"), "think_sigma": float(f"{wanted.sigma:.4g}"), "correlation": alike,
            "common_blocks": common}
    return Found(spec, parse_chat(Section(spec, "fit"), lengths), measured, prefixes, (
        "within a conversation prompts grow", f"turns follow each other after {think_s:.3g} s in the mean, "
        + (f"lognormally (sigma {wanted.sigma:.2g})" if wanted.sigma else "exponentially")))


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


def _documents(ratio: float, groups: int, zipf: float, measured: float, prefixes: Prefixes) -> Found:
    """Questions on so many documents."""
    spec = {"form": "documents", "ratio": round(float(np.clip(ratio, 0.01, 0.99)), 4), "groups": groups,
            "zipf": round(float(np.clip(zipf, 0.0, 5.0)), 3)}
    return Found(spec, parse_groups(Section(spec, "fit"), "documents"), measured, prefixes,
                 ("documents have one length each",))


def follow(trace: Trace) -> Prefixes:
    """Follows the prefixes of the first 200,000 requests of a trace that has hashes, in blocks of 512 tokens."""
    n = min(len(trace), MOST_REQUESTS)
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


def fit_sharing(found: Found, trace: Trace, process: Arrivals, model: LengthModel, seed: int) -> Found:
    """Returns the form with its parameters moved, each by what its own measure is off in a play; bursts of `process`
    make no difference to them."""
    there, wanted_ratio = found.prefixes, found.ratio
    wanted = Measured(found.spec["ratio"], there.shares, found.spec.get("think_s", USUAL_S),
                      found.spec.get("think_sigma", 0.0))
    for step in range(STEPS):
        played = _play(found, trace, process, model, seed + step)
        if played.prefix_hashes is None or len(played) == 0:
            continue
        gain = 1 / (1 + max(0, step - WHOLE_STEPS))
        off = wanted_ratio - (sharing_ratio(played) or 0.0)
        wanted = wanted._replace(ratio=float(np.clip(wanted.ratio + gain * off, 0.01, 0.99)))
        if found.spec["form"] == "chat":
            wanted = _moved(wanted, there, follow(played), gain)
            found = _chat(wanted, model, wanted_ratio, there)
        else:
            found = _documents(wanted.ratio, found.spec["groups"], found.spec["zipf"], wanted_ratio, there)
    return found


def _moved(wanted: Measured, there: Prefixes, here: Prefixes, gain: float) -> Measured:
    """What is wanted, moved towards the trace's share of followers, and towards gaps whose logarithms have its mean
    and spread."""
    shares = float(np.clip(wanted.shares + gain * (there.shares - here.shares), 0.0, 0.95))
    if not len(there.gap_s) or not len(here.gap_s):
        return wanted._replace(shares=shares)
    log, found = (np.log(np.maximum(one.gap_s, SHORTEST_S)) for one in (there, here))
    longer, wider = wanted.think_s * np.exp(gain * np.clip(log.mean() - found.mean(), -1.0, 1.0)), wanted.sigma
    if wider:   # the logarithms tell the median; a lognormal's mean grows with its spread
        wider = float(np.clip(wider * (log.std() / max(found.std(), 0.05)) ** gain, 0.05, WIDEST))
        longer *= np.exp((wider**2 - wanted.sigma**2) / 2)
    return wanted._replace(shares=shares, think_s=float(np.clip(longer, SHORTEST_S, LONGEST_S)), sigma=wider)


def compare_sharing(found: Found, trace: Trace, process: Arrivals, model: LengthModel,
                    seed: int) -> tuple[dict[str, Any], Trace]:
    """Returns (how like the fitted form is, by other seeds than it was fitted with; the last play)."""
    runs = [_play(found, trace, process, model, seed + STEPS + number) for number in range(PLAYS)]
    return {"form": found.spec["form"], "trace": found.ratio,
            "model": float(np.mean([sharing_ratio(run) or 0.0 for run in runs]))}, runs[-1]


def _play(found: Found, trace: Trace, process: Arrivals, model: LengthModel, seed: int) -> Trace:
    return play(WorkloadSpec("fit", process, model, 0.0, found.sharing), start_s=float(trace.arrival_s[0]),
                duration_s=float(trace.arrival_s[-1] - trace.arrival_s[0]), seed=seed, stream="fit")
