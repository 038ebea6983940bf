"""What changes while a cluster runs, as NumPy arrays: the whole state of an episode is one `State`.

Copying its arrays is a checkpoint, comparing them is equality; no Python object lives in the event loop. The clock is
an integer number of picoseconds, so that any grouping of steps sums to the same time, bit for bit.
"""

from typing import NamedTuple

import numpy as np
from numba import typeof, types

from ooco_gym.compile import function_at
from ooco_gym.perf.table import GRID_COLUMNS, GRID_ROWS
from ooco_gym.sim.reference import Handle, Reference, aligned_zeros, copy_of, layer, reference_at

PS_PER_S = 1_000_000_000_000
NEVER = np.iinfo(np.int64).max // 4  # a time that no event reaches; sums of two still fit an int64

# --- Request status -------------------------------------------------------------------------------------------------
FUTURE, WAITING, PREFILLING, PUSH_WAITING, RESIDENT, LEAVING, MOVING, FINISHED, REJECTED = range(9)
STATUS_NAMES = ("future", "waiting", "prefilling", "push_waiting", "resident", "leaving", "moving", "finished",
                "rejected")

# --- Instance roles and activities ----------------------------------------------------------------------------------
RELAXED, STRICT, MIXED = range(3)
ROLE_NAMES = ("relaxed", "strict", "mixed")
IDLE, PREFILL_ONLINE, PREFILL_OFFLINE, DECODE, MIXING = range(5)
ACTIVITY_NAMES = ("idle", "online_prefill", "offline_prefill", "decode", "mixed")

# --- Rows of State.members: who holds KV memory on an instance, and who runs ----------------------------------------
URGENT, OFFLINE, BATCH, SUSPENDED = range(4)

# --- The six decision points (`decisions/`), and no point -----------------------------------------------------------
NO_POINT, ROUTE, INTERRUPT, GATE, COMPOSE, EVICT, PULL = range(7)

# --- Answers with a meaning of their own ----------------------------------------------------------------------------
ASK = -1  # any point: answer from outside the loop
HOLD = -2  # gate: decode what is resident; ask again at the next step boundary
HOLD_UNTIL_CHANGE = -3  # gate: the same, and the answer stays the same until residents, queue or memory change
WAIT = -2  # route, after a prefill: stay in the queue for a decode instance, holding KV memory
STAY = -3  # route, after a prefill: decode where the prefill ran
KEEP, STOP = 0, 1  # interrupt
RECOMPUTE, SWAP = 0, 1  # what becomes of the memory of a request that is preempted on a mixed instance
ALL = -2  # compose: everything decodable that is resident
DECLINE = -2  # evict, where memory is short for somebody who could wait: nobody gives way
FULL = -2  # pull: no room; ask again only after this instance's own residents have changed

# --- Why the loop returned ------------------------------------------------------------------------------------------
ASKED, HORIZON, LOG_FULL, DONE = range(4)

# --- Tasks: work that an event left behind, each resumable at its decision ------------------------------------------
ARRIVE, INTERRUPT_FOR, PLACE, RETRY_PUSHES, DISPATCH = range(5)

