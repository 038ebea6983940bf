"""`ooco-gym evaluate`: plays learned policies and heuristics through the same held-out windows and scores them."""

from __future__ import annotations

import csv
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from agents.environments import (
    OBSERVATION_KEYS,
    Window,
    decision_names,
    group,
    is_partner,
    make_env,
    plain,
    split_seeds,
    windows,
)
from agents.play import BatchPlayer, Player, RulePlayer, play
from agents.scoring import score
from ooco_gym.cli.progress import track
from ooco_gym.errors import UserError, nearest
from ooco_gym.files import atomic_write

SIDE_BY_SIDE = 8  # windows of one job; fixed, so that results do not depend on the number of processes
CLOCKED = {"pack", "control"}  # decisions that come by the clock, for which policies have a setting but no rule
_EXTRA_RULES = ("always", "never", "random")


def main(cfg: Any) -> dict[str, Any]:
    """Evaluates `cfg.policies` (rule names, run folders, export folders) and writes evaluation.md and episodes.csv.

    Raises:
        UserError: a policy is neither a rule nor a folder, does not fit the environment, or a count is out of range.
    """
    config = plain(cfg)
    started = time.monotonic()
    policies = _named(config.get("policies"))
    config["env"] = group(config, "env")
    seeds = _whole_numbers("seeds", config.get("seeds")) or split_seeds(config["env"], "test")
    games = windows(seeds, sum(_whole_numbers("episodes", config.get("episodes"))))
    learned = _check(config["env"], policies)
    out = Path(config["out"])
    out.mkdir(parents=True, exist_ok=True)
    jobs = [(name, policies[name], games[i : i + SIDE_BY_SIDE])
            for name in policies for i in range(0, len(games), SIDE_BY_SIDE)]
    played: dict[str, list[dict[str, Any]]] = {name: [] for name in policies}
    for (name, _, _), records in zip(jobs, _results(config, jobs, learned), strict=True):
        played[name].extend(records)
    name = config["env"].get("name") or config["env"]["id"]
    summary = {"command": "evaluate", "env": config["env"]["id"], "seeds": seeds, "episodes": len(games),
               **score(played, name, learned), "wall_s": time.monotonic() - started}
    _write_episodes(out / "episodes.csv", played)
    from agents.tables import markdown, show

    with atomic_write(out / "evaluation.md") as temporary:
        temporary.write_text(markdown(summary), encoding="utf-8")
    show(summary)
    return summary


def _whole_numbers(key: str, value: Any) -> list[int]:
    """Returns a number or a list of them as a list; None is empty."""
    given = [] if value is None else list(value) if isinstance(value, (list, tuple)) else [value]
    for item in given:
        if not isinstance(item, int) or item < 0:
            raise UserError(f"{key} must hold whole numbers of at least 0, got {item}")
    return given


def _named(policies: Any) -> dict[str, str]:
    """Returns label -> policy as given; a folder is labelled by its last part unless that is ambiguous."""
    given = [policies] if isinstance(policies, str) else list(policies or [])
    if not given:
        raise UserError("policies is empty; expected names or run folders, such as policies=[ooco,always,never]")
    labels = [Path(str(policy)).name if os.path.isdir(str(policy)) else str(policy) for policy in given]
    if len(set(labels)) < len(labels):
        labels = [str(policy) for policy in given]
    if len(set(labels)) < len(labels):
        twice = next(label for label in labels if labels.count(label) > 1)
        raise UserError(f"policies names '{twice}' twice; each policy is played once")
    return dict(zip(labels, map(str, given), strict=True))


def _check(env_config: Mapping[str, Any], policies: Mapping[str, str]) -> dict[str, bool]:
    """Loads every policy once and checks that it fits the environment; returns whether each is learned."""
    env = make_env(env_config)
    try:
        rules = rule_names(env)
        for label, policy in policies.items():
            if _is_rule(policy, rules):
                _check_rule(policy, env)
            elif os.path.isdir(policy):
                _check_folder(label, policy, env)
            else:
                raise UserError(f"'{policy}' is neither a known policy{nearest(policy, rules)} nor a run folder; "
                                f"known: {', '.join(rules)}")
    finally:
        env.close()
    return {label: not _is_rule(policy, rules) for label, policy in policies.items()}


