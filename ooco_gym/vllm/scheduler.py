"""The scheduler classes for vLLM, and all use of its private interface.

`OocoScheduler` lets a rule compose each iteration, which vLLM's own `schedule()` then carries out. The rule's victims
are preempted first. Requests outside of the plan are held back by `_reserve_prefill_lookahead`, through which vLLM
limits each request's tokens, and waiting requests are shown in the plan's order (`Waiting`). So blocks, prefix caching,
outputs and asynchronous bookkeeping stay vLLM's, and an iteration without a plan is vLLM's own. `TOUCHED` lists what is
used of vLLM; tests/oracle/test_in_vllm.py compares it with the installed release.
"""

# pyright: reportMissingImports=false
# vLLM is installed where it serves, not where this is checked.

from __future__ import annotations

import time
from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import vllm
from vllm.v1.core.kv_cache_utils import FreeKVCacheBlockQueue, KVCacheBlock
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.interface import PauseState
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.request_queue import RequestQueue, SchedulingPolicy
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import Request as EngineRequest
from vllm.v1.request import RequestStatus

from ooco_gym.documents import version_of
from ooco_gym.errors import UserError
from ooco_gym.runtime.rules import Engine, Line, Plan, Request
from ooco_gym.vllm.admitter import pieces_of
from ooco_gym.vllm.beliefs import Sums
from ooco_gym.vllm.deciding import LOG, Decider, InFlight
from ooco_gym.vllm.settings import OFFLINE_FIRST, Class, Settings, read_settings

TESTED = ("0.32.0", "0.33.0")
"""Tested releases of vLLM."""
TOUCHED = {
    "Scheduler": ("schedule", "update_from_output", "add_request", "_reserve_prefill_lookahead", "_preempt_request",
                  "_handle_blocked_waiting_request", "_is_blocked_waiting_status", "get_num_unfinished_requests",
                  "_free_request_blocks"),
    "FreeKVCacheBlockQueue": ("popleft_n", "remove", "append_n", "get_all_free_blocks"),
    "instance": ("running", "waiting", "kv_holding_waiting", "requests", "policy", "kv_cache_manager", "connector",
                 "max_num_scheduled_tokens", "max_num_active_reqs", "prev_step_scheduled_req_ids", "deferred_waiting",
                 "need_mamba_block_aligned_split", "is_encoder_decoder", "_pause_state", "kv_cache_config",
                 "block_size", "scheduler_config", "cache_config", "vllm_config"),
    "Request": ("request_id", "priority", "arrival_time", "status", "num_tokens", "num_output_tokens",
                "num_computed_tokens", "num_prompt_tokens", "max_tokens", "num_output_placeholders",
                "num_stale_output_tokens", "sampling_params", "block_hashes", "is_prefill_chunk", "is_finished"),
    "RequestStatus": ("WAITING", "PREEMPTED"),
}
_SETTINGS_EVERY_S = 1.0