REQUEST = np.dtype(
    [
        # what every decode step, and every look along a queue, touches: one line of the processor's cache
        ("prompt_tokens", np.int32),
        ("output_tokens", np.int32),
        ("generated_tokens", np.int32),
        ("blocks", np.int32),  # KV blocks held on `instance`
        ("last_token_ps", np.int64),
        ("max_gap_ps", np.int64),
        ("latest_ps", np.int64),  # when a TPOT miss becomes certain: known from the first decode step on
        ("first_decode_ps", np.int64),
        ("online", np.int8),
        ("urgent", np.int8),  # scheduled as online work; differs from `online` only under a class-blind policy
        ("counted", np.int8),  # arrived in the measured window
        ("status", np.int8),
        ("violated", np.int8),  # bit 0: TTFT missed, bit 1: TPOT missed, certain and charged
        ("next", np.int32),  # the one behind it in the one queue that holds it
        ("position", np.int32),  # index in its instance's member list, as last numbered (`queues.number_members`)
        # what an observation, and the first token, touch besides: the next line
        ("arrival_ps", np.int64),
        ("ttft_slo_ps", np.int64),
        ("tpot_slo_ps", np.int64),
        ("first_token_ps", np.int64),
        ("instance", np.int32),  # where its KV memory is, or where it waits
        ("origin", np.int32),  # the relaxed instance that it was routed to
        ("target", np.int32),  # where it is moving to
        ("previous", np.int32),  # the one before it in its queue
        ("kv_lost", np.int32),  # its KV memory was taken: the next prefill recomputes it (mixed: so many tokens)
        ("evictions", np.int32),
        ("migrations", np.int32),
        ("interruptions", np.int32),
        ("service_ps", np.int64),  # reference GPU time of the whole request (PROTOCOL: offline service)
        ("finish_ps", np.int64),
        ("wasted_tokens", np.int64),  # recomputed: by eviction and by interruption
        ("wasted_ps", np.int64),  # instance time spent on them, in proportion
        ("target_blocks", np.int32),  # KV blocks reserved on `target`
        ("target_context", np.int32),  # context length when they were reserved
        # on mixed instances
        ("computed_tokens", np.int32),  # tokens whose keys and values are in memory
        ("scheduled_tokens", np.int32),  # new tokens in the iteration in progress
        ("host_tokens", np.int32),  # of them, in host memory: swapped out
        ("cached_tokens", np.int32),  # found in the prefix cache at its first admission (-1: not admitted yet)
        ("row", np.int32),  # of its block table (State.kv), or -1; with this, three whole cache lines a request
    ],
    align=True,
)

