"""Writes an environment's page from its code: the class docstring and the tables of features, so that it cannot lie."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gymnasium as gym

from ooco_gym.envs import ENVIRONMENTS
from ooco_gym.resources import load_yaml

NOTE = ("<!-- Written by `python -m ooco_gym.envs.document` from the code; a test compares it. "
        "Edit the class instead. -->")


def page(name: str) -> str:
    """The Markdown page of a registered environment, for example `ooco_gym/Gating-v0`."""
    env: Any = gym.make(name).unwrapped
    tables = env.feature_tables()
    parts = [NOTE, f"# {name}", "", inspect.cleandoc(type(env).__doc__ or ""), ""]
    for part, rows in tables.items():
        space = env.observation_space[part]
        parts += [f"## Observation `{part}`: {space.dtype} {space.shape}", "", *_features(rows), ""]
    parts += ["## Actions", "", "| action | meaning |", "|---|---|", "| 0 | hold: decode what is resident |",
              f"| 1 … {env.action_space.n - 1} | start the prefill of candidate 0 … {env.action_space.n - 2} |", ""]
    parts += ["## Weights of the reward's parts", "", *_rewards(), ""]
    parts += ["## Default scenario (`conf/env/gating.yaml`)", "", "```yaml",
              *(f"{key}: {value}" for key, value in _defaults().items()), "```", ""]
    return "\n".join(parts)


def _features(rows: Sequence[dict[str, Any]]) -> list[str]:
    lines = ["| | name | unit | scale | limit | bounds | meaning |", "|---|---|---|---|---|---|---|"]
    for i, row in enumerate(rows):
        lines.append(f"| {i} | `{row['name']}` | {row['unit'] or '–'} | {row['scale']} | {row['limit']:g} | "
                     f"{row['low']:g} … {row['high']:g} | {row['meaning']} |")
    return lines


def _rewards() -> list[str]:
    presets = {preset: load_yaml("reward", preset) for preset in ("penalty", "constrained")}
    lines = ["| part | " + " | ".join(f"`{preset}`" for preset in presets) + " |", "|---|" + "---|" * len(presets)]
    for part in ("service", "waiting", "ttft", "tpot", "waste"):
        lines.append(f"| `{part}` | " + " | ".join(f"{weights[part]:g}" for weights in presets.values()) + " |")
    return lines


def _defaults() -> dict[str, Any]:
    config = load_yaml("env", "gating")
    return {key: config[key] for key in ("scenario", "partner", "window_s", "warmup_s", "candidates", "reward")}


def path_of(name: str, root: Path) -> Path:
    """Where an environment's page is: `docs/envs/<name>.md`."""
    return root / "docs" / "envs" / f"{name.split('/')[1].split('-', maxsplit=1)[0].lower()}.md"


def main() -> None:
    """Writes the pages of all environments below the current folder."""
    import ooco_gym  # noqa: F401  registers the environments

    for name in ENVIRONMENTS:
        target = path_of(name, Path.cwd())
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(page(name), encoding="utf-8")


if __name__ == "__main__":
    main()
