"""State of an episode as NumPy arrays: one `State` has everything that changes while a cluster
runs.

Copying its arrays is a checkpoint, comparing them is equality; no Python object lives in the event
loop. The clock is an integer number of picoseconds, so that any grouping of steps sums to the same
time, bit for bit.
"""

from typing import NamedTuple

import numpy as np
from numba import typeof, types

from ooco_gym.compile import function_at
from ooco_gym.compile.references import Handle, Reference, layout, reference_at
from ooco_gym.perf.latency import GRID_COLUMNS, GRID_ROWS, TABLE, must_compile
from ooco_gym.sim.records import (
    BLOCK,
    CACHE_LINE,
    GROUP,
    INSTANCE,
    LINK,
    PAIR,
    QUEUE,
    REQUEST,
    TIER,
    UNIT,
    Clock,
    Config,
    Fleet,
    Gauges,
    Integrals,
    Observed,
    Pending,
    Queues,
    Totals,
    aligned_zeros,
    bytes_of,
)

PS_PER_S = 1_000_000_000_000
NEVER = np.iinfo(np.int64).max // 4  # a time beyond all events; sums of two still fit an int64

# --- Request status -------------------------------------------------------------------------------------------------
(FUTURE, WAITING, PREFILLING, PUSH_WAITING, RESIDENT, LEAVING, MOVING, FINISHED, REJECTED, HANDED_OVER,
 ABORTED) = range(11)

# --- Instance roles and activities ----------------------------------------------------------------------------------
RELAXED, STRICT, MIXED = range(3)
ROLE_NAMES = ("relaxed", "strict", "mixed")
IDLE, PREFILL_ONLINE, PREFILL_OFFLINE, DECODE, MIXING = range(5)
ACTIVITY_NAMES = ("idle", "online_prefill", "offline_prefill", "decode", "mixed")

# --- States of an instance (`power`); the first two compose iterations, the first alone takes new requests ----------
ON, DRAINING, STARTING, OFF = range(4)

# --- Rows of State.members: requests with KV memory on an instance, and running ones -------------------------
URGENT, OFFLINE, BATCH, SUSPENDED = range(4)
LANDING = 2  # row of State.push_queues, after URGENT and OFFLINE
FINISHING = SUSPENDED  # mixed instances: requests whose last token comes at the end of the present iteration

# --- Scheduling of a mixed instance's engine, and what a rule sees (Config.async_scheduling) ---------------------
SYNCHRONOUS = 0  # an iteration is composed when the previous one is over
HIDES_FINISHING = 1  # composed while the previous one runs, without requests whose last token is in progress
SEES_FINISHING = 2  # the same with these requests, as in vLLM's own scheduler

# --- The eight decision points (`policy/decisions.py`), and no point --------------------------------------------------
NO_POINT, ROUTE, INTERRUPT, GATE, COMPOSE, EVICT, PULL, RETAIN, SCALE = range(9)

# --- Special answers ----------------------------------------------------------------------------
ASK = -1  # any point: answer from outside the loop
HOLD = -2  # gate: decode what is resident; ask again at the next step boundary
HOLD_UNTIL_CHANGE = -3  # gate: the same, and the answer stays the same until residents, queue or memory change
WAIT = -2  # route, after a prefill: stay in the queue for a decode instance, holding KV memory
STAY = -3  # route, after a prefill: decode where the prefill ran
KEEP, STOP = 0, 1  # interrupt
RECOMPUTE, SWAP, CHECKPOINT = 0, 1, 2  # memory of a request preempted on a mixed instance
ALL = -2  # compose: everything decodable that is resident
LOOKED_UP = 2  # prefix_caching: a real engine's; State.owned has its answer for each request
DECLINE = -2  # evict, if memory is short for a request that could wait: evict none
FULL = -2  # pull: no free space; ask again only after this instance's residents have changed

# --- Why the loop returned ------------------------------------------------------------------------------------------
ASKED, HORIZON, DONE = range(3)

# --- What ends an episode after its window ----------------------------------------------------------------------
VERDICTS = 0  # every counted online request has finished or certainly violated its SLO
LAST_TOKENS = 1  # every one has finished, so latencies do not depend on the SLO
ALL_TOKENS = 2  # every counted request of both classes has; the window lasts until then

