"""What `ooco-gym bench envs` measures: decisions a second of every environment, and Gymnasium's CartPole for scale."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.table import Table

SIDE_BY_SIDE = 64  # episodes of a vector environment
WARM_STEPS = 20  # taken before the clock runs
VECTOR_STEPS = 5000  # steps from the beginning of an episode on: its first thousand are slower than those that follow
MOST_S = 10.0  # processor time of a measurement: where decisions come once in a while it stops there
SCALE = "CartPole-v1"


def measure_envs(options: dict[str, Any]) -> dict[str, Any]:
    """Of each environment `env/ID/single` and `env/ID/vector`, decisions a second of this core's time."""
    from ooco_gym.envs import ENVIRONMENTS

    figures = {}
    for name in ENVIRONMENTS:
        figures[f"env/{name}/single"] = single_per_s(name, options["env_steps"])
        figures[f"env/{name}/vector"] = vector_per_s(name)
    figures[f"env/{SCALE}/single"] = single_per_s(SCALE, options["env_steps"])
    figures[f"env/{SCALE}/vector"] = vector_per_s(SCALE)
    gating = "env/ooco_gym/Gating-v0"
    return {**figures, "env_steps_per_s": figures[f"{gating}/single"],
            "vector_decisions_per_s": figures[f"{gating}/vector"]}


def single_per_s(name: str, steps: int) -> float:
    """Steps through `gym.make` with its default wrappers; resets left out; processor time."""
    import time

    import gymnasium as gym

    import ooco_gym  # noqa: F401  registers the environments

    env = gym.make(name)
    actions = _actions(env.action_space)
    taken, cpu_s, seed = 0, 0.0, 1000
    while taken < steps:
        env.reset(seed=seed)
        seed, over = seed + 1, False
        begun = time.thread_time()
        while not over and taken < steps:
            _, _, terminated, truncated, _ = env.step(actions[taken % len(actions)])
            over = terminated or truncated
            taken += 1
        cpu_s += time.thread_time() - begun
        if cpu_s > MOST_S:
            break
    return taken / cpu_s


def vector_per_s(name: str) -> float:
    """Decisions of 64 episodes side by side, through `gym.make_vec`; steps in which one was reset left out."""
    import time

    import gymnasium as gym
    import numpy as np

    import ooco_gym  # noqa: F401  registers the environments

    env: Any = gym.make_vec(name, num_envs=SIDE_BY_SIDE, vectorization_mode="vector_entry_point")
    actions = [np.stack([one] * SIDE_BY_SIDE) for one in _actions(env.single_action_space)]
    env.reset(seed=1000)
    over = np.zeros(SIDE_BY_SIDE, bool)
    counted, cpu_s = 0, 0.0
    for step in range(WARM_STEPS + VECTOR_STEPS):
        resets = bool(over.any())
        begun = time.thread_time()
        _, _, terminated, truncated, _ = env.step(actions[step % len(actions)])
        took = time.thread_time() - begun
        over = terminated | truncated
        if step >= WARM_STEPS and not resets and not over.any():
            counted, cpu_s = counted + SIDE_BY_SIDE, cpu_s + took
        if cpu_s > MOST_S:
            break
    return counted / cpu_s


def _actions(space: Any) -> list[Any]:
    """What is played in turn: three times the first action and once the last; of a vector of choices, the middle."""
    import numpy as np

    if hasattr(space, "nvec"):
        return [np.asarray(space.nvec) // 2]
    return [np.int64(0), np.int64(0), np.int64(0), np.int64(min(2, space.n - 1))]


def environments_table(figures: dict[str, Any]) -> Table:
    """Decisions a second of each environment."""
    from rich.table import Table

    table = Table(title=f"decisions a second on one core: one episode, and {SIDE_BY_SIDE} side by side")
    for title in ("environment", "single", "vector"):
        table.add_column(title, justify="left" if title == "environment" else "right", no_wrap=True)
    names = [key.split("/", 1)[1].rsplit("/", 1)[0] for key in figures if key.startswith("env/")]
    for name in dict.fromkeys(names):
        table.add_row(name, *(f"{figures[f'env/{name}/{kind}']:,.0f}" for kind in ("single", "vector")))
    return table
