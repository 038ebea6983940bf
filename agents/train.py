"""`ooco-gym train`: learns a policy for one environment and leaves a run folder that evaluate and export read."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agents.algorithms import check_agent
from agents.checks import LARGEST_SEED, positive_or_null, whole
from agents.environments import SPLITS, group, plain, split_seeds
from agents.extras import require
from agents.load import POLICY_FILE
from agents.trainer import Trainer


def main(cfg: Any) -> dict[str, Any]:
    """Trains and returns the summary; the folder `cfg.out` then holds all that evaluate and export need.

    Files: `policy.zip` (best on validation), `policy_last.zip`, `normalisation.json`, `config.yaml`, `progress.csv`,
    `checkpoints/`, and the logger's own folder. Ctrl-C ends training early and saves what there is.

    Raises:
        UserError: unknown agent, network, logger or environment, a value out of range, or a missing extra.
    """
    started = time.monotonic()
    config = plain(cfg)
    agent = _checked(config)
    require("train")
    import torch

    torch.set_num_threads(int(config.get("threads") or 1))
    out = Path(config["out"])
    out.mkdir(parents=True, exist_ok=True)
    trainer = Trainer(config, agent, out, started)
    try:
        trainer.learn()
    finally:
        trainer.close()
    summary = trainer.summary()
    _show(summary, out)
    return summary


def _checked(config: dict[str, Any]) -> dict[str, Any]:
    """Returns the agent's settings after checking what a user may have got wrong."""
    agent = group(config, "agent")
    check_agent(agent)
    whole(config, "total_timesteps", 1)
    whole(config, "seed", 0, most=LARGEST_SEED)
    positive_or_null(config, "max_wall_s", "no limit")
    positive_or_null(config, "window_s", "the environment's own")
    validation = plain(config.get("validation") or {})
    if validation.get("windows"):
        for key in ("windows", "every_steps"):
            whole(validation, key, 1, name=f"validation.{key}")
    if config.get("checkpoint_every_steps"):
        whole(config, "checkpoint_every_steps", 0)
    for split in SPLITS[:2]:
        split_seeds(group(config, "env"), split)
    return agent


def _show(summary: Mapping[str, Any], out: Path) -> None:
    """Prints the outcome in a few lines."""
    from rich.console import Console
    from rich.markup import escape

    console = Console(soft_wrap=True)
    console.print(f"trained {summary['timesteps']:,} decisions in {summary['wall_s']:.0f} s "
                  f"({summary['decisions_per_s']:,.0f} decisions/s beside validation), "
                  f"stopped by {summary['stopped_by']}")
    best = summary["best"]
    if best:
        console.print(f"kept the policy of {best['timesteps']:,} decisions: validation reward {best['reward']:.2f}, "
                      f"violation rate {best['violation_rate']:.2%} over {best['windows']} windows")
    console.print(f"policy: {escape(str(out / POLICY_FILE))}")