INSTANCE = np.dtype(
    [
        ("role", np.int32),
        ("table", np.int32),  # truth: row of the cost tables
        ("belief", np.int32),  # what a policy believes: row of the cost tables
        ("activity", np.int32),
        ("total_blocks", np.int64),
        ("free_blocks", np.int64),
        # the iteration, or run of equal decode steps, in progress
        ("start_ps", np.int64),
        ("end_ps", np.int64),
        ("steps", np.int64),  # decode steps in the run
        ("batch_size", np.int64),  # requests in the iteration when it began; sets its cost
        ("context", np.int64),  # sum of their context lengths at the first step
        ("running", np.int64),  # entries of members[BATCH] still there (evictions take some away)
        ("all_included", np.int32),  # the batch holds everything decodable
        ("stage", np.int32),  # how far a dispatch has got (sim/dispatch.py)
        ("hold", np.int32),  # the gate's last answer, where it was a hold
        ("interrupted", np.int32),  # ends at a layer boundary before its natural end
        ("natural_end_ps", np.int64),  # when it would have ended
        ("left", np.int64),  # steps after which the first request of the batch has all its tokens
        ("miss_ps", np.int64),  # the first of the batch's `latest_ps`
        ("bound_ps", np.int64),  # the composition stays right while the believed latency is within it
        ("steps_begun", np.int64),  # decode steps so far: key of random draws
        # what changes with every step of its members, as far as it is not in their records (sim/lanes.py)
        ("whole", np.int32),  # the batch is every member, in the order of the lists
        ("lanes", np.int32),  # its members have lanes
        ("stale", np.int32),  # and their records are behind
        ("unwritten", np.int32),  # what its batch row lacks, as nobody has looked at it
        ("laned_urgent", np.int32),  # members that have lanes, the first ones of their list
        ("laned_offline", np.int32),
        ("seasoned_urgent", np.int32),  # of these, who has made a step on them
        ("seasoned_offline", np.int32),
        ("lane_counted", np.int32),  # of these, online requests that count
        ("lane_steps", np.int64),  # steps since the lanes began
        ("lane_first", np.int64),  # the step at which the first of them has all its tokens, if known
        ("lane_held", np.int64),  # the step up to which the memory of all tokens is held
        ("lane_token_ps", np.int64),  # when the last of these steps ended
        ("lane_miss_ps", np.int64),  # when the first TPOT miss of one becomes certain, if known
        ("lane_gap_ps", np.int64),  # no urgent member's longest time between two tokens is below
        # queues (heads and tails of linked lists of requests) and member counts
        ("online_head", np.int32),
        ("online_tail", np.int32),
        ("online_waiting", np.int64),
        ("online_waiting_tokens", np.int64),
        ("offline_head", np.int32),
        ("offline_tail", np.int32),
        ("offline_waiting", np.int64),
        ("offline_waiting_tokens", np.int64),
        ("front_size", np.int64),  # entries of State.front
        ("urgent_members", np.int64),
        ("offline_members", np.int64),
        ("decodable", np.int64),  # members with status RESIDENT
        ("urgent_decodable", np.int64),  # of those, urgent ones
        ("urgent_context", np.int64),  # sum of the context lengths of the urgent ones, as far as settled
        ("offline_context", np.int64),  # and of the others
        ("urgent_running", np.int64),  # urgent members in the running batch
        ("arriving", np.int64),  # requests whose transfer to here is reserved or under way
        ("arriving_pulls", np.int64),  # of those, pulled offline ones
        ("arriving_context", np.int64),  # their context lengths in all
        ("leaving", np.int64),  # pulled requests whose step here is still in progress
        ("suspended", np.int64),  # requests of an interrupted prefill kept for resumption
        ("suspended_layers", np.int64),  # layers that they have done
        ("suspended_ps", np.int64),  # instance time spent on these layers
        ("pull_wake_ps", np.int64),  # ask for a pull again at this time
        ("last_pull_ps", np.int64),
        ("pull_due", np.int32),  # something changed since the last pull decision
        ("hungry", np.int32),  # the last pull decision found room here but nobody to pull
        ("queued", np.int32),  # a DISPATCH task for it is in the ring
        # sums for metrics
        ("online_prefill_ps", np.int64),
        ("offline_prefill_ps", np.int64),
        ("decode_ps", np.int64),
        ("wasted_ps", np.int64),
        ("decode_steps", np.int64),
        ("decoded_tokens", np.int64),
        ("kv_since_ps", np.int64),
        ("kv_area", np.float64),  # block-seconds in use
        # mixed instances: the iteration in progress, memory beyond the device's, prefix cache
        ("new_tokens", np.int64),  # that it computes; of them
        ("online_tokens", np.int64),  # prompts' of online requests
        ("offline_tokens", np.int64),  # and of offline ones
        ("swap_tokens", np.int64),  # whose keys and values cross the link to host memory in the next iteration
        ("swapped_tokens", np.int64),  # and have crossed it so far
        ("host_free_blocks", np.int64),
        ("rows_free", np.int64),  # block tables that nobody has
        ("looked_tokens", np.int64),  # context lengths at first admission, so far
        ("cached_tokens", np.int64),  # and how many of these tokens were found in the prefix cache
    ],
    align=True,
)

LINK = np.dtype(
    [
        ("source", np.int32),
        ("target", np.int32),
        ("current", np.int32),  # request on the wire, or -1
        ("push_head", np.int32),
        ("push_tail", np.int32),
        ("pull_head", np.int32),
        ("pull_tail", np.int32),
        ("bytes_per_s", np.float64),
        ("busy_ps", np.int64),
    ],
    align=True,
)

TABLE = np.dtype(
    [
        ("prefill_slope_ps", np.int64),
        ("prefill_floor_ps", np.int64),
        # attention of a prefill, as `perf.Attention` but in ps
        ("roofs", np.float64, (2, 4)),
        ("linear", np.float64, (4,)),
        ("launch", np.float64),
        ("critical", np.float64),
        ("exponent", np.float64),  # infinity: the largest term
        ("causal", np.float64),
        ("tile", np.int64),
        ("measured", np.int64),  # 1: State.attention_grid instead
        ("kv_bytes_per_token", np.float64),
        ("noise", np.float64),  # relative spread of a belief, or of the truth (jitter); 0 is off
        ("layers", np.int64),
        ("bs_sat", np.int64),
    ],
    align=True,
)

BLOCK = np.dtype(
    [
        ("key", np.int64),  # what it holds (`sim.blocks.key_of`), or 0
        ("references", np.int32),  # running requests that read it
        ("previous", np.int32),  # neighbours in the queue of blocks that may be taken
        ("next", np.int32),
        ("twin", np.int32),  # the next block with the same key, or -1
        ("level", np.int32),  # of these queues, the one it is in
        ("online", np.int32),  # who let go of it last
    ],
    align=True,
)