# --- Waiting requests -----------------------------------------------------------------------------------------------
class Waiting(RequestQueue):
    """vLLM's queue of waiting requests, by class; while a plan is carried out it shows only the
    requests to admit.

    Otherwise it has vLLM's own order: by priority and arrival, or FCFS.
    """

    def __init__(self, policy: SchedulingPolicy) -> None:
        self._by_priority = policy == SchedulingPolicy.PRIORITY
        self.lines: dict[bool, list[EngineRequest]] = {True: [], False: []}  # by online, each in order
        self._place: dict[EngineRequest, int] = {}  # order under FCFS
        self._front = self._back = 0
        self.offline_tokens = 0  # of all waiting offline requests
        self._shown: list[EngineRequest] | None = None  # in reverse order

    def show(self, requests: list[EngineRequest] | None) -> None:
        """Shows only these requests, in this order; None shows all."""
        self._shown = None if requests is None else requests[::-1]

    def _key(self, request: EngineRequest) -> Any:
        return request if self._by_priority else self._place[request]

    def _insert(self, request: EngineRequest, place: int) -> None:
        if not self._by_priority:
            self._place[request] = place
        insort(self.lines[request.ooco.online], request, key=self._key)
        self.offline_tokens += 0 if request.ooco.online else request.num_tokens

    def _remove(self, request: EngineRequest) -> bool:
        line = self.lines[request.ooco.online]
        if not self._by_priority and request not in self._place:
            return False
        index = bisect_left(line, self._key(request), key=self._key)
        if index == len(line) or line[index] is not request:
            return False
        del line[index]
        self._place.pop(request, None)
        self.offline_tokens -= 0 if request.ooco.online else request.num_tokens
        return True

    def add_request(self, request: EngineRequest) -> None:
        """Adds a request, last in its class."""
        self._back += 1
        self._insert(request, self._back)

    def prepend_request(self, request: EngineRequest) -> None:
        """Puts a request back, first in its class (by priority: in order of arrival)."""
        self._front -= 1
        self._insert(request, self._front)

    def prepend_requests(self, requests: Iterable[EngineRequest]) -> None:
        for request in list(requests):
            self.prepend_request(request)

    def peek_request(self) -> EngineRequest:
        if self._shown is not None:
            return self._shown[-1]
        heads = [line[0] for line in self.lines.values() if line]
        if not heads:
            raise IndexError("peek from an empty queue")
        return min(heads, key=self._key)

    def pop_request(self) -> EngineRequest:
        request = self.peek_request()
        if self._shown is not None:
            self._shown.pop()
        self._remove(request)
        return request

    def remove_request(self, request: EngineRequest) -> None:
        """Removes a request, which must be present."""
        if not self._remove(request):
            raise ValueError("the request does not wait")

    def remove_requests(self, requests: Iterable[EngineRequest]) -> None:
        """Removes those of the requests that are present."""
        for request in list(requests):
            self._remove(request)

    def __bool__(self) -> bool:
        if self._shown is not None:
            return bool(self._shown)
        return any(self.lines.values())

    def __len__(self) -> int:
        """Returns the number of waiting requests, shown or not."""
        return sum(map(len, self.lines.values()))

    def __iter__(self) -> Iterator[EngineRequest]:
        """Iterates over all waiting requests, in order."""
        return iter(sorted((request for line in self.lines.values() for request in line), key=self._key))


class FreeBlocks(FreeKVCacheBlockQueue):
    """vLLM's queue of free blocks, in which finished offline requests' content may give way before all other.

    Attributes:
        offline: whether blocks that are freed now are a finished offline request's, and go before all other content.
    """

    def __init__(self, queue: FreeKVCacheBlockQueue) -> None:
        super().__init__(queue.get_all_free_blocks())
        self.offline, self._others = False, self.fake_free_list_tail  # the first other content, or the end

    def popleft_n(self, n: int) -> list[KVCacheBlock]:
        """Takes the first `n` blocks."""
        taken = super().popleft_n(n)
        if self._others.prev_free_block is None:  # it was taken, and so was all before it
            self._others = self.fake_free_list_head.next_free_block
        return taken

    def remove(self, block: KVCacheBlock) -> None:
        """Takes a block whose content is used again."""
        if block is self._others:
            self._others = block.next_free_block
        super().remove(block)

    def append_n(self, blocks: list[KVCacheBlock]) -> None:
        """Frees blocks with content, the first to give way first."""
        end, first = self.fake_free_list_tail, self._others
        self.fake_free_list_tail = first if self.offline else end
        super().append_n(blocks)
        self.fake_free_list_tail = end
        if blocks and first is end and not self.offline:
            self._others = blocks[0]


class RequestInfo:
    """Class, SLO and first token of a request, attached to vLLM's request (`request.ooco`)."""

    __slots__ = ("first_token_s", "kind", "online", "pieces", "seen", "tpot_s", "ttft_s")

    def __init__(self, kind: Class) -> None:
        self.kind, self.online = kind, kind.online
        self.ttft_s, self.tpot_s = kind.ttft_s or 0.0, kind.tpot_s or 0.0
        self.first_token_s: float | None = None
        self.pieces: tuple[Any, ...] | None = None  # of its prompt, once computed
        self.seen: Request | None = None  # the request as a rule sees it


