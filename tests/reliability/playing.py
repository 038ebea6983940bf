"""Plays a case of the fuzz; an AssertionError, or any exception but a UserError, is what it looks for."""

from __future__ import annotations

import json
import math
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from ooco_gym import UserError
from ooco_gym.scenario import Scenario
from ooco_gym.sim import state as s
from ooco_gym.sim.loop import look
from ooco_gym.simulation import Simulation, simulate
from tests.reliability.drawing import Case
from tests.sim.harness import Episode, Setup, differences
from tests.sim.invariants import check
from tests.sim.mixed_invariants import check_mixed
from tests.sim.test_blocks import shared_trace

FAR_PS = 40_000 * s.PS_PER_S
MAY_BE_NEGATIVE = ("scenario", "params", "offline.last_finish_s")  # that one counts from the window's start
STEPS = 300  # of an environment's episode


def play(case: Case) -> str:
    """Plays one case.

    Returns:
        `ok`, or `refused: ` and the sentence of a UserError.

    Raises:
        AssertionError: an invariant does not hold, or two ways to play differ.
        Exception: any other failure.
    """
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        try:
            {"episode": play_episode, "scenario": play_scenario, "environment": play_environment}[case["kind"]](case)
        except UserError as error:
            text = str(error)
            assert text and "\n" not in text.strip(), f"no sentence: {text!r}"
            return f"refused: {text}"
    return "ok"


# --- Episodes -------------------------------------------------------------------------------------------------------
def play_episode(case: Case) -> None:
    """Invariants at some times and at the end; the same in one go, step by step, from Python."""
    setup, trace = setup_of(case), shared_trace([tuple(row) for row in case["rows"]])

    def begun(**options: Any) -> Episode:
        return Episode(setup, trace=trace, **options)

    whole = begun()
    mixed = bool(case.get("mixed"))
    stopped = begun()
    for stop_s in case["stops"]:
        stopped.play(round(stop_s * s.PS_PER_S))
        stopped.state = s.copy_state(stopped.state)
        (check_mixed if mixed else check)(stopped.state)
    end_ps = round((case["window_s"][1] + 30.0) * s.PS_PER_S)
    whole.play(end_ps)
    (check_mixed if mixed else check)(whole.state)
    assert_same(whole, stopped.play(end_ps), "stopped on the way")
    if not mixed:
        assert_same(whole, begun(bulk=False).play(end_ps), "step by step")
    if case["outside"]:
        assert_same(whole, begun(outside=tuple(case["outside"])).play(end_ps), "answered from Python")


def setup_of(case: Case) -> Setup:
    """A case's episode for the harness."""
    pools = {role: tuple((chip, tp) for chip, tp in case.get(role, ())) for role in ("relaxed", "strict", "mixed")}
    return Setup((), **pools, kv_tokens=case["kv_tokens"], policy=case["policy"], values=tuple(case["values"].items()),
                 random_points=tuple(case["random"]), seed=case["seed"], window_s=tuple(case["window_s"]),
                 rules=case["rules"])


def assert_same(one: Episode, other: Episode, how: str) -> None:
    """Two ways to play an episode leave the same."""
    found = differences(one.state, other.state)
    assert not found, f"{how}: {'; '.join(found)}"


# --- Scenarios ------------------------------------------------------------------------------------------------------
def play_scenario(case: Case) -> None:
    """In bulk and step by step the same bytes; every figure of the summary is a number that it can be."""
    with folder_of(case) as folder:
        scenario = scenario_of(case, folder).resolve()
        policy = {"name": case["policy"], **case["values"]}
        run = simulate(scenario, policy)
        check_summary(run.summary)
        simulation = Simulation(scenario, policy, bulk=False)
        simulation.advance()
        mixed = simulation.policy.mixed
        (check_mixed if mixed else check)(simulation.state)
        again = Simulation(scenario, policy)
        again.advance()
    found = differences(again.state, simulation.state)
    assert not found, f"step by step: {'; '.join(found)}"


@contextmanager
def folder_of(case: Case) -> Iterator[Path | None]:
    """A folder for the trace file of a case that has one, removed in the end."""
    if "rows" not in case:
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="ooco-gym-fuzz-") as folder:
        yield Path(folder)


def scenario_of(case: Case, folder: Path | None) -> Scenario:
    """A case's scenario; its rows are written as a trace file."""
    fields = dict(case["fields"])
    if folder is not None:
        path = folder / f"trace.{case['format']}"
        write_rows(path, case["rows"])
        fields["workload"] = str(path)
    return Scenario(**fields)