PAIR = np.dtype(
    [
        ("online", np.int32),  # slot of the request whose tokens lie on the left, or -1
        ("online_used", np.int32),  # how many
        ("offline", np.int32),  # slot of the request whose tokens lie on the right, or -1
        ("offline_used", np.int32),
        ("preempted", np.int32),  # of that request's tokens here, overwritten: they are in host memory
        ("online_next", np.int32),  # the next block of the same online request, or -1
        ("offline_next", np.int32),
        ("before", np.int32),  # neighbours in the list of blocks of one kind with as many empty slots
        ("after", np.int32),
    ],
    align=True,
)

LOG = np.dtype([("time_ps", np.int64), ("kind", np.int32), ("instance", np.int32), ("request", np.int32),
                ("value", np.int64)], align=True)

# --- Slots of State.counters ----------------------------------------------------------------------------------------
(NOW, NEXT_ARRIVAL, NEXT_ARRIVAL_PS, SOURCE, TASK_HEAD, TASK_TAIL, PENDING, PENDING_INSTANCE, PENDING_REQUEST,
 PENDING_COUNT, NEXT_DEADLINE, NEXT_DEADLINE_PS, OPEN_ONLINE, LOG_USED, HEAP_SIZE, PUSH_HEAD, PUSH_TAIL,
 OFFLINE_PUSH_HEAD, OFFLINE_PUSH_TAIL,
 SEED, WINDOW_START, WINDOW_END,
 # settings of the run
 BULK, CLASS_BLIND, GATE_WINDOW, PREFILL_TOKENS, LAYER_RESUME, BLOCK_TOKENS, TPOT_MIN_TOKENS, TPOT_FROM_DECODE,
 GATE_POLL_PS, JITTER, RELAXED_COUNT, ROUTE_STEP, ANSWER, ANSWERED, RATE_PS, OUTSTANDING_PS, OUTSTANDING_SINCE_PS,
 GAP_PS, MIXED_TOKENS, MIXED_SEQUENCES, RESERVED_BLOCKS, PREFIX_CACHING, KV_PRIORITY, WAITING_ORDER, SWAP_OVERLAP,
 HOST_BYTES_PER_S, INDEX_SIZE, ROWS, ROW_SIZE, BIDIRECTIONAL,
 DEFAULT_TTFT_PS, DEFAULT_TPOT_PS, OWN_TPOT, SETTLED_PS, WRITES_DOWN,  # 1: rules settle whom they look at
 # sums since the beginning: rewards and progress are differences of these
 ONLINE_ARRIVED, ONLINE_FINISHED, TTFT_MISSES, TPOT_MISSES, VIOLATIONS, OFFLINE_ARRIVED, OFFLINE_FINISHED,
 SERVICE_PS, OFFLINE_OUTPUT_TOKENS, OFFLINE_PROMPT_TOKENS, WASTED_TOKENS, WASTED_PS, EVICTIONS, MIGRATIONS,
 INTERRUPTIONS, DECISIONS, EVENTS, LATE_OPEN, COUNTERS) = range(76)

# --- Slots of State.stats (float64): what a policy may have observed so far, WAITING_AREA (reference GPU-seconds of
# offline work in the system, times seconds), LATE_TIMES (microseconds at which counted online requests that missed an
# SLO finished, less those at which they missed it) --------------------------------------------------------------------
(OFFLINE_EVICTED_SHARE, OFFLINE_OUTPUT_MEAN, ONLINE_OUTPUT_MEAN, ONLINE_RATE_FAST, ONLINE_RATE_SLOW, OFFLINE_SEEN,
 ONLINE_SEEN, WAITING_AREA, ONLINE_RATE_MINUTE, ONLINE_RATE_HALF_HOUR, LATE_TIMES, STATS) = range(12)

