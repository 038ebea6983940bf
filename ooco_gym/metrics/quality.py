"""Online service quality, request by request: TTFT, TPOT in both definitions, deadlines, violations (docs/protocol.md).

TTFT, TPOT and violations are recomputed from the request table, independently of the event loop's
own accounting; a test compares the two.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ooco_gym.metrics.chosen import Chosen
from ooco_gym.run import RunRecord
from ooco_gym.sim.state import ABORTED, FINISHED, NEVER, PS_PER_S, REJECTED

WORST_WINDOW_S = 600.0
WORST_STEP_S = 60.0


@dataclass(frozen=True)
class Rules:
    """Parameters of the violation test.

    Attributes:
        tpot_min_tokens: shorter outputs are tested by their deadline instead of their TPOT.
        from_decode: TPOT counts from the first decode step, not from the first token.
        end_ps: end of the run; an unfinished request violates if its deadline has passed by then.
        gap_ps: longest time between two tokens without a TPOT violation; None: not tested.
    """

    tpot_min_tokens: int
    from_decode: bool
    end_ps: int
    gap_ps: int | None = None


def rules_of(run: RunRecord) -> Rules:
    """Returns the test parameters of a run's scenario."""
    slo = run.scenario.slo
    return Rules(slo.tpot_min_tokens, from_decode=slo.tpot_from == "first_decode", end_ps=end_ps_of(run),
                 gap_ps=None if slo.gap_s is None else round(slo.gap_s * PS_PER_S))


def end_ps_of(run: RunRecord) -> int:
    """Returns the end of a run, in the simulator's clock."""
    return round(run.simulated_s * PS_PER_S)


def seen_until(requests: np.ndarray | Chosen | dict[str, np.ndarray], end_ps: int) -> np.ndarray:
    """Returns the end of what is known of each request: when it has left, or the run's end, int64[n]."""
    return np.where(requests["status"] == ABORTED, requests["finish_ps"], end_ps)


@dataclass(frozen=True)
class Quality:
    """Quality of n requests, arrays of shape (n,); times in seconds.

    The time of an event that did not happen by the run's end is a lower bound: TTFTs are exact
    where `started`, other times where `finished`. TPOTs are NaN for single tokens, and for requests
    that did not start (decode).
    """

    started: np.ndarray
    finished: np.ndarray
    rejected: np.ndarray
    aborted: np.ndarray
    ttft_s: np.ndarray
    tpot_s: np.ndarray
    tpot_decode_s: np.ndarray
    lateness_s: np.ndarray
    normalized_latency_s: np.ndarray
    ttft_missed: np.ndarray
    tpot_missed: np.ndarray
    deadline_missed: np.ndarray

    @property
    def violated(self) -> np.ndarray:
        """Whether each request violates its TTFT or TPOT SLO (short outputs: its deadline)."""
        return self.ttft_missed | self.tpot_missed

    @property
    def undecided(self) -> np.ndarray:
        """Whether each request was unfinished when the run ended and its outcome still open."""
        return ~(self.finished | self.rejected | self.aborted | self.violated)


def judge(requests: np.ndarray | Chosen | dict[str, np.ndarray], rules: Rules) -> Quality:
    """Tests each request of a `REQUEST` array (own SLOs, times in ps) under the protocol's
    definitions.

    TTFT is arrival to first token. TPOT is (finish - start) / (n - 1), n >= 2, where start is the
    first token, or for `tpot_decode` the start of the first decode step. A request violates if its
    TTFT exceeds the SLO, or, with at least `tpot_min_tokens` output tokens, its TPOT; with fewer,
    if it finishes after arrival + TTFT + (n - 1) TPOT. Rejected requests violate; unfinished ones
    violate once this is certain, those that have left if it was by then. The cumulative deadline of
    the last token (Echo's D(n)) is tested for all lengths.
    """
    n = requests["output_tokens"].astype(np.int64)
    steps = n - 1
    arrival, first, finish = requests["arrival_ps"], requests["first_token_ps"], requests["finish_ps"]
    began_decode = requests["first_decode_ps"]
    finished = requests["status"] == FINISHED
    rejected = requests["status"] == REJECTED
    started = requests["generated_tokens"] >= 1
    decoded = began_decode > 0

    # An event that did not happen by the end happens later, so the end is a lower bound that can prove a violation.
    end_ps = seen_until(requests, rules.end_ps)
    first_or_end = np.where(started, first, end_ps)
    finish_or_end = np.where(finished, finish, end_ps)
    decode_or_end = np.where(decoded, began_decode, end_ps)

    deadline = arrival + requests["ttft_slo_ps"] + steps * requests["tpot_slo_ps"]
    ttft_missed = (first_or_end - arrival > requests["ttft_slo_ps"]) | rejected
    deadline_missed = (finish_or_end > deadline) | rejected
    base = decode_or_end if rules.from_decode else first_or_end
    over_tpot = finish_or_end - base > steps * requests["tpot_slo_ps"]
    over_tpot |= ~started & deadline_missed  # never began, and can no longer meet the SLO
    short = n < rules.tpot_min_tokens
    tpot_missed = np.where(short, deadline_missed, over_tpot) | rejected
    if rules.gap_ps is not None:
        tpot_missed |= requests["max_gap_ps"] > rules.gap_ps

    several = started & (n >= 2)  # a single token has no time between tokens
    divisor = np.maximum(steps, 1) * float(PS_PER_S)
    return Quality(
        started=started,
        finished=finished,
        rejected=rejected,
        aborted=requests["status"] == ABORTED,
        ttft_s=(first_or_end - arrival) / PS_PER_S,
        tpot_s=_where(several, (finish_or_end - first) / divisor),
        tpot_decode_s=_where(several & decoded, (finish_or_end - began_decode) / divisor),
        lateness_s=np.maximum(finish_or_end - deadline, 0) / PS_PER_S,
        normalized_latency_s=(finish_or_end - arrival) / (np.maximum(n, 1) * float(PS_PER_S)),
        ttft_missed=ttft_missed,
        tpot_missed=tpot_missed,
        deadline_missed=deadline_missed,
    )