# --- Tasks: work left by an event, each resumable at its decision ------------------------------------------
ARRIVE, INTERRUPT_FOR, PLACE, RETRY_PUSHES, DISPATCH, RETAIN_FOR, STEER, REROUTE, HAND_BACK = range(9)

DEFAULT_GATE_WINDOW = 8  # waiting requests that a gate looks at by default
PARAMS = 48  # capacity for a policy's own parameters
KEEPS = 16  # for those of a retention rule, behind them in State.params
SCALES = 16  # for those of a scaling rule, behind these
RULE_PARAMS = PARAMS + KEEPS + SCALES + PARAMS  # last those for mixed instances beside pools
NOTES = 64  # numbers that a scaling rule may keep per group between decisions
TURNS = 64  # rows of State.calls; calls of a job beyond these count as the last
MEMORY = 40  # numbers that a policy may keep per instance between decisions
LEVELS = 64  # queues of free blocks, lowest first
BUCKETS = 32  # buckets of prompt lengths: powers of two
BY_PREFIX, BY_BUCKET, BY_KEY = 1, 2, 3  # values of waiting_order; 0: by arrival
TASKS = 4096  # size of the ring of open tasks
ITL_BINS = 512  # inter-token times, logarithmic bins from 0.1 ms, 2 % wide