def _check_rule(policy: str, env: Any) -> None:
    """Refuses a rule that has no say where only the clock asks: it would play as the partner under another name."""
    asked = decision_names(env)
    if asked and set(asked) <= CLOCKED and not is_partner(policy, env):
        raise UserError(f"'{policy}' has no rule for {' and '.join(asked)}: only the environment's partner can be "
                        "played beside learned policies")


def _check_folder(label: str, policy: str, env: Any) -> None:
    """Refuses a learned policy that was trained on other observations, actions or decisions."""
    kept = _folder_policy(policy)
    expected = {key: tuple(env.observation_space[key].shape) for key in OBSERVATION_KEYS}
    if kept.shapes != expected:
        raise UserError(f"policy '{label}' was trained on observations {kept.shapes}, but the environment gives "
                        f"{expected}; evaluate it on the environment it was trained on")
    unknown = [name for name in decision_names(env) if name not in kept.decisions]
    if unknown:
        raise UserError(f"policy '{label}' was never asked to {' or '.join(unknown)}, only to "
                        f"{', '.join(kept.decisions)}; evaluate it on the environment it was trained on")


def _is_rule(policy: str, rules: Sequence[str]) -> bool:
    """A name, also with parameters: `ooco:slo_margin=0.8`."""
    return policy.partition(":")[0] in rules


def rule_names(env: Any) -> list[str]:
    """Names of the rules that `env` can play: its own list, or every registered policy and always, never, random."""
    own: Any = getattr(env.unwrapped, "rules", None)
    if own is not None:
        return sorted(own)
    from ooco_gym.policy import list_policies

    return sorted({*list_policies(), *_EXTRA_RULES})


class _Kept(NamedTuple):
    """A learned policy: its batch decision, the shapes of the observation it expects, the decisions it was asked."""

    decide: Callable[..., np.ndarray]
    shapes: dict[str, tuple[int, ...]]
    decisions: tuple[str, ...]


@lru_cache(maxsize=8)
def _folder_policy(folder: str) -> _Kept:
    """Loads a run or an exported policy."""
    from ooco_gym.runtime import MANIFEST_FILE, Policy

    if (Path(folder) / MANIFEST_FILE).is_file():
        policy = Policy.load(folder)
        inputs = policy.manifest["inputs"]

        def decide(*parts: np.ndarray) -> np.ndarray:
            return policy.decide_batch(dict(zip(OBSERVATION_KEYS, parts, strict=True)))

        return _Kept(decide, {key: tuple(inputs[key]["shape"]) for key in OBSERVATION_KEYS}, tuple(policy.decisions))
    from agents.load import load_run

    run = load_run(folder)
    space: Any = run.model.observation_space
    return _Kept(run.decide_batch, {key: tuple(space[key].shape) for key in OBSERVATION_KEYS}, run.decisions)


Job = tuple[str, str, Sequence[Window]]


def _results(
    config: Mapping[str, Any], jobs: Sequence[Job], learned: Mapping[str, bool]
) -> Iterator[list[dict[str, Any]]]:
    """Plays all jobs, in `workers` processes if more than one, and yields their records in order."""
    workers = min(int(config.get("workers") or 1), len(jobs))
    arguments = [(config["env"], label, policy, learned[label], list(games)) for label, policy, games in jobs]
    if workers <= 1:
        yield from track(map(_play_job, arguments), "evaluating", len(jobs))
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context) as pool:
        yield from track(pool.map(_play_job, arguments), "evaluating", len(jobs))


def _play_job(argument: tuple[dict[str, Any], str, str, bool, list[Window]]) -> list[dict[str, Any]]:
    """Plays one chunk of windows with one policy; runs in a worker process."""
    env_config, label, policy, learned, games = argument
    player: Player
    if learned:
        from agents.extras import limit_torch_threads

        limit_torch_threads()
        player = BatchPlayer(label, _folder_policy(policy).decide)
    else:
        player = RulePlayer(policy)
    return play(env_config, player, games, side_by_side=SIDE_BY_SIDE)


def _write_episodes(path: Path, played: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
    """Writes one row a policy and window with all figures that the environment gave."""
    first = next(iter(played.values()))[0]
    keys = sorted(first["summary"])
    with atomic_write(path) as temporary, open(temporary, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["policy", "seed", "window", "decisions", "reward", *keys])
        for policy, records in played.items():
            for record in records:
                row = [record[key] for key in ("seed", "window", "decisions", "reward")]
                writer.writerow([policy, *row, *(record["summary"].get(key) for key in keys)])