DEFAULT_GATE_WINDOW = 8  # waiting requests that a gate looks at, where its policy does not say
PARAMS = 48  # room for a policy's own parameters
MEMORY = 16  # figures that a policy may keep for each instance from one decision to the next
LEVELS = 64  # queues of blocks that may be taken, lowest first
HASH_TOKENS = 512  # of a prompt, to each of a trace's prefix hashes
BUCKETS = 32  # of prompt lengths: powers of two
TASKS = 4096  # tasks that may be open at once: a ring
ITL_BINS = 512  # inter-token times, logarithmic bins from 0.1 ms, 2 % wide


class State(NamedTuple):
    """The state of one episode. Shapes: n requests, m instances, l links, t cost tables, B largest batch."""

    counters: np.ndarray  # int64[COUNTERS]
    stats: np.ndarray  # float64[STATS]
    params: np.ndarray  # float64[PARAMS], the policy's own
    requests: np.ndarray  # REQUEST[n], sorted by arrival
    deadlines: np.ndarray  # int32[online n], request slots sorted by TTFT deadline
    instances: np.ndarray  # INSTANCE[m]
    members: np.ndarray  # int32[4, m, B], rows URGENT, OFFLINE (holders of KV memory), BATCH (who runs), SUSPENDED
    lanes: np.ndarray  # int32[m, 4, B], rows FINISH, BASE, each for URGENT and OFFLINE members (`sim.lanes`)
    ends: np.ndarray  # int32[m, tokens of a block], members with lanes by BASE, modulo
    gaps: np.ndarray  # int64[m, 2, B], rows GAP, LATEST, of URGENT members
    links: np.ndarray  # LINK[l]
    heap: np.ndarray  # int64[3, m + l], indexed heap of event sources: time by source, heap order, place by source
    tasks: np.ndarray  # int32[TASKS, 3], ring of (kind, instance, request)
    front: np.ndarray  # int32[m, 4, w], the first w waiting offline requests of each instance (`sim.front`)
    picks: np.ndarray  # int32[B], wide answers and candidates
    scratch: np.ndarray  # int64[2, B], working room of rules
    memory: np.ndarray  # float64[m, MEMORY], the policy's own
    blocks: np.ndarray  # BLOCK[m, blocks], where they are told apart; else BLOCK[m, 0]
    kv: np.ndarray  # int32[m, …], parts as `sim.blocks` lays them out: index of keys, block tables, queues of blocks
    hash_ids: np.ndarray  # int32[n + 1 + …], where each request's prefix hashes begin and end, then all of them
    reuse: np.ndarray  # int32[prefix hashes], offline requests in the system that share each
    order: np.ndarray  # int32[2 n + BUCKETS + 1] or empty: rank by slot, slot by rank, first rank of each bucket
    waiting: np.ndarray  # uint64[m, …] or empty: waiting offline requests by rank, as a tree of bits (`sim.order`)
    pairs: np.ndarray  # PAIR[m, blocks], where blocks have two owners (`sim.bidirectional`); else PAIR[m, 0]
    pair_lists: np.ndarray  # int32[m, …], their lists by kind and empty slots, and two sums
    owned: np.ndarray  # int32[n, 3] or int32[0, 3]: a request's first and last such block, and its slots in them
    itl: np.ndarray  # int64[ITL_BINS], inter-token times of counted online requests
    log: np.ndarray  # LOG[capacity], empty where logging is off
    decode_lines: np.ndarray  # int64[t, B + 1, 4], as `perf.CostTable`
    attention_lines: np.ndarray  # int64[t, B + 1, 4]
    prefill_ps: np.ndarray  # int64[t, P]
    alone_ps: np.ndarray  # int64[t, P], prefill of one prompt of so many tokens, all in all; 0: not worked out
    head_ps: np.ndarray  # int64[t, B + 1]
    attention_grid: np.ndarray  # float64[t, GRID_ROWS, GRID_COLUMNS], log2 of ps
    tables: np.ndarray  # TABLE[t]


class Pool(NamedTuple):
    """Sizes of what only some policies need: blocks told apart, prefix hashes, an order of the waiting, its front."""

    blocks: int = 0
    entries: int = 0
    hashes: int = 0
    distinct: int = 0
    ranks: int = 0
    words: int = 0
    pairs: int = 0
    pair_entries: int = 0
    owners: int = 0
    front: int = 0


NO_POOL = Pool()