class State(NamedTuple):
    """The state of one episode. Shapes: n requests, m instances, l links, t cost tables, B largest batch."""

    clock: Clock
    config: Config
    pending: Pending
    queues: Queues
    gauges: Gauges
    totals: Totals
    observed: Observed
    integrals: Integrals
    push_queues: np.ndarray  # QUEUE[3], rows URGENT, OFFLINE: prefilled requests waiting for a decode instance;
    # LANDING: those with memory there (HANDED_OVER) that cannot decode yet
    params: np.ndarray  # float64[RULE_PARAMS], the policy's own, its retention and its scaling rule's, and those of
    # the policy of mixed instances beside pools; the latter and the policy's own change places (`dispatch.ask_beside`)
    requests: np.ndarray  # REQUEST[n], sorted by arrival
    deadlines: np.ndarray  # int32[online n], request slots sorted by TTFT deadline, except turns that wait for another
    instances: np.ndarray  # INSTANCE[m]
    members: np.ndarray  # int32[4, m, B], rows URGENT, OFFLINE (holders of KV memory), BATCH, SUSPENDED
    # BATCH: the running requests, as last written (`lanes.write_batch`); -1: one that has left since
    lanes: np.ndarray  # int32[m, 4, B], rows FINISH, BASE, each for URGENT and OFFLINE members (`sim.lanes`)
    ends: np.ndarray  # int32[m, tokens of a block], members with lanes by BASE, modulo
    gaps: np.ndarray  # int64[m, 2, B], rows GAP, LATEST, of URGENT members
    links: np.ndarray  # LINK[l]
    role_changes: np.ndarray  # int64[k, 2], times, and number of relaxed instances from then on (`sim.roles`)
    heap: np.ndarray  # int64[3, m + l + 1], indexed heap of event sources (instances, links, the hand-over): times,
    # their sources, index by source; of an elastic fleet, or with role changes, one more
    tasks: np.ndarray  # int32[TASKS, 3], ring of (kind, instance, request)
    waiting_window: np.ndarray  # int32[m, 4, w], the first w waiting offline requests of each instance (`sim.waiting`)
    picks: np.ndarray  # int32[B], wide answers and candidates
    scratch: np.ndarray  # int64[2, B], working memory of rules
    memory: np.ndarray  # float64[m, MEMORY], the policy's own
    blocks: np.ndarray  # BLOCK[m, blocks], if tracked; else BLOCK[m, 0]; with a second tier in host memory
    # BLOCK[2 m, blocks]: row m + i has instance i's blocks there.
    kv: np.ndarray  # int32[m or 2 m, …], layout in `sim.blocks`: index of keys, block tables, queues of blocks
    heaps: np.ndarray  # int64[m, blocks + 1, 3], free blocks by value (`sim.retention`); else int64[m, 0, 3]
    retained: np.ndarray  # int64[…], data for these values; else int64[0]
    tier: np.ndarray  # TIER[m] with a second tier; else TIER[0]
    offloaded: np.ndarray  # int32[n] with a second tier, number of each request's blocks stored in it; else int32[0]
    loaded_ps: np.ndarray  # int64[n] with a second tier, when a request's load from it is complete; else int64[0]
    hash_ids: np.ndarray  # int32[2 n + …], index of each request's first name, number of its tokens with one, all names
    reuse: np.ndarray  # int32[prefix hashes], number of offline requests in the system that share each
    order: np.ndarray  # int32[2 n + BUCKETS + 1] or empty: rank by slot, slot by rank, first rank of each bucket
    waiting: np.ndarray  # uint64[m, …] or empty: waiting offline requests by rank, as a tree of bits (`sim.waiting`)
    pairs: np.ndarray  # PAIR[m, blocks], if blocks have two owners (`sim.bidirectional`); else PAIR[m, 0]
    pair_lists: np.ndarray  # int32[m, …], their lists by kind and empty slots, and two sums
    owned: np.ndarray  # int32[n, 3] or int32[0, 3]: a request's first and last such block, and its slots in them;
    # with LOOKED_UP its cached context: tokens, blocks, and number of these that no request reads
    fleet: Fleet
    groups: np.ndarray  # GROUP[g] of an elastic fleet; else GROUP[0]
    units: np.ndarray  # UNIT[m] of an elastic fleet; else UNIT[0]
    tides: np.ndarray  # float64[5, intervals], online arrivals and their prompt tokens, then offline ones, by interval;
    # then chip-seconds paid for until its end, or where `scale` says the roles, relaxed instances at its end
    notes: np.ndarray  # float64[g, NOTES], the scaling rule's own
    foreseen: np.ndarray  # float64[2, intervals], prompt and output tokens to come online, for bounds; else [2, 0]
    weights: np.ndarray  # float64[k], weights of a learned rule (`Policy.weights`); empty for others
    outputs: np.ndarray  # int32[m, 2, 2, w], rows by class, each in order of finish (a ring) and sorted (`sim.memory`)
    due_ps: np.ndarray  # int64[n], deadlines of offline requests, or NEVER; empty if none has one; for a
    # turn that is not released, the time from its arrival to its deadline
    predicted: np.ndarray  # float64[n, 2] or [0, 2]: predicted output tokens, spread of their log (`policy.lengths`)
    client: np.ndarray  # int32[n], rows of `ended`: twice a request's client, +1 if online; the last two rows have all
    # clients'. Empty without clients
    ended: np.ndarray  # float64[rows, 4], outputs of a client that have ended: number, mean and sum of squares of their
    # logarithm, moving mean in tokens (`policy.lengths`)
    job: np.ndarray  # int32[n], row of `jobs` of each request, or -1; empty without jobs
    jobs: np.ndarray  # float64[jobs, 6]: first arrival in ps, reference GPU time of the calls that have ended and of
    # those that have not (which only an oracle may read), in ps, number of those that have ended, end of the last in
    # ps, and output tokens of the longest chain of calls that have ended
    chain: np.ndarray  # int32[n] with jobs: the latter when each request arrived
    calls: np.ndarray  # float64[clients + 1, TURNS, 4] with jobs, of calls that so many others of their job ended
    # before: number, sum of service in ps, how many were their job's last, and expected service from there on
    followers: np.ndarray  # int32[n + 1 + e] with closed sessions: places here of the requests that wait for each one,
    # and these requests
    unfinished: np.ndarray  # int32[n] likewise: number of requests that each one still waits for
    think_ps: np.ndarray  # int64[n] likewise: think time, -1 for requests that arrive at the trace's own time
    turns: np.ndarray  # int32[3, 1 + waiting turns or requests that may leave], heaps (`sim.sessions`)
    quit_ps: np.ndarray  # int64[n], when each request leaves unless it is done (`sim.leaving`), or NEVER; of one that
    # has not arrived, the time from its arrival; empty if none ever does
    itl: np.ndarray  # int64[ITL_BINS], inter-token times of counted online requests
    evicted: np.ndarray  # int32[capacity], slots that lost their memory, in order, if recorded; else empty
    decode_lines: np.ndarray  # int64[t, B + 1, 4], as `perf.CostTable`
    attention_lines: np.ndarray  # int64[t, B + 1, 4]
    prefill_ps: np.ndarray  # int64[t, P]
    alone_ps: np.ndarray  # int64[t, P], whole prefill of one prompt, by tokens; 0: not computed
    head_ps: np.ndarray  # int64[t, B + 1]
    shared_ps: np.ndarray  # int64[t, P], or int64[t, 0] without data-parallel ranks
    attention_grid: np.ndarray  # float64[t, GRID_ROWS, GRID_COLUMNS], log2 of ps
    tables: np.ndarray  # TABLE[t]


