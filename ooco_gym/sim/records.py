"""The records of an episode, as they lie in memory: requests, instances, links, cost tables, blocks, and the named
numbers of the whole episode (`Record`)."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from numba import from_dtype
from numba.extending import typeof_impl

from ooco_gym.compile.references import RecordType

CACHE_LINE = 64


def aligned_zeros(shape: int | tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Zeros that begin with a line of the processor's cache."""
    size = int(np.prod(shape)) * dtype.itemsize
    capacity = np.zeros(size + CACHE_LINE, np.uint8)
    start = -capacity.ctypes.data % CACHE_LINE
    return capacity[start : start + size].view(dtype).reshape(shape)


def bytes_of(array: np.ndarray) -> np.ndarray:
    """A contiguous array as it lies in memory, uint8 (n,): NumPy copies records field by field, thirty times slower."""
    return array.reshape(-1).view(np.uint8)


# --- Arrays of records ----------------------------------------------------------------------------------------------
REQUEST = np.dtype(
    [
        # what a look along a queue, and a flush (`sim.lanes`), touches: one line of the cache
        ("prompt_tokens", np.int32),
        ("output_tokens", np.int32),
        ("generated_tokens", np.int32),
        ("blocks", np.int32),  # KV blocks held on `instance`
        ("last_token_ps", np.int64),
        ("max_gap_ps", np.int64),
        ("latest_ps", np.int64),  # when a TPOT miss becomes certain: known from the first token on; before that, where
        # the decode instance makes it, when the hand-over is over, then when the step that makes it begins
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
        ("service_ps", np.int64),  # reference GPU time of the whole request (docs/protocol.md: offline service)
        ("finish_ps", np.int64),
        ("wasted_tokens", np.int64),  # recomputed: by eviction and by interruption
        ("wasted_ps", np.int64),  # instance time spent on them, in proportion
        ("target_blocks", np.int32),  # KV blocks reserved on `target`
        ("target_context", np.int32),  # context length when they were reserved
        # on mixed instances
        ("num_computed_tokens", np.int32),  # vLLM's: tokens whose keys and values are in memory
        ("num_scheduled_tokens", np.int32),  # new tokens in the iteration in progress
        ("host_tokens", np.int32),  # of them, in host memory: swapped out, or copied there while it runs
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
        ("unwritten", np.int32),  # what its batch row still misses (`lanes`: WRITTEN, COMPOSED, ENDED)
        ("laned_urgent", np.int32),  # members that have lanes, the first ones of their list
        ("laned_offline", np.int32),
        ("seasoned_urgent", np.int32),  # of these, those that have made a step on them
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
        ("window_size", np.int64),  # entries of State.waiting_window
        ("urgent_members", np.int64),
        ("offline_members", np.int64),
        ("decodable", np.int64),  # members with status RESIDENT
        ("urgent_decodable", np.int64),  # of those, urgent ones
        ("urgent_context", np.int64),  # sum of the context lengths of the urgent ones, as far as flushed
        ("offline_context", np.int64),  # and of the others
        ("urgent_running", np.int64),  # urgent members in the running batch
        ("arriving", np.int64),  # requests whose transfer to here is reserved or under way
        ("arriving_pulls", np.int64),  # of those, pulled offline ones
        ("arriving_context", np.int64),  # their context lengths in all
        ("leaving", np.int64),  # pulled requests whose step here is still in progress
        ("suspended", np.int64),  # requests of an interrupted prefill kept for resumption; mixed: of members[FINISHING]
        ("suspended_layers", np.int64),  # layers that they have done
        ("suspended_ps", np.int64),  # instance time spent on these layers
        ("pull_wake_ps", np.int64),  # ask for a pull again at this time
        ("last_pull_ps", np.int64),
        ("pull_due", np.int32),  # something changed since the last pull decision
        ("wants_pull", np.int32),  # the last pull decision found free space here but no request to pull
        ("queued", np.int32),  # a DISPATCH task for it is in the ring
        ("composed", np.int32),  # 1: the iteration after the one in progress is (asynchronous scheduling); 2, of
        # a rank: one that begins as soon as the other ranks have composed
        # sums for metrics
        ("online_prefill_ps", np.int64),
        ("offline_prefill_ps", np.int64),
        ("decode_ps", np.int64),
        ("wasted_ps", np.int64),
        ("decode_steps", np.int64),
        ("decoded_tokens", np.int64),
        ("kv_times_us", np.int64),  # of blocks taken less those given back, each times when (`take_blocks_since`)
        # mixed instances: the iteration in progress, memory beyond the device's, prefix cache
        ("new_tokens", np.int64),  # that it computes; of them
        ("online_tokens", np.int64),  # prompts' of online requests
        ("offline_tokens", np.int64),  # and of offline ones
        ("swap_tokens", np.int64),  # whose keys and values cross the link to host memory in the next iteration
        ("swapped_tokens", np.int64),  # and have crossed it so far
        ("host_free_blocks", np.int64),
        ("rows_free", np.int64),  # free block tables
        ("online_finished", np.int64),  # requests that have finished here, where their lengths are kept
        ("offline_finished", np.int64),
        ("looked_tokens", np.int64),  # context lengths at first admission, so far
        ("cached_tokens", np.int64),  # and how many of these tokens were found in the prefix cache
        ("first_rank", np.int32),  # of the data-parallel ranks of which it is one (`sim.ranks`), the first one's index
        ("ranks", np.int32),  # and how many they are; 0: it is none
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
        # attention of a prefill, as `perf.timing.Attention` but in ps
        ("roofs", np.float64, (2, 4)),
        ("linear", np.float64, (4,)),
        ("launch", np.float64),
        ("critical", np.float64),
        ("split", np.float64),  # share of the chip that a row fills; 0: contexts are not split
        ("exponent", np.float64),  # infinity: the largest term
        ("causal", np.float64),
        ("tile", np.int64),
        ("measured", np.int64),  # 1: State.attention_grid instead
        # decodes in one kernel with chunks, as `perf.timing.MixedKernel` but in ps
        ("together", np.int64),  # 1: they share it; 0: their times are added
        ("shared_launch", np.float64),
        ("per_chunk", np.float64),
        ("chain", np.float64),
        ("chain_exponent", np.float64),
        ("chunk_skew", np.float64),
        ("chunk_skew_batch", np.float64),
        ("decode_skew", np.float64),  # of a step of decodes alone
        ("decode_skew_batch", np.float64),
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
        ("previous", np.int32),  # neighbours in the queue of blocks that may be taken; or place in the heap
        ("next", np.int32),
        ("twin", np.int32),  # the next block with the same key, or -1
        ("level", np.int32),  # of these queues, the one it is in
        ("online", np.int32),  # class of the last request that read it
    ],
    align=True,
)