def write_rows(path: Path, rows: list[list[Any]]) -> None:
    """Writes requests as a trace file of our own columns."""
    names = ("arrival_s", "prompt_tokens", "output_tokens")
    columns = {name: [row[i] for row in rows] for i, name in enumerate(names)}
    if path.suffix == ".parquet":
        import pyarrow as pa
        from pyarrow import parquet

        parquet.write_table(pa.table(columns), path)
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(dict(zip(names, row[:3], strict=True))) + "\n" for row in rows))
    else:
        path.write_text(",".join(names) + "\n" + "".join(",".join(map(str, row[:3])) + "\n" for row in rows))


def check_summary(summary: dict[str, Any]) -> None:
    """No figure is infinite, no count, time or share is negative, no share above one."""
    for key, value in walk(summary):
        if isinstance(value, float):
            assert math.isfinite(value) or math.isnan(value), f"{key} is {value}"
        if isinstance(value, (int, float)) and not isinstance(value, bool) and "error" not in key:
            assert not value < 0 or key.startswith(MAY_BE_NEGATIVE), f"{key} is {value}"
            if key.endswith(("utilization", "attainment", "violation_rate")) and not key.startswith(MAY_BE_NEGATIVE):
                assert not value > 1 + 1e-9, f"{key} is {value}"


def walk(value: Any, key: str = "") -> Any:
    """The (dotted key, value) pairs of nested mappings and lists."""
    if isinstance(value, dict):
        for name, item in value.items():
            yield from walk(item, f"{key}.{name}" if key else str(name))
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from walk(item, key)
    else:
        yield key, value


# --- Environments ---------------------------------------------------------------------------------------------------
def play_environment(case: Case) -> None:
    """Observations within their space, rewards that are numbers, twice the same, and alike in a vector of episodes."""
    env: Any = gym.make(case["id"], disable_env_checker=True, **case["arguments"]).unwrapped
    first = play_once(env, case)
    state = look(env.simulation.state)
    if not env.episodes.open(0):  # else a decision is open in the middle of an event
        (check_mixed if env.simulation.policy.mixed else check)(state)
    assert ((state.instances["free_blocks"] >= 0) & (state.instances["free_blocks"] <= state.instances["total_blocks"])
            ).all(), "blocks that are not there"
    assert play_once(env, case) == first, "the same seed, another episode"
    if case["vector"]:
        check_vector(env, case)


def actions_of(env: Any, random: np.random.Generator, illegal: bool) -> Any:
    """A random action: a legal one, or any."""
    if illegal or env.config.box or env.episodes.controls is not None:
        env.action_space.seed(int(random.integers(2**31)))
        return env.action_space.sample()
    return int(random.choice(np.flatnonzero(env.action_masks())))


def play_once(env: Any, case: Case) -> list[Any]:
    """Rewards and times of an episode."""
    random = np.random.default_rng(case["actions"])
    observation, info = env.reset(seed=case["seed"], options={"window": case["window"]})
    found = []
    for _ in range(STEPS):
        assert env.observation_space.contains(observation), "an observation outside its space"
        assert info["action_mask"].any(), "no action is legal"
        observation, reward, terminated, truncated, info = env.step(actions_of(env, random, case["illegal"]))
        assert math.isfinite(reward)
        found.append((reward, info["elapsed_s"], observation["cluster"].sum().item()))
        if terminated or truncated:
            assert all(math.isfinite(value) for value in info["summary"].values()), info["summary"]
            break
    return found


def check_vector(env: Any, case: Case) -> None:
    """Episode 0 of a native vector is the single one."""
    vector: Any = gym.make_vec(case["id"], num_envs=case["vector"], **case["arguments"])
    seed = case["seed"]
    single, others = env.reset(seed=seed), vector.reset(seed=seed)
    assert all(np.array_equal(single[0][key], others[0][key][0]) for key in single[0])
    random = np.random.default_rng(case["actions"])
    for _ in range(40):
        action = actions_of(env, random, case["illegal"])
        one = env.step(action)
        every = vector.base_actions()
        every[0] = action
        all_of = vector.step(every)
        assert one[1:4] == tuple(part[0] for part in all_of[1:4]), "a reward or an end in a vector differs"
        assert all(np.array_equal(one[0][key], all_of[0][key][0]) for key in one[0]), "an observation differs"
        if (all_of[2] | all_of[3]).any():
            break
    vector.close()