class OptionalSizes(NamedTuple):
    """Sizes of arrays that only some policies or requests need: tracked blocks, prefix hashes, an
    order of waiting requests, their window, past output lengths, deadlines, predicted lengths,
    turns of closed sessions, weights."""

    blocks: int = 0
    entries: int = 0
    hashes: int = 0
    distinct: int = 0
    ranks: int = 0
    words: int = 0
    pairs: int = 0
    pair_entries: int = 0
    owners: int = 0
    waiting_window: int = 0
    outputs: int = 0
    deadlines: int = 0
    predicted: int = 0
    clients: int = 0  # rows of State.ended
    jobs: int = 0
    turns: int = 0
    edges: int = 0  # of State.followers
    quits: int = 0  # requests that may leave
    weights: int = 0
    tiers: int = 1  # tiers of tracked blocks
    heaps: int = 0  # rows of each instance's heap of blocks
    retained: int = 0
    shared: int = 0  # entries of State.shared_ps
    groups: int = 0
    intervals: int = 0  # of State.tides
    foreseen: int = 0
    role_changes: int = 0


NO_OPTIONAL_SIZES = OptionalSizes()


def empty_state(n_requests: int, n_online: int, n_instances: int, n_links: int, n_tables: int, max_batch: int,
                prefill_entries: int, evicted: int = 0, pool: OptionalSizes = NO_OPTIONAL_SIZES,
                block_tokens: int = 16) -> State:
    """Allocates a zeroed state of the given sizes; `sim.build` fills it."""
    return in_one_piece(State(
        Clock.zeros(), Config.zeros(), Pending.zeros(), Queues.zeros(), Gauges.zeros(), Totals.zeros(),
        Observed.zeros(), Integrals.zeros(), np.zeros(3, QUEUE), np.zeros(RULE_PARAMS),
        aligned_zeros(n_requests, REQUEST), np.zeros(n_online, np.int32), np.zeros(n_instances, INSTANCE),
        np.zeros((4, n_instances, max_batch), np.int32), np.zeros((n_instances, 4, max_batch), np.int32),
        np.zeros((n_instances, block_tokens), np.int32),
        np.zeros((n_instances, 2, max_batch), np.int64),
        np.zeros(n_links, LINK),
        np.zeros((pool.role_changes, 2), np.int64),
        np.zeros((3, n_instances + n_links + 1 + (pool.role_changes + pool.groups > 0)), np.int64),
        np.zeros((TASKS, 3), np.int32),
        np.zeros((n_instances, 4, pool.waiting_window), np.int32),
        np.zeros(max_batch, np.int32), np.zeros((2, max_batch), np.int64), np.zeros((n_instances, MEMORY)),
        np.zeros((pool.tiers * n_instances, pool.blocks), BLOCK),
        np.zeros((pool.tiers * n_instances, pool.entries), np.int32),
        np.zeros((n_instances, pool.heaps, 3), np.int64), np.zeros(pool.retained, np.int64),
        np.zeros((pool.tiers - 1) * n_instances, TIER),
        np.zeros((pool.tiers - 1) * n_requests, np.int32), np.zeros((pool.tiers - 1) * n_requests, np.int64),
        np.zeros(pool.hashes, np.int32), np.zeros(pool.distinct, np.int32), np.zeros(pool.ranks, np.int32),
        np.zeros((n_instances, pool.words), np.uint64), np.zeros((n_instances, pool.pairs), PAIR),
        np.zeros((n_instances, pool.pair_entries), np.int32), np.zeros((pool.owners, 3), np.int32),
        Fleet.zeros(), np.zeros(pool.groups, GROUP), np.zeros(n_instances if pool.groups else 0, UNIT),
        np.zeros((5, pool.intervals)), np.zeros((pool.groups, NOTES)), np.zeros((2, pool.foreseen)),
        np.zeros(pool.weights),
        np.zeros((n_instances, 2, 2, pool.outputs), np.int32), np.zeros(pool.deadlines, np.int64),
        np.zeros((pool.predicted, 2)), np.zeros(n_requests if pool.clients else 0, np.int32),
        np.zeros((pool.clients, 4)),
        np.zeros(n_requests if pool.jobs else 0, np.int32), np.zeros((pool.jobs, 6)),
        np.zeros(n_requests if pool.jobs else 0, np.int32),
        np.zeros((max(1, pool.clients // 2) if pool.jobs else 0, TURNS, 4)),
        np.zeros(n_requests + 1 + pool.edges if pool.turns else 0, np.int32),
        np.zeros(n_requests if pool.turns else 0, np.int32), np.zeros(n_requests if pool.turns else 0, np.int64),
        np.zeros((3, 1 + max(pool.turns, pool.quits)), np.int32), np.zeros(n_requests if pool.quits else 0, np.int64),
        np.zeros(ITL_BINS, np.int64),
        np.zeros(evicted, np.int32), aligned_zeros((n_tables, max_batch + 1, 4), np.dtype(np.int64)),
        np.zeros((n_tables, max_batch + 1, 4), np.int64), np.zeros((n_tables, prefill_entries), np.int64),
        np.zeros((n_tables, prefill_entries), np.int64),
        np.zeros((n_tables, max_batch + 1), np.int64), np.zeros((n_tables, pool.shared), np.int64),
        np.zeros((n_tables, GRID_ROWS, GRID_COLUMNS)),
        np.zeros(n_tables, TABLE),
    ))


COST_TABLES = ("decode_lines", "attention_lines", "prefill_ps", "alone_ps", "head_ps", "shared_ps", "attention_grid",
               "tables")
# Never written while an episode runs: copies share these arrays.
SHARED = (*COST_TABLES, "hash_ids", "order", "predicted", "client", "weights", "job", "followers", "think_ps",
          "foreseen", "role_changes")


def share_tables(state: State, other: State) -> State:
    """Returns `state` with `other`'s cost tables if these are equal, so that a vector's episodes
    share them in the cache."""
    equal = all(np.array_equal(getattr(state, name), getattr(other, name)) for name in COST_TABLES)
    return state._replace(**{name: getattr(other, name) for name in COST_TABLES}) if equal else state


def in_one_piece(state: State) -> State:
    """Allocates arrays like all but those of `SHARED` in one block of memory, small ones first: few
    large pages, and the records that an event reads are close together."""
    arrays = sorted(((array.nbytes, name) for name, array in state._asdict().items() if name not in SHARED))
    memory = aligned_zeros(sum(size + -size % CACHE_LINE for size, _ in arrays), np.dtype(np.uint8))
    laid, begin = {}, 0
    for size, name in arrays:
        like = getattr(state, name)
        laid[name] = memory[begin : begin + size].view(like.dtype).reshape(like.shape).view(type(like))
        begin += size + -size % CACHE_LINE
    return state._replace(**laid)


def copy_state(state: State) -> State:
    """Copies an episode: every array except those of `SHARED`."""
    copy = in_one_piece(state)
    for name in set(State._fields) - set(SHARED):
        bytes_of(getattr(copy, name))[:] = bytes_of(getattr(state, name))
    return copy


_EXAMPLE = empty_state(1, 1, 1, 1, 1, 1, 2)
STATE_TYPE = typeof(_EXAMPLE)
state_at = reference_at(STATE_TYPE)  # compiled: the state at a handle's address
_LAYOUT = layout(_EXAMPLE)
HANDLE_BYTES = Handle(_EXAMPLE, _LAYOUT).nbytes  # bytes of a handle: addresses and sizes of a state's arrays


def handle_of(state: State) -> Handle:
    """Lays out a state for `sim.loop.run`; arrays replaced later are not seen.

    Raises:
        UserError: compilation is turned off.
    """
    must_compile()
    return Handle(state, _LAYOUT)


class View(NamedTuple):
    """A rule's view of one decision."""

    state: State
    instance: int | np.int64  # instance of the decision, or -1
    request: int | np.int64  # request of the decision, or -1
    candidates: np.ndarray  # int32[k], the choices; their meaning depends on the point


VIEW_TYPE = types.NamedTuple([Reference(STATE_TYPE), types.int64, types.int64, types.Array(types.int32, 1, "C")], View)
HOOK_SIGNATURE = types.int64(VIEW_TYPE)
HOOK_TYPE = types.FunctionType(HOOK_SIGNATURE)
RULES_TYPE = types.Array(types.int64, 1, "C")  # addresses of the eight rules, in the order of the decision points
rule_at = function_at(HOOK_TYPE)