TIER = np.dtype(  # an instance's host memory as second tier of its prefix cache; INSTANCE fills whole cache lines
    [
        ("blocks", np.int64),  # that it has room for
        ("loaded_tokens", np.int64),  # whose keys and values have been asked back from there so far
        ("link_free_ps", np.int64),  # when the last of them has come
        ("hits", np.int64),  # of the instance's `cached_tokens`, those that were found there alone
    ]
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

QUEUE = np.dtype([("head", np.int64), ("tail", np.int64)])  # of a linked list of requests; -1: empty


# --- Named numbers --------------------------------------------------------------------------------------------------
class Record(np.ndarray):
    """Numbers of one type with a name each: `record.name` reads and writes one, also in compiled code.

    A subclass declares the names: `class Clock(Record): now_ps: int`. In Python it is an array of as many numbers, to
    copy and to compare; compiled code has a numba record of it, a pointer, and finds each at a constant offset.
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
    source: int  # of the event at this time that was the last one: -1 an arrival, then instances and links by index
    next_arrival: int  # slot of the next one of the requests that arrive at the trace's own time
    next_arrival_ps: int  # of any request; 0: to be looked up
    last_arrival: int  # slot of the request that arrived last, or -1
    next_deadline: int  # index in State.deadlines of the TTFT deadline that passes next
    next_deadline_ps: int
    last_online_arrival_ps: int
    window_start_ps: int  # the measured window
    window_end_ps: int


class Config(Record):
    """Settings of the run: nothing writes them once an episode has begun."""

    seed: int
    bulk: int  # many decode steps at once
    class_blind: int  # offline requests are scheduled as online ones
    gate_window: int  # waiting requests that a gate looks at
    prefill_tokens: int  # budget of one prefill batch
    layer_resume: int  # an interrupted prefill goes on at the layer reached
    block_tokens: int
    hash_tokens: int  # of a prompt, to each of the trace's prefix hashes
    tpot_min_tokens: int
    tpot_from_decode: int
    gate_poll_ps: int
    relaxed_count: int  # instances that arrivals are routed to: the first ones
    inter_token_slo_ps: int  # NEVER: none
    max_num_batched_tokens: int  # of an iteration of a mixed instance
    max_num_seqs: int
    least_blocks: int  # of any instance
    reserved_blocks: int
    max_position: int  # tokens of a request, prompt and output, that the model's positions allow; 0: any number
    prefix_caching: int
    kv_priority: int
    retention: int  # which free block is taken first (`sim.retention`)
    pinned_ps: int  # how long `ttl` holds blocks
    waiting_order: int  # 0 by arrival, BY_PREFIX, BY_BUCKET, BY_KEY
    swap_overlap: int
    safepoint_layers: int  # an iteration of offline work alone can be stopped after so many layers each; 0: never
    preempted_kv: int  # of offline requests (RECOMPUTE, …); with CHECKPOINT, copies on the host are kept
    preempt: int  # which running request gives way, as `policy.mixed.VICTIMS` counts them
    output_window: int  # output lengths that are kept of the last requests that finished on an instance
    outputs_by_class: int  # online and offline ones apart
    host_bytes_per_s: int
    index_size: int  # of the index of keys of blocks (`sim.blocks`)
    block_tables: int
    blocks_per_table: int
    bidirectional: int
    default_ttft_ps: int  # the scenario's SLOs, of several classes the tightest; requests may have their own
    default_tpot_ps: int
    own_tpot: int  # some online request has a tighter one
    rules_flush: int  # 0: all records are flushed before each rule
    engine_version: int  # of vLLM: a place in `sim.engine_versions`, 0 the newest
    offloading: int  # host memory is the second tier of the prefix cache
    data_parallel: int  # ranks of the largest group of these; 0: there are none
    async_scheduling: int  # SYNCHRONOUS, HIDES_FINISHING or SEES_FINISHING
    schedule_ps: int  # composing an iteration, where it is composed while another runs
    ends: int  # what the episode waits for after its window: VERDICTS, LAST_TOKENS or ALL_TOKENS
    decode_first_token: int  # pools: the client's first token comes from the decode instance
    handover_ps: int  # from the end of such a request's transfer until it can decode


class Pending(Record):
    """The decision that is open, and its answer."""

    point: int  # NO_POINT: none is
    instance: int
    request: int
    count: int  # candidates, in State.picks
    answered: int
    answer: int
    route_step: int  # of rules that go round, from one decision to the next


class Queues(Record):
    """How far the task ring, the event heap and the list of evictions are filled."""

    task_head: int
    task_tail: int
    heap_size: int
    evicted: int


class Gauges(Record):
    """Counts of what is in the system now."""

    open_online: int  # counted online requests that have neither finished nor missed an SLO
    last_closed_ps: int  # when the last of these did
    open_offline: int  # counted offline requests that have not finished
    late_online: int  # counted online requests past an SLO and unfinished
    relaxed_decodable: int  # requests that can decode on relaxed instances
    outstanding_ps: int  # reference GPU time of unfinished offline requests
    outstanding_since_ps: int


class Totals(Record):
    """Sums since the beginning: rewards and progress are differences of these."""

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
    """Statistics that a policy may have observed. Rates are requests a second, over 10, 60, 300 and 1800 s."""

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
    """Integrals over time that the reward is made of."""

    waiting_area: float  # reference GPU-seconds of offline work in the system, times seconds
    late_times_us: float  # when counted online requests that missed an SLO finished, less when they missed it
