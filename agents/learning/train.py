"""`ooco-gym train`: trains a policy for one environment, into a run folder that evaluate and export read."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from agents.environments import SPLITS, split_seeds
from agents.learning import resuming
from agents.learning.algorithms import check_agent
from agents.policies.runs import POLICY_FILE
from agents.search import linear
from agents.search.command import search, show
from agents.search.optimisers import CMA, CMA_LINEAR
from agents.settings import ItsOwn, NoLimit, Seed, Windows, group, require
from ooco_gym.schema import Count, Range, Share, check_all, plain


def main(cfg: Any) -> dict[str, Any]:
    """Trains and returns the summary; the folder `cfg.out` then has all that evaluate and export need.

    Files: `policy.zip` (best on validation), `policy_last.zip`, `config.yaml`, `progress.csv`, `checkpoints/`, and the
    logger's own folder. A search over whole episodes (`agents.search.episodes`) leaves other files: docs/training.md.
    Ctrl-C and SIGTERM end training after the current update and save everything; `cfg.resume`, a run's folder,
    continues it.

    Raises:
        UserError: unknown agent, logger or environment, a value out of range, a missing extra, nothing to resume, or a
            folder that holds another run (`cfg.overwrite` removes it).
    """
    started = time.monotonic()
    resuming.go_on_in_sweep(cfg)
    config, resumed = plain(cfg), bool(cfg.get("resume"))
    if resumed:
        config = resuming.resumed_config(cfg)
    else:
        resuming.check_free(config)
    if group(config, "agent").get("name") == CMA:
        summary = search(config, resumed, _tracked_search(config))
        show(summary, Path(config["out"]))
        return summary
    _check(config)
    if config["agent"].get("name") == CMA_LINEAR:
        summary = linear.search(config, Path(config["out"]), started)
        linear.show(summary, Path(config["out"]))
        return summary
    require("train")
    from agents.learning.training import learn  # with torch

    out = Path(config["out"])
    out.mkdir(parents=True, exist_ok=True)
    summary = learn(config, out, resumed, started)
    _show(summary, out)
    return summary


def _tracked_search(config: Mapping[str, Any]) -> Any:
    """Returns the factory of a search's logger; None without a logger."""
    options = config.get("logger")
    if (options if isinstance(options, str) else plain(options or {}).get("name", "none")) == "none":
        return None
    require("train")
    from agents.learning.loggers import build_logger

    return lambda out, after: build_logger(out, options, config, after, table=False)


def _check(config: Mapping[str, Any]) -> None:
    """Checks a user's values."""
    if group(config, "agent").get("name") != CMA_LINEAR:
        check_agent(group(config, "agent"))
    check_all(config, total_timesteps=Count, seed=Seed, threads=Count, max_wall_s=NoLimit, window_s=ItsOwn,
              checkpoint_every_s=Annotated[float, Range(0, above=True, null="no time limit")])
    validation = plain(config.get("validation") or {})
    if validation.get("windows"):
        check_all(validation, "validation", windows=Windows, every_steps=Count, violation_limit=Share, window_s=ItsOwn)
    if config.get("checkpoint_every_steps"):
        check_all(config, checkpoint_every_steps=Count)
    for split in SPLITS[:2]:
        split_seeds(group(config, "env"), split)


def _show(summary: Mapping[str, Any], out: Path) -> None:
    """Prints the outcome in a few lines."""
    print(f"trained to {summary['timesteps']:,} decisions, {summary['decisions']:,} of them in this call, stopped by "
          f"{summary['stopped_by']}")
    parts = {"learning": summary["learning_wall_s"], "validation": summary["validation_wall_s"],
             "preparation": summary["preparation_wall_s"], "setting up": summary["setup_wall_s"]}
    print(f"{summary['wall_s']:.0f} s in total:", ", ".join(f"{part} {wall_s:.1f} s" for part, wall_s in parts.items()))
    print(f"learning: {summary['decisions_per_s']:,.0f} decisions/s without validation")
    best, window_s = summary["best"], summary["validation_window_s"]
    if best:
        print(f"kept the policy of {best['timesteps']:,} decisions: validation reward {best['reward']:.2f}, "
              f"violation rate {best['violation_rate']:.2%} over {best['windows']} windows"
              + (f" of {window_s:g} s" if window_s else ""))
    print(f"policy: {out / POLICY_FILE}")