# --- The scheduler --------------------------------------------------------------------------------------------------
class OocoScheduler(Scheduler):
    """vLLM's V1 scheduler with a rule that composes iterations; `OocoAsyncScheduler` under
    asynchronous scheduling.

    Attributes:
        ooco: the rule, its belief and its counters.
    """

    def __new__(cls, *args: Any, **kwargs: Any) -> OocoScheduler:
        """Returns an instance of the class for the engine's configuration."""
        config = kwargs.get("vllm_config", args[0] if args else None)
        if cls is OocoScheduler and config is not None and config.scheduler_config.async_scheduling:
            return object.__new__(OocoAsyncScheduler)
        return object.__new__(cls)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        settings, self._ooco_file = read_settings()
        check_version(vllm.__version__, settings.any_version)  # pyright: ignore[reportAttributeAccessIssue]
        super().__init__(*args, **kwargs)
        self._ooco_refuse()
        self.waiting, pool = Waiting(self.policy), self.kv_cache_manager.block_pool
        pool.free_block_queue = self._ooco_free = FreeBlocks(pool.free_block_queue)
        self.ooco = Decider(settings)
        self._ooco_caps: dict[str, int] | None = None
        self._ooco_stamp, self._ooco_read_s = version_of(self._ooco_file or ""), 0.0
        self._ooco_in_flight = InFlight(self.ooco)
        self._ooco_tpot_s = min(one.tpot_s for one in settings.classes if one.tpot_s is not None)
        self._ooco_skip = False  # the last plan yielded no tokens

    # --- vLLM's interface ---
    def add_request(self, request: EngineRequest) -> None:
        """Adds an arriving request and determines its class."""
        if getattr(request, "ooco", None) is None:
            request.ooco = RequestInfo(self.ooco.settings.class_of(request.priority, self._ooco_field(request)))
            if self.ooco.learned is not None and request.ooco.online:
                self.ooco.learned.arrived(time.time())
        super().add_request(request)

    def schedule(self, *args: Any, **kwargs: Any) -> SchedulerOutput:
        now = time.time()
        self._ooco_reread(now)
        for request in [one for one in self.deferred_waiting if self._is_blocked_waiting_status(one.status)]:
            self._handle_blocked_waiting_request(request)
        plan = self._ooco_plan(now, any(args) or any(kwargs.values()))
        if plan is None:
            self.ooco.watch.count("stock")
            output = super().schedule(*args, **kwargs)
        else:
            output = self._ooco_carry_out(plan, args, kwargs)
        if output.total_num_scheduled_tokens:
            self._ooco_in_flight.record_in_flight(output, *self._ooco_sums(output), now)
        return output

    def update_from_output(self, scheduler_output: SchedulerOutput, model_runner_output: Any) -> Any:
        now = time.time()
        self._ooco_in_flight.record_end(scheduler_output, now)
        awaited = [request for name in scheduler_output.num_scheduled_tokens
                   if (request := self.requests.get(name)) is not None and request.ooco.first_token_s is None]
        outputs = super().update_from_output(scheduler_output, model_runner_output)
        for request in awaited:
            if request.num_output_tokens > 0:
                request.ooco.first_token_s = now
                late = request.ooco.online and now > request.arrival_time + request.ooco.ttft_s
                if late and self.ooco.learned is not None:
                    self.ooco.learned.missed(now)
        self.ooco.watch.log(now)
        return outputs

    def _free_request_blocks(self, request: EngineRequest) -> None:
        """Frees the blocks of a request that ends, or is preempted and comes back for them."""
        first = self.ooco.settings.retention == OFFLINE_FIRST and request.is_finished() and not request.ooco.online
        self._ooco_free.offline = first
        super()._free_request_blocks(request)
        self._ooco_free.offline = False

    def _reserve_prefill_lookahead(self, request: EngineRequest, num_computed_tokens: int, num_new_tokens: int) -> int:
        """Returns the most tokens a request may have: vLLM's limit, or fewer by the plan."""
        tokens = super()._reserve_prefill_lookahead(request, num_computed_tokens, num_new_tokens)
        if self._ooco_caps is None:
            return tokens
        most = self._ooco_caps.get(request.request_id, 0)
        if tokens <= most or (most == 1 and _missing(request) == 1):  # a decode gets vLLM's own number
            return tokens
        return most

    # --- Composing ---
    def _ooco_plan(self, now: float, throttled: bool) -> Plan | None:
        skip, self._ooco_skip = self._ooco_skip, False
        if (skip or throttled or self.kv_holding_waiting or self._pause_state != PauseState.UNPAUSED
                or not (self.running or self.waiting)):
            return None
        return self.ooco.decide(lambda: self._ooco_describe(now), self._ooco_waits)

    def _ooco_describe(self, now: float) -> Engine:
        """Returns the engine as a rule sees it, at the time at which the iteration will begin."""
        pool = self.kv_cache_manager.block_pool
        held = self.kv_cache_manager.coordinator.single_type_managers[0].req_to_blocks
        running = [_running(request, held) for request in self.running
                   if not _ends(request)]
        return Engine(self._ooco_in_flight.begins(now), running, self._ooco_line(True), self._ooco_line(False),
                      pool.get_num_free_blocks(), pool.num_gpu_blocks - 1, self.block_size,
                      self.max_num_active_reqs - len(self.running) + len(running),
                      min(self.max_num_scheduled_tokens, self.scheduler_config.max_num_batched_tokens),
                      self._ooco_tpot_s, self._ooco_waiting() if self.ooco.learned is not None else (0, 0, 0, 0))

    def _ooco_waiting(self) -> tuple[int, int, int, int]:
        """Returns the numbers of waiting online requests and their tokens, offline requests and their tokens."""
        online, offline = self.waiting.lines[True], self.waiting.lines[False]
        return (len(online), sum(request.num_tokens for request in online), len(offline), self.waiting.offline_tokens)

    def _ooco_line(self, online: bool) -> Line:
        """Returns the schedulable waiting requests of a class, described lazily."""
        return Line((self._ooco_waiter(request) for request in self.waiting.lines[online]
                     if self._ooco_ready(request)),
                    lambda name: self._ooco_waiter(self.requests[name]) if self._ooco_waits(name) else None)

    def _ooco_waiter(self, request: EngineRequest) -> Request:
        """Returns a waiting request as a rule sees it."""
        info, cached = request.ooco, self.cache_config.enable_prefix_caching
        if cached and not info.online and info.pieces is None:
            info.pieces = pieces_of(request.block_hashes, request.num_prompt_tokens, self.block_size)
        seen = _seen(request, request.num_tokens)
        seen.num_computed_tokens, seen.blocks, seen.pieces = 0, 0, info.pieces or ()
        seen.look_up = self._ooco_look_up(request) if cached else None
        return seen

    def _ooco_waits(self, name: str) -> bool:
        request = self.requests.get(name)
        return (request is not None and request.status in (RequestStatus.WAITING, RequestStatus.PREEMPTED)
                and self._ooco_ready(request))

    def _ooco_ready(self, request: EngineRequest) -> bool:
        return request.num_stale_output_tokens == 0 and not self._is_blocked_waiting_status(request.status)

    def _ooco_look_up(self, request: EngineRequest) -> Any:
        """Returns a function that looks up a waiting request in the prefix cache, once per iteration."""
        found: list[tuple[int, int, int]] = []

        def look_up() -> tuple[int, int, int]:
            if not found:
                blocks, tokens, *_ = self.kv_cache_manager.get_computed_blocks(request)
                mine = blocks.blocks[0] if blocks.blocks else ()
                found.append((tokens, len(mine), sum(block.ref_cnt == 0 for block in mine)))
            return found[0]
        return look_up

    # --- Carrying out ---
    def _ooco_carry_out(self, plan: Plan, args: tuple[Any, ...], kwargs: dict[str, Any]) -> SchedulerOutput:
        """Makes vLLM schedule the plan."""
        again = set(plan.admitted).intersection(plan.preempted)
        for name in plan.preempted:
            request = self.requests[name]
            self.running.remove(request)
            self._preempt_request(request, time.monotonic(), drop_stale_output=name in again)
        self.prev_step_scheduled_req_ids.difference_update(again)
        self.ooco.watch.count("preemptions", len(plan.preempted))
        self.ooco.watch.count("parked", len(self.running) + len(plan.admitted) - len(plan.tokens))
        self._ooco_caps = plan.tokens
        self.waiting.show([self.requests[name] for name in plan.admitted])
        try:
            output = super().schedule(*args, **kwargs)
        finally:
            self._ooco_caps = None
            self.waiting.show(None)
        if output.total_num_scheduled_tokens == 0 and plan.tokens:
            self._ooco_skip = True
            self.ooco.watch.fell_back("gave no tokens", f"{len(plan.tokens)} requests had some in its plan")
        return output

    # --- Latencies of iterations ---
    def _ooco_sums(self, output: SchedulerOutput) -> tuple[Sums, Sums]:
        """Returns the sums of an iteration, as `Belief.add` counts them, and those of its online
        decodes alone.

        vLLM has already advanced the requests' computed tokens.
        """
        sampled = decodes = context = online = online_context = prompts = prompt_context = work = 0
        for name, tokens in output.num_scheduled_tokens.items():
            request = self.requests[name]
            reach = request.num_computed_tokens
            sampled += not request.is_prefill_chunk
            if tokens != 1:
                prompts, prompt_context, work = prompts + 1, prompt_context + reach, work + tokens * reach
                continue
            decodes, context = decodes + 1, context + reach
            if request.ooco.online and reach > request.num_prompt_tokens:
                online, online_context = online + 1, online_context + reach
        return ((output.total_num_scheduled_tokens, sampled, decodes, context, prompts, prompt_context, work),
                (online, online, online, online_context, 0, 0, 0))

    # --- Settings ---
    def _ooco_field(self, request: EngineRequest) -> Any:
        """Returns the class that the request itself names, if the settings define the field for it."""
        field, params = self.ooco.settings.field, request.sampling_params
        if field is None or params is None or not params.extra_args:
            return None
        return params.extra_args.get(field)

    def _ooco_reread(self, now: float) -> None:
        """Reads a changed settings file again; an invalid one is ignored."""
        if self._ooco_file is None or 0.0 <= now - self._ooco_read_s < _SETTINGS_EVERY_S:
            return
        self._ooco_read_s, stamp = now, version_of(self._ooco_file or "")
        if stamp in (self._ooco_stamp, None):
            return
        self._ooco_stamp = stamp
        try:
            settings: Settings = read_settings()[0]
            self.ooco.use(settings)
            self._ooco_tpot_s = min(one.tpot_s for one in settings.classes if one.tpot_s is not None)
        except (Exception, SystemExit) as error:
            LOG.warning("ooco-gym: '%s' has changed, but is not used: %s", self._ooco_file, error)

    def _ooco_refuse(self) -> None:
        """Raises UserError for an engine that a plan cannot control."""
        ranks = self.vllm_config.parallel_config.data_parallel_size  # 1 if ranks are separate engines
        for there, name, why in (
                (self.connector is not None, "a KV connector",
                 "a plan does not know which tokens it holds, nor when requests that wait for them can run"),
                (self.is_encoder_decoder, "an encoder and a decoder", "a plan counts no encoder inputs"),
                (len(self.kv_cache_config.kv_cache_groups) != 1, "several groups of KV blocks (hybrid attention)",
                 "a plan counts the blocks of one group, of which each token needs its share for good"),
                (self.need_mamba_block_aligned_split, "Mamba layers aligned to blocks",
                 "vLLM shortens pieces of prompts to whole blocks, and a plan does not"),
                (ranks > 1, f"{ranks} data-parallel ranks of a model with experts",
                 "ranks step together, so an iteration lasts as long as on the slowest rank, and a scheduler does not "
                 "see the others' requests")):
            if there:
                raise UserError(f"ooco_gym.runtime.vllm cannot schedule an engine with {name}: {why}; start it without "
                                "--scheduler-cls")


