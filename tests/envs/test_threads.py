"""Threads that step the episodes of a vector: any number of them plays the same, and none is left behind."""

from __future__ import annotations

import multiprocessing
import os
import threading
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from ooco_gym import UserError
from tests.envs.episodes_in_short import alike, arguments

GATING, CONTROL = "ooco_gym/PrefillGate-v1", "ooco_gym/OnlineTuning-v1"  # by the clock: its episodes end together
KINDS = (GATING, CONTROL, "ooco_gym/Batching-v1", "ooco_gym/MigrationPredicted-v1")


def vector(threads: int | None, count: int = 5, name: str = GATING, mode: str = "SameStep", **changes: Any) -> Any:
    given = {"window_s": 6.0, "warmup_s": 20.0, **({"interval_s": 1.0} if name == CONTROL else {}), **changes}
    return gym.make_vec(name, num_envs=count, vectorization_mode="vector_entry_point", autoreset_mode=mode,
                        threads=threads, **arguments(name, **given))


def actions_of(env: Any, random: np.random.Generator) -> np.ndarray:
    """Legal actions at random."""
    masks = env.action_masks()
    if masks.shape[1] != getattr(env.single_action_space, "n", None):  # a vector of levels: any is legal
        return random.integers(0, env.single_action_space.nvec, (env.num_envs, env.single_action_space.nvec.size))
    return np.where(masks, random.random(masks.shape), -1.0).argmax(axis=1)


def living() -> int:
    return sum(thread.name.startswith("ooco_gym-step") for thread in threading.enumerate())


@pytest.mark.parametrize("count", [1, 5])
@pytest.mark.parametrize("name", KINDS)
def test_any_number_of_threads_plays_the_same(name, count):
    envs = [vector(threads, count, name) for threads in (1, 2, 3)]
    assert [env.unwrapped.episodes.threads for env in envs] == [1, min(2, count), min(3, count)]
    first = [env.reset(seed=7) for env in envs]
    assert all(alike(first[0], other) for other in first[1:])
    random, ends = np.random.default_rng(3), []
    for _ in range(400):
        actions = actions_of(envs[0], random)
        one, *others = [env.step(actions) for env in envs]
        assert all(alike(one, other) for other in others)
        ends.append(int(one[3].sum()))
        if sum(ends) >= min(2 * count, 20):
            break
    assert sum(ends) > 0, "episodes end, and begin again"
    assert count == 1 or name == CONTROL or any(0 < ended < count for ended in ends), "not all of them in the same step"
    for env in envs:
        env.close()


def test_threads_begin_with_the_first_step_and_end_with_close():
    before = living()
    env = vector(3)
    env.reset(seed=1)
    assert living() == before
    env.step(env.base_actions())
    assert before < living() <= before + 2
    env.close()
    env.close()
    assert living() == before


def _go_on(env: Any, sender: Any) -> None:
    steps = [env.step(env.base_actions()) for _ in range(5)]
    sender.send((steps, living()))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork.*:DeprecationWarning")
def test_a_fork_makes_threads_of_its_own():
    env = vector(3)
    env.reset(seed=5)
    env.step(env.base_actions())
    mine, theirs = multiprocessing.Pipe(duplex=False)
    child = multiprocessing.get_context("fork").Process(target=_go_on, args=(env.unwrapped, theirs))
    child.start()
    assert mine.poll(60), "the child waits for threads that it has not"
    steps, threads = mine.recv()
    child.join(60)
    assert child.exitcode == 0 and 1 <= threads <= 2
    assert all(alike(step, env.step(env.base_actions())) for step in steps)
    env.close()


@pytest.mark.parametrize("threads", [1, 3])
def test_a_mistake_in_any_thread_is_raised_by_the_step(threads):
    env = vector(threads)
    env.reset(seed=1)
    env.step(env.base_actions())
    offers = env.unwrapped.episodes.buffers.offers
    kept = offers.copy()
    offers[:] = 0
    with pytest.raises(UserError, match="returned ASK"):
        env.step(env.base_actions())
    offers[:] = kept
    fresh = vector(1)
    assert alike(env.reset(seed=6), fresh.reset(seed=6))
    for _ in range(5):
        assert alike(env.step(env.base_actions()), fresh.step(fresh.base_actions()))
    env.close()
