"""An upper bound on offline service: a linear program on the capacity that online work leaves over.

What any policy can have completed by the window's end, work done in fractions and at the best mix of batches:

- a relaxed instance prefills, and decodes offline requests; a strict one decodes; each has the window's time;
- a decode step of b requests with C tokens of context in all takes at least each of its cost table's lines, and C is
  at most what the KV memory holds: `steps`, `context` and `time` of each pool and batch size are variables (sizes that
  differ by less than 3 % are one, with the best figures of each);
- a prefill takes at least its tokens at the table's best rate, and its attention by each roof;
- online requests that must have their first token (or all of them) before the window ends take their share, but for
  those of the violation budget, and the program picks the dearest of these;
- an offline request counts by the fraction that is done, and not at all where its own steps alone would take too long.

Interrupts, evictions, transfers, blocks and the order of things only make it less: a bound by construction, which a
policy need not be able to reach. HiGHS solves it (`scipy.optimize.linprog`).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ooco_gym.errors import UserError
from ooco_gym.protocol import VIOLATION_BUDGET
from ooco_gym.sim import state as s

_PS = s.PS_PER_S
_GROUP = 1.03  # ratio of batch sizes that are taken together
_COMPUTED = (s.PREFILLING, s.PUSH_WAITING, s.RESIDENT, s.LEAVING, s.MOVING)  # no (or not certainly any) prefill ahead


class Work(NamedTuple):
    """What requests still need, arrays of length n; times in seconds."""

    prefill: np.ndarray  # float64[n, 2], instance time at least, by each roof of attention
    tokens: np.ndarray  # float64[n], to be decoded
    context: np.ndarray  # float64[n], the sum of the context lengths at these tokens


def fluid_bound(state: s.State, end_ps: int, budget: float = VIOLATION_BUDGET) -> float:
    """The most reference GPU-seconds of offline work that can be completed by `end_ps` in the measured window.

    Args:
        state: where an episode stands, at its window's start or later, its books brought up to then
            (`sim.loop.look`); what was completed by then counts as it is.
        end_ps: the window's end, in the simulation's time.
        budget: share of the window's online requests that may miss an SLO.

    Returns:
        The bound; NaN where no policy can keep the budget.

    Raises:
        UserError: mixed instances, or closed sessions.
    """
    if (state.instances["role"] == s.MIXED).any():
        raise UserError("the bound is of relaxed and strict instances; the cluster has mixed ones")
    if state.successor.size:
        raise UserError("the bound is of arrivals that are known beforehand, and those of closed sessions hang on the "
                        "policy: leave out workload.sessions=closed")
    now = int(state.clock.now_ps)
    seconds = max(0.0, (end_ps - now) / _PS)
    requests = state.requests[state.requests["arrival_ps"] < end_ps]
    requests = requests[requests["status"] < s.FINISHED]
    online, offline = requests[requests["online"] == 1], requests[requests["online"] == 0]
    work = _work(state, offline)
    possible = _in_time(state, offline, work, now, end_ps)
    offline, work = offline[possible], Work(*(part[possible] for part in work))
    every = state.requests[(state.requests["online"] == 1) & (state.requests["counted"] == 1)]
    must, due = _mandatory(state, online, end_ps)
    completed = float(state.totals.service_ps) / _PS
    if not offline.size:
        return completed
    return completed + _solve(state, offline["service_ps"] / _PS, work, due, must, budget * len(every), seconds)


def _work(state: s.State, requests: np.ndarray) -> Work:
    """What each request still needs, at least."""
    generated, prompt = requests["generated_tokens"].astype(float), requests["prompt_tokens"].astype(float)
    computed = np.isin(requests["status"], _COMPUTED)
    length = prompt + generated
    # Layers of an interrupted prefill may have been kept: then nothing of it is certainly ahead.
    kept = bool(state.config.layer_resume) and bool((state.instances["suspended"] > 0).any())
    ahead = _prefill(state, length) * ~(computed | (kept & (requests["interruptions"] > 0)))[:, None]
    # The prefill makes one token; so may the step that is under way.
    tokens = np.maximum(0.0, requests["output_tokens"] - generated - 1.0)
    context = tokens * length + tokens * (tokens + 1.0) / 2.0
    return Work(ahead, tokens, context)


def _prefill(state: s.State, tokens: np.ndarray) -> np.ndarray:
    """Instance time that a prompt adds to a batch, at least, by each roof of attention: float64[n, 2], in seconds."""
    times = []
    for table in np.unique(state.instances["table"][state.instances["role"] == s.RELAXED]):
        one, dense = state.tables[table], state.prefill_ps[table]
        count = np.arange(1, dense.size)
        rate = min((dense[1:] / count).min(), float(one["prefill_slope_ps"]))
        heads = state.head_ps[table]
        alone = rate * tokens + (heads[1:] / np.arange(1, heads.size)).min()
        rows = np.ceil(tokens / one["tile"]) * one["tile"]
        work = rows * (tokens - one["causal"] * tokens)
        sums = np.stack([work, rows, tokens, np.ones_like(tokens)], axis=1)
        attention = np.zeros((tokens.size, 2))
        if not one["measured"]:  # no less than any roof of the sums, plus what is linear in them
            attention = (sums @ one["linear"])[:, None] + sums @ one["roofs"].T
        times.append((alone[:, None] + attention) / _PS)
    return np.minimum.reduce(times)


def _in_time(state: s.State, requests: np.ndarray, work: Work, now: int, end_ps: int) -> np.ndarray:
    """Whether a request could finish before the end, were it alone everywhere."""
    lines = state.decode_lines[:, 1].astype(float)
    length = (requests["prompt_tokens"] + requests["generated_tokens"]).astype(float)[:, None]
    step = np.maximum(lines[:, 0] + lines[:, 1] * length, lines[:, 2] + lines[:, 3] * length).min(axis=1) / _PS
    start_s = np.maximum(requests["arrival_ps"], now) / _PS
    return start_s + work.prefill.min(axis=1) + work.tokens * step < end_ps / _PS


def _mandatory(state: s.State, online: np.ndarray, end_ps: int) -> tuple[np.ndarray, Work]:
    """Online requests that keep their SLOs only with work done before the end: which, and that work."""
    counted = online[online["counted"] == 1]
    counted = counted[counted["violated"] == 0]
    work, generated = _work(state, counted), counted["generated_tokens"]
    first_due = counted["arrival_ps"] + counted["ttft_slo_ps"]
    prefill = (first_due < end_ps) & (counted["first_token_ps"] == 0)
    start = np.where(generated > 0, np.minimum(counted["first_token_ps"], first_due), first_due)
    last_due = start + (counted["output_tokens"].astype(np.int64) - 1) * counted["tpot_slo_ps"]
    last_due = np.maximum(last_due, start)
    decode = (last_due < end_ps) & (state.config.tpot_from_decode == 0)
    due = Work(work.prefill * prefill[:, None], work.tokens * decode, work.context * decode)
    some = prefill | decode
    return counted[some], Work(*(part[some] for part in due))


def _solve(state: s.State, service: np.ndarray, work: Work, due: Work, must: np.ndarray, allowed: float,
           seconds: float) -> float:
    """The linear program: offline fractions, online fractions, then steps, context and time by pool and batch size."""
    from scipy.optimize import linprog
    from scipy.sparse import coo_matrix

    pools = _pools(state)
    n, m, each = len(service), len(must), len(pools[0].lines)
    # Columns: z (n), y (m), then of each pool its steps, their context and their time by batch size.
    base = n + m
    columns = base + 3 * each * len(pools)
    rows: list[tuple[np.ndarray, np.ndarray]] = []
    limits: list[float] = []

    def place(pool: int, kind: int) -> np.ndarray:
        return base + (3 * pool + kind) * each + np.arange(each)

    def add(where: list[np.ndarray], values: list[np.ndarray], limit: float) -> None:
        rows.append((np.concatenate(where), np.concatenate(values)))
        limits.append(limit)

    z, y, sizes = np.arange(n), n + np.arange(m), pools[0].sizes
    steps, contexts, times = ([place(p, kind) for p in range(len(pools))] for kind in range(3))
    ones = np.ones(each)
    # All that is decoded fits the steps that are run: offline anywhere, online on strict instances.
    strict = [p for p, pool in enumerate(pools) if pool.strict]
    for offline, online, made in ((work.tokens, due.tokens, sizes), (work.context, due.context, None)):
        kind = steps if made is not None else contexts
        made = made if made is not None else ones
        add([z, y, *kind], [offline, online, *[-made] * len(pools)], 0.0)
        add([y, *(kind[p] for p in strict)], [online, *[-made] * len(strict)], 0.0)
    for p, pool in enumerate(pools):
        if pool.strict:
            add([times[p]], [ones], pool.instances * seconds)
        for b in range(each):
            for line in (0, 2):
                here = [np.array([steps[p][b], contexts[p][b], times[p][b]])]
                add(here, [np.array([pool.lines[b, line], pool.lines[b, line + 1], -1.0])], 0.0)
            add([np.array([contexts[p][b], steps[p][b]])], [np.array([1.0, -pool.memory])], 0.0)
    relaxed = [p for p, pool in enumerate(pools) if not pool.strict]
    for roof in range(2):
        add([z, y, *(times[p] for p in relaxed)],
            [work.prefill[:, roof], due.prefill[:, roof], *[ones] * len(relaxed)],
            sum(pools[p].instances for p in relaxed) * seconds)
    if m:
        add([y], [-np.ones(m)], allowed - m)
    lengths = [len(where) for where, _ in rows]
    matrix = coo_matrix((np.concatenate([values for _, values in rows]),
                         (np.repeat(np.arange(len(rows)), lengths), np.concatenate([where for where, _ in rows]))),
                        shape=(len(rows), columns))
    bounds = np.zeros((columns, 2))
    bounds[:base, 1], bounds[base:, 1] = 1.0, np.inf
    goal = np.zeros(columns)
    goal[:n] = -service
    solved = linprog(goal, A_ub=matrix.tocsr(), b_ub=np.array(limits), bounds=bounds, method="highs")
    if solved.status == 2:  # the online work alone does not fit
        return float("nan")
    if not solved.success:
        raise RuntimeError(f"HiGHS: {solved.message}")
    return float(-solved.fun)


class Pool(NamedTuple):
    """Equal instances of one role. Times in seconds."""

    strict: bool
    instances: int
    sizes: np.ndarray  # int64[G], the largest batch of each group of sizes
    lines: np.ndarray  # float64[G, 4], of decode steps of a group's sizes, the least of each coefficient
    memory: float  # tokens of KV memory


def _pools(state: s.State) -> list[Pool]:
    """The pools of a cluster: instances of one role with one cost table are one."""
    pools, instances = [], state.instances
    for role, table in sorted(set(zip(instances["role"].tolist(), instances["table"].tolist(), strict=True))):
        mine = instances[(instances["role"] == role) & (instances["table"] == table)]
        tokens = float(mine["total_blocks"].max()) * float(state.config.block_tokens)
        starts, largest = [1], state.decode_lines.shape[1] - 1  # of groups of sizes that differ by a few percent
        while (following := max(starts[-1] + 1, int(starts[-1] * _GROUP))) <= largest:
            starts.append(following)
        first = np.array(starts)
        lines = np.minimum.reduceat(state.decode_lines[table, 1:], first - 1, axis=0) / _PS
        last = np.append(first[1:] - 1, state.decode_lines.shape[1] - 1)
        pools.append(Pool(role == s.STRICT, len(mine), last, lines, tokens))
    return pools
