"""The two schedulers of one case: vLLM's real one in the engine's own Python, over a pipe, and the simulator's."""

from __future__ import annotations

import os
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ooco_gym.calibrate.measure.interpreter import VARIABLE, Driver, find_python
from ooco_gym.perf import Deployment, load_chip, load_model
from ooco_gym.perf.engine_clock import EngineClock
from ooco_gym.policy import get_policy, list_policies
from ooco_gym.policy.decisions import addresses, ask_outside, call_rule
from ooco_gym.protocol import Slo
from ooco_gym.sim import loop
from ooco_gym.sim import state as s
from ooco_gym.sim.build import build_state
from ooco_gym.sim.config import Machine, SimConfig
from ooco_gym.sim.sessions import QUIT
from tests.oracle.cases import Case
from tests.oracle.scripts.oracle_driver.iterations import SHARED, Steps
from tests.sim.pool_checks import content

_SCRIPTS = Path(__file__).parent / "scripts"
_ENVIRONMENT = {"OMP_NUM_THREADS": 1, "VLLM_CPU_KVCACHE_SPACE": 1, "VLLM_LOGGING_LEVEL": "ERROR",
                "HF_HUB_OFFLINE": 1, "VLLM_ENABLE_V1_MULTIPROCESSING": 0}


def pythons(given: str | None) -> list[Path]:
    """The interpreters that are named, with commas between them, by `given` or the environment.

    Raises:
        UserError: one of them is none.
    """
    return [find_python(name or None) for name in (given or os.environ.get(VARIABLE) or "").split(",")]


def shipped_bundles(folder: Path) -> dict[str, Path]:
    """A bundle of each policy of conf/policy whose weights an engine can run, in a folder of its name."""
    from agents.policies.export import main as export

    names = [name for name in list_policies() if get_policy(name).linear and get_policy(name).values.get("weights")]
    for name in names:
        export({"policy": name, "out": str(folder / name), "forms": ["npz"]})
    return {name: folder / name for name in names}


class Oracle:
    """vLLM's scheduler under given cost tables; use it as a context manager. One process serves any number of cases.

    Args:
        python: interpreter that has vLLM (`pythons`).
        tables: cost tables (`tables_of`).

    Raises:
        UserError: on entering, and by `play`: the engine fails; the message says how.
    """

    def __init__(self, python: Path, tables: dict[str, Any]) -> None:
        self.python, self._tables = python, tables
        self.version = ""

    def __enter__(self) -> Oracle:
        self._files = tempfile.TemporaryDirectory()
        self._folder = Path(self._files.name)
        self._driver = Driver(self.python, _ENVIRONMENT, self._folder / "oracle.log", package="oracle_driver",
                              folder=_SCRIPTS)
        self.use(self._tables)
        return self

    def __exit__(self, *raised: Any) -> None:
        self._driver.__exit__(*raised)
        self._files.cleanup()

    def use(self, tables: dict[str, Any]) -> None:
        """Takes other cost tables."""
        path = self._folder / "tables.npz"
        np.savez(path, **tables)
        self.version = self._driver.ask({"do": "tables", "file": str(path)})["vllm"]

    def play(self, case: Case, order: str = "play") -> dict[str, np.ndarray]:
        """Schedules a case to its end (`play`), or gives it to the block pools of a pair (`play_sides`).

        Returns:
            As `oracle_driver.play`: the steps, and of each request `first_token_ps`, `finish_ps`, `cached_tokens`,
            `preemptions`; or as `oracle_driver.sides`.
        """
        given, made = self._folder / "case.npz", self._folder / "played.npz"
        columns: dict[str, Any] = case.columns()
        np.savez(given, **columns)
        self._driver.ask({"do": order, "case": str(given), "settings": case.settings(), "out": str(made)})
        with np.load(made) as file:
            return {key: file[key] for key in file.files}


CHIP, MODEL, TIMING = "ascend_910c", "qwen2_5_7b", "ooco"
TABLES = ("decode_lines", "attention_lines", "prefill_ps", "head_ps", "attention_grid")
_FIELDS = ("prefill_slope_ps", "roofs", "linear", "launch", "critical", "exponent", "causal",
           "tile", "measured", *SHARED)
_FOREVER_S = 1e6


def tables_of(state: s.State, batch: int | None = None, tokens: int | None = None) -> dict[str, Any]:
    """The cost tables of the first instance, as `Clock` takes them.

    Args:
        state: of an episode.
        batch: the last batch size that is kept; all, unless told.
        tokens: the last number of new tokens that is kept; all, unless told.
    """
    row = int(state.instances[0]["table"])
    tables: dict[str, Any] = {key: getattr(state, key)[row].copy() for key in TABLES}
    for key in ("decode_lines", "attention_lines", "head_ps"):
        tables[key] = tables[key][: None if batch is None else batch + 1]
    tables["prefill_ps"] = tables["prefill_ps"][: None if tokens is None else tokens + 1]
    return {**tables, **{key: state.tables[row][key].copy() for key in _FIELDS}}