def judge_deadlines(requests: np.ndarray | Chosen, due_ps: np.ndarray, end_ps: int) -> tuple[np.ndarray, np.ndarray]:
    """Tests whole requests against their deadlines, int64[n] (`NEVER`: none); returns (missed,
    undecided), bool[n].

    A request unfinished at `end_ps` has missed a deadline that has passed; so has one that left at its deadline or
    later.
    """
    finished, rejected, aborted = (requests["status"] == one for one in (FINISHED, REJECTED, ABORTED))
    missed = (np.where(finished, requests["finish_ps"], seen_until(requests, end_ps) + aborted) > due_ps)
    missed |= rejected & (due_ps < NEVER)
    return missed, ~finished & ~aborted & ~missed & (due_ps < NEVER)


def worst_window_rate(arrival_s: np.ndarray, violated: np.ndarray, start_s: float, end_s: float,
                      window_s: float = WORST_WINDOW_S, step_s: float = WORST_STEP_S,
                      weights: np.ndarray | None = None) -> float:
    """Returns the largest violation rate of requests that arrived within a window of `window_s`,
    slid by `step_s`.

    Returns NaN if nothing arrived.

    Args:
        arrival_s: arrivals in seconds, shape (n,).
        violated: whether each violates, shape (n,).
        start_s, end_s: measured interval, in seconds; used whole if shorter than a window.
        window_s, step_s: length and step of the windows, in seconds.
        weights: of the requests, shape (n,); None: all equal.
    """
    if (arrival_s[1:] < arrival_s[:-1]).any():  # closed sessions keep the trace's order
        order = np.argsort(arrival_s, kind="stable")
        arrival_s, violated = arrival_s[order], violated[order]
        weights = None if weights is None else weights[order]
    starts = np.arange(start_s, max(end_s - window_s, start_s) + step_s / 2, step_s)
    left = np.searchsorted(arrival_s, starts, side="left")
    right = np.searchsorted(arrival_s, np.minimum(starts + window_s, end_s), side="left")
    sums = _sums(violated if weights is None else violated * weights)
    every = None if weights is None else _sums(weights)
    counts = right - left if every is None else every[right] - every[left]
    some = counts > 0
    return float(np.max((sums[right] - sums[left])[some] / counts[some])) if some.any() else float("nan")


def _sums(values: np.ndarray) -> np.ndarray:
    """Returns cumulative sums, beginning with 0."""
    sums = np.zeros(1 + len(values), np.int64 if values.dtype == bool else np.float64)
    np.cumsum(values, out=sums[1:])
    return sums


def mean(values: np.ndarray, exact: np.ndarray) -> tuple[float | None, bool]:
    """Returns the mean of times, float64[n] without NaN, and whether it is a lower bound (some are
    not `exact`, bool[n]).

    Returns None as mean if there are no times.
    """
    some = ~np.isnan(values)
    return (float(values[some].mean()), not exact[some].all()) if some.any() else (None, False)


def quantile(values: np.ndarray, exact: np.ndarray, share: float) -> tuple[float | None, bool]:
    """Returns the quantile of times, and whether it is a lower bound, as in `mean`."""
    some = ~np.isnan(values)
    if not some.any():
        return None, False
    if not some.all():
        values, exact = values[some], exact[some]
    found = float(np.quantile(values, share))
    if exact.all():
        return found, False
    around = np.unique([math.floor(share * (len(values) - 1)), math.ceil(share * (len(values) - 1))])
    earliest = np.partition(values, around)[around]
    latest = np.where(exact, values, np.inf)
    latest.partition(around)
    return found, bool((latest[around] > earliest).any())


def _where(condition: np.ndarray, values: np.ndarray) -> np.ndarray:
    return np.where(condition, values, np.nan)
