"""The records of an episode, as they lie in memory: requests, instances, links, cost tables, blocks, the log."""

import numpy as np

REQUEST = np.dtype(
    [
        # what a look along a queue, and bringing a record up to date (`sim.lanes`), touches: one line of the cache
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
