"""Memory layout of an episode's records: requests, instances, links, cost tables, blocks, and named
numbers of the whole episode (`Record`)."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from numba import from_dtype
from numba.extending import typeof_impl

from ooco_gym.compile.references import RecordType

CACHE_LINE = 64


def aligned_zeros(shape: int | tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Returns zeros that start at a cache line."""
    size = int(np.prod(shape)) * dtype.itemsize
    capacity = np.zeros(size + CACHE_LINE, np.uint8)
    start = -capacity.ctypes.data % CACHE_LINE
    return capacity[start : start + size].view(dtype).reshape(shape)


def bytes_of(array: np.ndarray) -> np.ndarray:
    """Views a contiguous array as bytes, uint8 (n,). Copying these is thirty times faster than
    NumPy's copy field by field."""
    return array.reshape(-1).view(np.uint8)


# --- Arrays of records ----------------------------------------------------------------------------------------------
REQUEST = np.dtype(
    [
        # fields read along a queue, and in a flush (`sim.lanes`): one cache line
        ("prompt_tokens", np.int32),
        ("output_tokens", np.int32),
        ("generated_tokens", np.int32),
        ("blocks", np.int32),  # KV blocks held on `instance`
        ("last_token_ps", np.int64),
        ("max_gap_ps", np.int64),
        ("latest_ps", np.int64),  # when a TPOT violation becomes certain, from the first token on; before that, if
        # the decode instance generates it: end of the hand-over, then start of the generating step
        ("first_decode_ps", np.int64),
        ("online", np.int8),
        ("urgent", np.int8),  # scheduled as online work; differs from `online` only under a class-blind policy
        ("counted", np.int8),  # arrived in the measured window
        ("status", np.int8),
        ("violated", np.int8),  # bit 0: TTFT violated, bit 1: TPOT violated, certain and charged
        ("next", np.int32),  # the next request in its queue
        ("position", np.int32),  # index in its instance's member list, as last numbered (`queues.number_members`)
        # fields that an observation, and the first token, also read: the next line
        ("arrival_ps", np.int64),
        ("ttft_slo_ps", np.int64),
        ("tpot_slo_ps", np.int64),
        ("first_token_ps", np.int64),
        ("instance", np.int32),  # instance of its KV memory, or where it waits
        ("origin", np.int32),  # the relaxed instance that it was routed to
        ("target", np.int32),  # destination of its move
        ("previous", np.int32),  # the previous request in its queue
        ("kv_lost", np.int32),  # its KV memory was lost and must be recomputed (mixed: number of tokens)
        ("evictions", np.int32),
        ("migrations", np.int32),
        ("interruptions", np.int32),
        ("service_ps", np.int64),  # reference GPU time of the whole request (docs/protocol.md: offline service)
        ("finish_ps", np.int64),
        ("wasted_tokens", np.int64),  # recomputed: by eviction and by interruption
        ("wasted_ps", np.int64),  # instance time spent on these, in proportion
        ("target_blocks", np.int32),  # KV blocks reserved on `target`
        ("target_context", np.int32),  # context length when they were reserved
        # on mixed instances
        ("num_computed_tokens", np.int32),  # vLLM's: tokens whose keys and values are in memory
        ("num_scheduled_tokens", np.int32),  # new tokens in the iteration in progress
        ("host_tokens", np.int32),  # of these, in host memory: swapped out, or copied there
        ("cached_tokens", np.int32),  # found in the prefix cache at its first admission (-1: not admitted yet)
        ("row", np.int32),  # of its block table (State.kv), or -1; a request fills three cache lines
    ],
    align=True,
)