def empty_state(n_requests: int, n_online: int, n_instances: int, n_links: int, n_tables: int, max_batch: int,
                prefill_entries: int, log_capacity: int = 0, pool: Pool = NO_POOL, block_tokens: int = 16) -> State:
    """Allocates a state of the given sizes, zeroed; `sim.build` fills it."""
    return State(
        np.zeros(COUNTERS, np.int64), np.zeros(STATS), np.zeros(PARAMS), aligned_zeros(n_requests, REQUEST),
        np.zeros(n_online, np.int32), np.zeros(n_instances, INSTANCE),
        np.zeros((4, n_instances, max_batch), np.int32), np.zeros((n_instances, 4, max_batch), np.int32),
        np.zeros((n_instances, block_tokens), np.int32),
        np.zeros((n_instances, 2, max_batch), np.int64),
        np.zeros(n_links, LINK),
        np.zeros((3, n_instances + n_links), np.int64), np.zeros((TASKS, 3), np.int32),
        np.zeros((n_instances, 4, pool.front), np.int32),
        np.zeros(max_batch, np.int32), np.zeros((2, max_batch), np.int64), np.zeros((n_instances, MEMORY)),
        np.zeros((n_instances, pool.blocks), BLOCK), np.zeros((n_instances, pool.entries), np.int32),
        np.zeros(pool.hashes, np.int32), np.zeros(pool.distinct, np.int32), np.zeros(pool.ranks, np.int32),
        np.zeros((n_instances, pool.words), np.uint64), np.zeros((n_instances, pool.pairs), PAIR),
        np.zeros((n_instances, pool.pair_entries), np.int32), np.zeros((pool.owners, 3), np.int32),
        np.zeros(ITL_BINS, np.int64),
        np.zeros(log_capacity, LOG), aligned_zeros((n_tables, max_batch + 1, 4), np.dtype(np.int64)),
        np.zeros((n_tables, max_batch + 1, 4), np.int64), np.zeros((n_tables, prefill_entries), np.int64),
        np.zeros((n_tables, prefill_entries), np.int64),
        np.zeros((n_tables, max_batch + 1), np.int64), np.zeros((n_tables, GRID_ROWS, GRID_COLUMNS)),
        np.zeros(n_tables, TABLE),
    )


COST_TABLES = ("decode_lines", "attention_lines", "prefill_ps", "alone_ps", "head_ps", "attention_grid", "tables")
SHARED = (*COST_TABLES, "hash_ids", "order")  # never written while an episode runs: its copies have the same arrays


def share_tables(state: State, other: State) -> State:
    """The first episode with the cost tables of the other, where they are equal: side by side, they are read once."""
    equal = all(np.array_equal(getattr(state, name), getattr(other, name)) for name in COST_TABLES)
    return state._replace(**{name: getattr(other, name) for name in COST_TABLES}) if equal else state


def copy_state(state: State) -> State:
    """Copies an episode: every array but those of `SHARED`."""
    return State(*(value if name in SHARED else copy_of(value) for name, value in state._asdict().items()))


STATE_TYPE = typeof(empty_state(1, 1, 1, 1, 1, 1, 2))
state_at = reference_at(STATE_TYPE)  # compiled: the state of a handle's address
_lay_state = layer(STATE_TYPE)


def handle_of(state: State) -> Handle:
    """Lays a state down for `sim.loop.run`; arrays that are exchanged later are not seen."""
    return Handle(state, _lay_state)


class View(NamedTuple):
    """What a rule sees at one decision."""

    state: State
    instance: int | np.int64  # where the decision is taken, or -1
    request: int | np.int64  # whom it is about, or -1
    candidates: np.ndarray  # int32[k], what may be chosen; its meaning depends on the point


VIEW_TYPE = types.NamedTuple([Reference(STATE_TYPE), types.int64, types.int64, types.Array(types.int32, 1, "C")], View)
HOOK_SIGNATURE = types.int64(VIEW_TYPE)
HOOK_TYPE = types.FunctionType(HOOK_SIGNATURE)
RULES_TYPE = types.Array(types.int64, 1, "C")  # addresses of the six rules, in the order of the decision points
rule_at = function_at(HOOK_TYPE)