class OocoAsyncScheduler(OocoScheduler, AsyncScheduler):
    """`OocoScheduler` over vLLM's asynchronous scheduler, which composes while an iteration runs."""


def check_version(version: str, any_version: bool) -> None:
    """Checks that this release of vLLM is tested.

    Raises:
        UserError: it is not, and `any_version` is not set.
    """
    release = version.split("+", maxsplit=1)[0]
    if release not in TESTED and not any_version:
        raise UserError(f"ooco_gym.runtime.vllm was tested with vLLM {' and '.join(TESTED)}, but this is {version}; "
                        "set OOCO_GYM_VLLM_ANY_VERSION=1 to go on (run make test-oracle with it first), or start vLLM "
                        "without --scheduler-cls")


def _running(request: EngineRequest, held: Mapping[str, Any]) -> Request:
    """Returns a running request as a rule sees it; `held`: blocks by request."""
    seen = _seen(request, request.num_tokens + request.num_output_placeholders)
    seen.num_computed_tokens, seen.look_up = request.num_computed_tokens, None
    seen.blocks = len(held.get(seen.id, ()))
    return seen


def _seen(request: EngineRequest, num_tokens: int) -> Request:
    """Returns a request as a rule sees it; constant fields are written once, as this runs in each iteration."""
    info = request.ooco
    seen = info.seen
    if seen is None:
        order = request.priority, request.arrival_time, request.request_id
        seen = info.seen = Request(request.request_id, info.online, order, request.arrival_time, info.ttft_s,
                                    info.tpot_s, num_tokens)
    seen.num_tokens, seen.num_output_tokens = num_tokens, num_tokens - request.num_prompt_tokens
    seen.first_token_s = info.first_token_s
    return seen


def _ends(request: EngineRequest) -> bool:
    """Returns whether its last token is in flight, so that vLLM will not schedule it again."""
    flying = request.num_output_placeholders
    return flying > 0 and request.num_computed_tokens + 2 - flying >= request.num_prompt_tokens + request.max_tokens


def _missing(request: EngineRequest) -> int:
    return request.num_tokens + request.num_output_placeholders - request.num_computed_tokens