INSTANCE = np.dtype(
    [
        ("role", np.int32),
        ("table", np.int32),  # truth: row of the cost tables
        ("belief", np.int32),  # the policy's prediction: row of the cost tables
        ("activity", np.int32),
        ("total_blocks", np.int64),
        ("free_blocks", np.int64),
        # the iteration, or run of equal decode steps, in progress
        ("start_ps", np.int64),
        ("end_ps", np.int64),
        ("steps", np.int64),  # decode steps in the run
        ("batch_size", np.int64),  # requests in the iteration when it began; sets its cost
        ("context", np.int64),  # sum of their context lengths at the first step
        ("running", np.int64),  # entries of members[BATCH] still there (evictions remove some)
        ("all_included", np.int32),  # the batch holds everything decodable
        ("stage", np.int32),  # how far a dispatch has got (sim/dispatch.py)
        ("hold", np.int32),  # the gate's last answer, if it was a hold
        ("interrupted", np.int32),  # ends at a layer boundary before its natural end
        ("natural_end_ps", np.int64),  # when it would have ended
        ("left", np.int64),  # steps until the first request of the batch has all its tokens
        ("miss_ps", np.int64),  # the first of the batch's `latest_ps`
        ("bound_ps", np.int64),  # the composition stays valid while the predicted latency is within it
        ("steps_begun", np.int64),  # decode steps so far: key of random draws
        # values that change with every step of its members, outside their records (sim/lanes.py)
        ("whole", np.int32),  # the batch is every member, in the order of the lists
        ("lanes", np.int32),  # its members have lanes
        ("stale", np.int32),  # their records are behind
        ("unwritten", np.int32),  # unwritten part of its batch row (`lanes`: WRITTEN, COMPOSED, ENDED)
        ("laned_urgent", np.int32),  # members with lanes, the first ones of their list
        ("laned_offline", np.int32),
        ("seasoned_urgent", np.int32),  # of these, members that have made a step on lanes
        ("seasoned_offline", np.int32),
        ("lane_counted", np.int32),  # of these, counted online requests
        ("power", np.int32),  # ON, or in an elastic fleet another state (`sim.fleet`)
        ("lane_steps", np.int64),  # steps since the lanes began
        ("lane_first", np.int64),  # step at which the first member has all its tokens, if known
        ("lane_held", np.int64),  # step up to which the memory of all tokens is held
        ("lane_token_ps", np.int64),  # end of the last of these steps
        ("lane_miss_ps", np.int64),  # when the first TPOT violation becomes certain, if known
        ("lane_gap_ps", np.int64),  # lower bound of urgent members' longest inter-token times
        # queues (heads and tails of linked lists of requests) and member counts
        ("online_head", np.int32),
        ("online_tail", np.int32),
        ("online_waiting", np.int64),
        ("online_waiting_tokens", np.int64),
        ("offline_head", np.int32),
        ("offline_tail", np.int32),
        ("offline_waiting", np.int64),
        ("offline_waiting_tokens", np.int64),
        ("window_size", np.int64),  # entries of State.waiting_window
        ("urgent_members", np.int64),
        ("offline_members", np.int64),
        ("decodable", np.int64),  # members with status RESIDENT
        ("urgent_decodable", np.int64),  # of these, urgent ones
        ("urgent_context", np.int64),  # sum of the context lengths of the urgent ones, as far as flushed
        ("offline_context", np.int64),  # the same of the others
        ("urgent_running", np.int64),  # urgent members in the running batch
        ("arriving", np.int64),  # requests with a transfer to here, reserved or in progress
        ("arriving_pulls", np.int64),  # of these, pulled offline ones
        ("arriving_context", np.int64),  # sum of their context lengths
        ("leaving", np.int64),  # pulled requests whose step here is in progress
        ("suspended", np.int64),  # requests of an interrupted prefill to resume; mixed: of members[FINISHING]
        ("suspended_layers", np.int64),  # layers that these have done
        ("suspended_ps", np.int64),  # instance time spent on these layers
        ("pull_wake_ps", np.int64),  # ask for a pull again at this time
        ("last_pull_ps", np.int64),
        ("pull_due", np.int32),  # something changed since the last pull decision
        ("wants_pull", np.int32),  # the last pull decision found free space here but no request to pull
        ("queued", np.int32),  # a DISPATCH task for it is in the ring
        ("composed", np.int32),  # 1: the iteration after the present one is composed (asynchronous scheduling); 2,
        # on a rank: its iteration starts when the other ranks have composed
        # sums for metrics
        ("online_prefill_ps", np.int64),
        ("offline_prefill_ps", np.int64),
        ("decode_ps", np.int64),
        ("wasted_ps", np.int64),
        ("decode_steps", np.int64),
        ("decoded_tokens", np.int64),
        ("kv_times_us", np.int64),  # sum of times of blocks taken, minus those returned (`take_blocks_since`)
        # mixed instances: the iteration in progress, memory beyond the device's, prefix cache
        ("new_tokens", np.int64),  # tokens that it computes; of these
        ("online_tokens", np.int64),  # prompt tokens of online requests
        ("offline_tokens", np.int64),  # prompt tokens of offline ones
        ("swap_tokens", np.int64),  # tokens whose KV crosses the link to host memory in the next iteration
        ("swapped_tokens", np.int64),  # tokens whose KV has crossed it so far
        ("host_free_blocks", np.int64),
        ("rows_free", np.int64),  # free block tables
        ("online_finished", np.int64),  # requests finished here, if their lengths are kept
        ("offline_finished", np.int64),
        ("looked_tokens", np.int64),  # context lengths at first admission, so far
        ("cached_tokens", np.int64),  # of these, tokens found in the prefix cache
        ("first_rank", np.int32),  # index of the first data-parallel rank of its group (`sim.ranks`)
        ("ranks", np.int32),  # number of ranks in the group; 0: no rank
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

BLOCK = np.dtype(
    [
        ("key", np.int64),  # key of its content (`sim.blocks.key_of`), or 0
        ("references", np.int32),  # running requests that read it
        ("previous", np.int32),  # neighbours in the queue of free blocks; or index in the heap
        ("next", np.int32),
        ("twin", np.int32),  # the next block with the same key, or -1
        ("level", np.int32),  # index of its queue
        ("online", np.int32),  # class of the last request that read it
    ],
    align=True,
)

TIER = np.dtype(  # an instance's second tier in host memory; apart, as INSTANCE fills whole cache lines
    [
        ("blocks", np.int64),  # capacity
        ("loaded_tokens", np.int64),  # tokens loaded from there so far
        ("link_free_ps", np.int64),  # when the last load is complete
        ("hits", np.int64),  # of the instance's `cached_tokens`, those found only there
    ]
)

UNIT = np.dtype(  # what an instance of an elastic fleet has beside its `power` (`sim.fleet`)
    [
        ("group", np.int64),
        ("begun_ps", np.int64),  # begin of its present start
        ("due_ps", np.int64),  # when the clock changes its state, or NEVER
        ("notice", np.int64),  # 1: it is reclaimed, and ends at `due_ps`; 2: it ends now
        ("used_ps", np.int64),  # time from starts to ends of drains, without the present one
    ]
)

GROUP = np.dtype(  # a cluster's group of equal instances, some of which are on
    [
        ("first", np.int64),  # index of its first instance
        ("engines", np.int64),  # number of its instances, on or not
        ("least", np.int64),  # `min` and `max` of the cluster's YAML
        ("most", np.int64),
        ("count", np.int64),  # on at the beginning
        ("start_ps", np.int64),
        ("notice_ps", np.int64),
        ("rate_per_h", np.float64),  # of reclaims of an instance
        ("chips", np.int64),  # of an instance
        ("target", np.int64),  # the last answer, within its bounds
        ("starts", np.int64),  # so far
        ("reclaims", np.int64),
    ]
)

PAIR = np.dtype(
    [
        ("online", np.int32),  # slot of the request with the left tokens, or -1
        ("online_used", np.int32),  # number of these tokens
        ("offline", np.int32),  # slot of the request with the right tokens, or -1
        ("offline_used", np.int32),
        ("preempted", np.int32),  # overwritten tokens of that request, now in host memory
        ("online_next", np.int32),  # the next block of the same online request, or -1
        ("offline_next", np.int32),
        ("before", np.int32),  # neighbours in the list of blocks of equal kind and empty slots
        ("after", np.int32),
    ],
    align=True,
)

QUEUE = np.dtype([("head", np.int64), ("tail", np.int64)])  # of a linked list of requests; -1: empty


# --- Named numbers --------------------------------------------------------------------------------------------------
class Record(np.ndarray):
    """Named numbers of one type: `record.name` reads and writes one, also in compiled code.

    A subclass declares the names: `class Clock(Record): now_ps: int`. In Python it is an array,
    which can be copied and compared. Compiled code gets a pointer to a numba record, with each
    number at a constant offset.
    """

    fields: tuple[str, ...]
    compiled: Any  # numba's type

    def __init_subclass__(cls, number: type = np.int64) -> None:
        cls.fields = tuple(cls.__annotations__)
        size, kind = np.dtype(number).itemsize, from_dtype(np.dtype(number))
        fields = [(name, {"type": kind, "offset": size * index}) for index, name in enumerate(cls.fields)]
        cls.compiled = RecordType(fields, size * len(fields), True)
        cls.number = number
        for index, name in enumerate(cls.fields):
            setattr(cls, name, _field(index))

    @classmethod
    def zeros(cls) -> Self:
        """A record of zeros."""
        return aligned_zeros(len(cls.fields), np.dtype(cls.number)).view(cls)

    def as_dict(self) -> dict[str, Any]:
        """The numbers by name."""
        return dict(zip(self.fields, self.tolist(), strict=True))


def _field(index: int) -> property:
    return property(lambda record: record[index], lambda record, value: record.__setitem__(index, value))


@typeof_impl.register(Record)
def _typeof_record(value, context):
    return type(value).compiled


class Clock(Record):
    """Times of the episode."""

    now_ps: int
    source: int  # source of the last event at this time: -1 an arrival, then instances and links by index
    next_arrival: int  # slot of the next request that arrives at the trace's own time
    next_arrival_ps: int  # of any request; 0: must be looked up
    next_of_clients: int  # slot from which the next request of `Config.clients` is looked for
    last_arrival: int  # slot of the last arrived request, or -1
    next_deadline: int  # index in State.deadlines of the next TTFT deadline
    next_deadline_ps: int
    last_online_arrival_ps: int
    window_start_ps: int  # the measured window
    window_end_ps: int


class Config(Record):
    """Settings of the run, which nothing but `sim.roles` (who is relaxed) writes once an episode has begun."""

    seed: int
    bulk: int  # many decode steps at once
    class_blind: int  # offline requests are scheduled as online ones
    gate_window: int  # number of waiting requests that a gate looks at
    prefill_tokens: int  # budget of one prefill batch
    local_prefill_tokens: int  # longest prompt, after its cached part, that is prefilled where it decodes
    layer_resume: int  # an interrupted prefill resumes at the layer reached
    block_tokens: int
    hash_tokens: int  # prompt tokens per prefix hash of the trace
    tpot_min_tokens: int
    tpot_from_decode: int
    gate_poll_ps: int
    relaxed_count: int  # number of instances that arrivals are routed to, the first ones (`sim.roles` moves it)
    strict_from: int  # first instance that prefilled requests are routed to (`sim.roles`)
    mixed_count: int  # beside pools, mixed instances: those between relaxed and strict ones
    side: int  # beside pools, whether State.params begins with the parameters of the mixed instances' policy
    between_rule: int  # beside pools, while compiled code runs, addresses of the rule that chooses between both, and
    mixed_compose: int  # of the mixed instances' policy's rules; else 0 (`sim.loop.run`)
    mixed_interrupt: int
    wanted_relaxed: int  # relaxed instances once all that change their role have done so
    next_change: int  # row of State.role_changes
    first_target: int  # first instance that is strict at some time
    inter_token_slo_ps: int  # NEVER: none
    max_num_batched_tokens: int  # of an iteration of a mixed instance
    max_num_seqs: int
    long_prefill_token_threshold: int  # most new tokens of a request where others are there; 0: no limit
    least_blocks: int  # of the smallest instance
    reserved_blocks: int
    max_position: int  # most tokens of a request, prompt and output, that the model allows; 0: no limit
    prefix_caching: int
    kv_priority: int
    retention: int  # which free block is taken first (`sim.retention`)
    pinned_ps: int  # time that `ttl` holds blocks
    retain_wrong: int  # answers of that rule that are no number of microseconds
    retain_rule: int  # address of the rule for `retain` while compiled code runs, else 0 (`sim.loop.run`)
    waiting_order: int  # 0 by arrival, BY_PREFIX, BY_BUCKET, BY_KEY
    swap_overlap: int
    safepoint_layers: int  # layers between safepoints of an iteration of only offline work; 0: none
    aging_s: int  # mixed instances: wait after which an offline request is served as an online one; 0: never
    preempted_kv: int  # memory of preempted offline requests (RECOMPUTE, …); CHECKPOINT keeps host copies
    preempt: int  # which running request is preempted: index in `policy.mixed.VICTIMS`
    learns_lengths: int  # whether policies predict outputs from what has ended of a client (`policy.lengths`)
    output_window: int  # number of output lengths kept of an instance's last finished requests
    outputs_by_class: int  # kept separately for online and offline requests
    host_bytes_per_s: int
    index_size: int  # size of the index of block keys (`sim.blocks`)
    block_tables: int
    blocks_per_table: int
    bidirectional: int
    default_ttft_ps: int  # the scenario's SLOs (tightest class); requests may have their own
    default_tpot_ps: int
    own_tpot: int  # whether some online request has a tighter one
    rules_flush: int  # 0: all records are flushed before each rule
    engine_version: int  # vLLM's: index in `sim.engine_versions`, 0 the newest
    offloading: int  # host memory is the second tier of the prefix cache
    data_parallel: int  # ranks of the largest group; 0: none
    async_scheduling: int  # SYNCHRONOUS, HIDES_FINISHING or SEES_FINISHING
    schedule_ps: int  # time to compose an iteration, if composed while another runs
    ends: int  # what ends the episode after its window: VERDICTS, LAST_TOKENS or ALL_TOKENS
    decode_first_token: int  # pools: the client's first token comes from the decode instance
    handover_ps: int  # time from the end of such a request's transfer until it can decode
    clients: int  # clients that share the online requests, each sending the next one after an answer; 0: none do
    frontend_ps: int  # time of the engine's front end, which an answer takes to its client
    frontend_token_ps: int  # the same per token of the prompt


class Pending(Record):
    """The pending decision, and its answer."""

    point: int  # NO_POINT: none
    instance: int
    request: int
    count: int  # candidates, in State.picks
    answered: int
    answer: int
    route_step: int  # state of round-robin rules between decisions


class Queues(Record):
    """Fill levels of the task ring, the event heap and the list of evictions."""

    task_head: int
    task_tail: int
    heap_size: int
    evicted: int


class Gauges(Record):
    """Counts of what is in the system now."""

    open_online: int  # counted online requests that have neither finished nor violated an SLO
    last_closed_ps: int  # when the last request left this count
    open_offline: int  # counted offline requests that have not finished
    late_online: int  # counted online requests past an SLO and unfinished
    relaxed_decodable: int  # requests that can decode on relaxed instances
    outstanding_ps: int  # reference GPU time of unfinished offline requests
    outstanding_since_ps: int


class Fleet(Record):
    """What an elastic fleet is steered by (`sim.scaling`)."""

    interval_ps: int  # between decisions; 0: the fleet is fixed
    next_ps: int  # the next decision
    asked: int  # index of the group that is asked; -1: none
    intervals: int  # that are over, entries of State.tides
    day_ps: int  # time of day at the beginning of the run
    online_arrived: int  # in the present interval
    online_tokens: int  # their prompts
    offline_arrived: int
    offline_tokens: int


class Totals(Record):
    """Sums since the beginning, whose differences give rewards and progress."""

    online_arrived: int
    online_finished: int
    ttft_misses: int
    tpot_misses: int
    violations: int
    offline_arrived: int
    offline_finished: int
    service_ps: int
    offline_output_tokens: int
    offline_prompt_tokens: int
    wasted_tokens: int
    wasted_ps: int
    evictions: int
    migrations: int
    interruptions: int
    decisions: int
    events: int


class Observed(Record, number=np.float64):
    """Statistics that a policy may use. Rates are in requests/s, over 10, 60, 300 and 1800 s."""

    offline_evicted_share: float
    offline_output_mean: float
    online_output_mean: float
    online_rate_fast: float
    online_rate_minute: float
    online_rate_slow: float
    online_rate_half_hour: float
    offline_seen: float
    online_seen: float


class Integrals(Record, number=np.float64):
    """Integrals over time, for the reward."""

    waiting_area: float  # reference GPU-seconds of offline work in the system, times seconds
    late_times_us: float  # finish times of counted online requests with a violation, minus times of the violations