def set_tables(state: s.State, tables: dict[str, Any]) -> None:
    """Puts cost tables (`tables_of`) into an episode that has not begun, as far as both go."""
    for key in TABLES:
        value, own = np.asarray(tables[key]), getattr(state, key)[0]
        both = tuple(slice(min(sizes)) for sizes in zip(value.shape, own.shape, strict=True))
        own[both] = value[both]
    for key in _FIELDS:
        if key in tables or key not in SHARED:  # recorded tables may be older than what is shared
            value, own = np.asarray(tables[key]), state.tables[key]
            own[0] = 0  # a recorded table has fewer roofs than there is room for
            own[(0, *map(slice, value.shape))] = value


def episode(case: Case, tables: dict[str, Any] | None = None) -> tuple[s.State, tuple[Any, ...]]:
    """A mixed instance that is to serve the case, and its policy's rules.

    Args:
        case: what is served.
        tables: cost tables; those of `CHIP`, `MODEL` and `TIMING` unless told.
    """
    values: dict[str, Any] = {"prefix_caching": "on" if case.prefix_caching else "off",
                              "max_num_batched_tokens": case.max_num_batched_tokens, "reserved_blocks": 1,
                              "max_num_seqs": case.max_num_seqs, "engine_version": case.engine_version,
                              "watermark": case.watermark,
                              "long_prefill_token_threshold": case.long_prefill_token_threshold}
    policy = replace(get_policy(case.policy).with_values(values), kept_by=get_policy(case.retention, group="retention"))
    machine = Machine("mixed", Deployment(load_chip(CHIP), load_model(MODEL), timing=TIMING,
                                          block_tokens=case.block_tokens, known_kv_blocks=case.kv_blocks))
    longest = float(case.trace.output_tokens.max()) if len(case.trace) else 1.0
    rules = SimConfig(Slo(_FOREVER_S, _FOREVER_S / longest, 2), case.max_num_seqs + 1, case.block_tokens, 25e9, 0.1,
                      64.0, engine_clock=EngineClock(async_scheduling=case.asynchronous), retention=policy.retention)
    state = build_state([machine], case.trace, rules, seed=1, window_s=(0.0, _FOREVER_S), params=policy.vector(),
                        settings=policy.settings(), class_blind=policy.class_blind, weights=policy.weights,
                        patience_s=case.patience_s)
    if tables is not None:
        set_tables(state, tables)
    return state, policy.hooks()


def simulate(case: Case, tables: dict[str, Any] | None = None) -> dict[str, np.ndarray]:
    """Serves a case; returns what `Oracle.play` returns, made by the simulator."""
    state, rules = episode(case, tables)
    requests, steps = state.requests, Steps()
    times, composed = _play(state, rules)
    for (start_ps, end_ps), (given, preempted) in zip(times, composed, strict=True):
        steps.add(start_ps, end_ps, given, preempted)
    found = {key: requests[key].copy() for key in ("first_token_ps", "finish_ps", "cached_tokens", "evictions")}
    return {**steps.arrays(), **found, "preemptions": found["evictions"], "kept": content(state, 0, case.trace)}


Composed = tuple[dict[int, int], list[int]]


def _play(state: s.State, rules: tuple[Any, ...]) -> tuple[list[tuple[int, int]], list[Composed]]:
    """When each iteration begins and ends; and its tokens by slot, and who lost memory since the one before."""
    spec, requests, handle = state.instances[0], state.requests, s.handle_of(state)
    outside = addresses([ask_outside if place == s.COMPOSE - 1 else rule for place, rule in enumerate(rules)])
    times, composed, lost, answer = [], [], requests["evictions"].copy(), s.ASK
    while (at_ps := _next_event_ps(state)) < s.NEVER or answer != s.ASK:
        why = loop.run(handle.address, outside, min(at_ps, s.NEVER - 1), answer)
        answer = s.ASK
        if spec["steps_begun"] > len(times):
            times.append((int(spec["start_ps"]), int(spec["end_ps"])))
        if why == s.DONE:
            break
        if why == s.HORIZON:
            continue
        answer = call_rule(state, rules[s.COMPOSE - 1], 0, -1, 0)
        slots = state.members[s.BATCH, 0, : spec["running"]]
        tokens = requests["num_scheduled_tokens"][slots]
        given = {slot: new for slot, new in zip(slots.tolist(), tokens.tolist(), strict=True) if new}
        if given:
            gone = requests["evictions"] - lost
            composed.append((given, np.repeat(np.arange(len(gone)), gone).tolist()))
            lost = requests["evictions"].copy()
    return times, composed


def _next_event_ps(state: s.State) -> int:
    at_ps = int(s.NEVER)
    if state.queues.heap_size > 0:
        at_ps = int(state.heap[0, 0])
    if state.turns[QUIT, 0] > 0:
        at_ps = min(at_ps, int(state.quit_ps[state.turns[QUIT, 1]]))
    if state.clock.next_arrival < state.requests.size:
        at_ps = min(at_ps, int(state.requests["arrival_ps"][state.clock.next_arrival]))
    return at_ps
