"""`ooco-gym train`: learns a policy for one environment and leaves a run folder that evaluate and export read."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from agents.checks import LARGEST_SEED, is_number, positive_or_null, whole
from agents.environments import SPLITS, group, plain, split_seeds, training_env, windows
from agents.extras import require
from agents.load import CONFIG_FILE, POLICY_FILE, SCALE_FILE
from ooco_gym.errors import UserError, unknown
from ooco_gym.files import atomic_write, write_json

AGENTS = ("maskable_ppo",)
NETWORKS = ("candidate_scorer", "mlp")
LAST_FILE = "policy_last.zip"


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
    trainer = _Trainer(config, agent, out, started)
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
    if agent.get("name") not in AGENTS:
        raise unknown("agent", agent.get("name"), AGENTS)
    if agent.get("network") not in NETWORKS:
        raise unknown("agent.network", agent.get("network"), NETWORKS)
    for place, key, least in (
        (config, "total_timesteps", 1), (agent, "n_envs", 1), (agent, "n_steps", 2), (agent, "batch_size", 2),
        (agent, "n_epochs", 1), (agent, "hidden", 1),
    ):
        whole(place, key, least, name=key if place is config else f"agent.{key}")
    whole(config, "seed", 0, most=LARGEST_SEED)
    positive_or_null(config, "max_wall_s", "no limit")
    positive_or_null(config, "window_s", "the environment's own")
    for key in ("discount_per_s", "trace_per_s"):
        if not is_number(agent[key]) or not 0.0 < agent[key] <= 1.0:
            raise UserError(f"agent.{key} must lie in (0, 1], got {agent[key]}")
    validation = plain(config.get("validation") or {})
    if validation.get("windows"):
        for key in ("windows", "every_steps"):
            whole(validation, key, 1, name=f"validation.{key}")
    if config.get("checkpoint_every_steps"):
        whole(config, "checkpoint_every_steps", 0)
    for split in SPLITS[:2]:
        split_seeds(group(config, "env"), split)
    return agent


class _Trainer:
    """Holds the pieces of one training run."""

    def __init__(self, config: dict[str, Any], agent: dict[str, Any], out: Path, started: float) -> None:
        from agents.loggers import build_logger

        self.config, self.agent, self.out = config, agent, out
        self.started = started
        self.interrupted = False
        self.imitation: dict[str, Any] | None = None
        self.env = self._vector_env()
        self.model = self._model()
        self.env.venv.reset()
        self.ready = time.monotonic()  # imports and compiling are over: the limit on wall-clock time starts here
        with atomic_write(out / CONFIG_FILE) as temporary:
            temporary.write_text(yaml.safe_dump(config, sort_keys=False), encoding="utf-8")
        self.logger = build_logger(out, config.get("logger"), config)
        self.model.set_logger(self.logger)
        self.callbacks = self._callbacks()

    def _vector_env(self) -> Any:
        from stable_baselines3.common.vec_env import VecNormalize

        from agents.networks import check_action_space
        from agents.vector import GymnasiumVecEnv

        config = self.config["env"]
        env = training_env(config, self.agent["n_envs"], int(self.config["seed"]), self.config.get("window_s"))
        check_action_space(env.single_action_space, config["id"])
        # Rewards only: observations are scaled inside the network, where export finds the scaling again.
        return VecNormalize(GymnasiumVecEnv(env, info_keys=()), norm_obs=False, norm_reward=True, gamma=0.999,
                            clip_reward=np.inf)

    def _model(self) -> Any:
        from sb3_contrib import MaskablePPO
        from sb3_contrib.common.maskable.policies import MaskableMultiInputActorCriticPolicy

        from agents.buffer import TimedRolloutBuffer
        from agents.networks import CandidatePolicy, ObservationEncoder, check_observation_space

        check_observation_space(self.env.observation_space)
        a = self.agent
        scorer = a["network"] == "candidate_scorer"
        layers = [a["hidden"], a["hidden"]]
        policy_kwargs = {"hidden": a["hidden"]} if scorer else {
            "features_extractor_class": ObservationEncoder, "net_arch": {"pi": layers, "vf": layers}}
        return MaskablePPO(
            CandidatePolicy if scorer else MaskableMultiInputActorCriticPolicy,
            self.env,
            learning_rate=a["learning_rate"], n_steps=a["n_steps"], batch_size=a["batch_size"],
            n_epochs=a["n_epochs"], clip_range=a["clip_range"], ent_coef=a["ent_coef"], vf_coef=a["vf_coef"],
            max_grad_norm=a["max_grad_norm"], target_kl=a.get("target_kl"),
            gamma=1.0,  # a truncated episode's last value is bootstrapped over one short step; time is in the buffer
            rollout_buffer_class=TimedRolloutBuffer,
            rollout_buffer_kwargs={"discount_per_s": a["discount_per_s"], "trace_per_s": a["trace_per_s"]},
            policy_kwargs=policy_kwargs, seed=int(self.config["seed"]), device="cpu",
        )

    def _callbacks(self) -> list[Any]:
        from agents.callbacks import (
            Checkpoints,
            CriticFirst,
            Figures,
            ObservationStatistics,
            Progress,
            TimedTransitions,
            Validation,
            WallClock,
        )

        config, settings = self.config, plain(self.config.get("validation") or {})
        limit = config.get("max_wall_s")
        self.clock = WallClock(None if limit is None else self.ready + float(limit), self._reserve_s)
        self.figures = Figures()
        self.progress = Progress(config["total_timesteps"], limit)
        self.validation: Validation | None = None
        callbacks: list[Any] = [self.clock, TimedTransitions(), self.figures]
        if self._imitated_rule() is not None:
            callbacks.append(CriticFirst(int(self.agent["imitate"]["critic_first_updates"])))
        if settings.get("windows"):
            self.validation_windows = windows(split_seeds(config["env"], "validation"), int(settings["windows"]))
            self.validation_envs: list[Any] = []
            self.validation = Validation(
                self._play_validation, self.out / POLICY_FILE, int(settings["every_steps"]),
                float(settings["violation_limit"]), first=self._imitated_rule() is not None)
            callbacks.append(self.validation)
        if config.get("checkpoint_every_steps"):
            callbacks.append(Checkpoints(self.out / "checkpoints", int(config["checkpoint_every_steps"])))
        # Scaling is refreshed last: validation and checkpoints at a rollout's start see what the update produced.
        return [*callbacks, ObservationStatistics(), self.progress]

    def _imitated_rule(self) -> str | None:
        return plain(self.agent.get("imitate") or {}).get("rule")

    def _reserve_s(self) -> float:
        """Seconds to leave for the last validation: what one took, or a tenth of the limit before the first."""
        if self.validation is None:
            return 0.0
        return self.validation.last_wall_s or 0.1 * float(self.config["max_wall_s"])

    def _play_validation(self) -> list[dict[str, Any]]:
        from agents.play import play

        return play(self.config["env"], self._player(), self.validation_windows, envs=self.validation_envs)

    def _player(self) -> Any:
        import torch

        from agents.networks import Actor
        from agents.play import BatchPlayer

        actor = Actor(self.model.policy)

        def decide(*parts: np.ndarray) -> np.ndarray:
            with torch.inference_mode():
                return actor(*(torch.as_tensor(part) for part in parts))[0].numpy()

        return BatchPlayer("training", decide)

    def learn(self) -> None:
        """Learns and saves; an interrupt saves too."""
        try:
            self.imitation = self._prepare()
            self.model.learn(int(self.config["total_timesteps"]), callback=self.callbacks, log_interval=1)
            if self.validation is not None and self._unjudged():
                self.validation.validate()
        except KeyboardInterrupt:
            self.interrupted = True
        self._save()

    def _prepare(self) -> dict[str, Any] | None:
        """Scales observations and, if the agent asks for it, imitates a heuristic; returns how well."""
        from agents.imitation import imitate, play_and_scale

        a, settings = self.agent, plain(self.agent.get("imitate") or {})
        rule, seed = self._imitated_rule(), int(self.config["seed"])
        decisions = int(a["scale_decisions"] if rule is None else settings["decisions"])
        seen = play_and_scale(self.model, self.env.venv, rule, decisions, seed)
        if rule is None:
            return None
        agreement = imitate(self.model, seen, int(settings["epochs"]), int(a["batch_size"]) // 4,
                            float(settings["learning_rate"]))
        return {"rule": rule, "decisions": len(seen["answer"]), "agreement": agreement}

    def _unjudged(self) -> bool:
        """True if the policy learned on since it was last validated."""
        history = self.validation.history if self.validation is not None else []
        return not history or history[-1]["timesteps"] != self.model.num_timesteps

    def _save(self) -> None:
        from agents.callbacks import save

        save(self.model, self.out / LAST_FILE)
        if self.validation is None or self.validation.best is None:
            save(self.model, self.out / POLICY_FILE)
        write_json(self.out / SCALE_FILE, describe_scale(self.out / POLICY_FILE))
        self.logger.dump(self.model.num_timesteps)

    def close(self) -> None:
        """Closes bar, logger and environments."""
        self.progress.stop()
        self.logger.close()
        self.env.close()

    def summary(self) -> dict[str, Any]:
        """The machine-readable account of the run."""
        wall_s = time.monotonic() - self.started
        setup_s = self.ready - self.started
        validation_s = self.validation.wall_s if self.validation is not None else 0.0
        steps = int(self.model.num_timesteps)
        reason = "interrupt" if self.interrupted else "max_wall_s" if self.clock.expired else "total_timesteps"
        return {
            "command": "train", "agent": self.agent["name"], "network": self.agent["network"],
            "env": self.config["env"]["id"], "seed": int(self.config["seed"]), "timesteps": steps,
            "stopped_by": reason, "episodes": self.figures.episodes, "updates": int(self.model._n_updates),
            "wall_s": wall_s, "setup_wall_s": setup_s, "validation_wall_s": validation_s,
            "decisions_per_s": steps / max(wall_s - setup_s - validation_s, 1e-9),
            "imitation": self.imitation, "best": self.validation.best if self.validation is not None else None,
            "validation": self.validation.history if self.validation is not None else [],
            "logger": plain(self.config.get("logger") or {"name": "none"})["name"],
            "files": sorted(path.name for path in self.out.iterdir() if not path.name.startswith(".")),
        }


def describe_scale(path: Path) -> dict[str, Any]:
    """Returns the scaling stored in a saved policy: mean and deviation of each feature, as applied."""
    from sb3_contrib import MaskablePPO

    encoder: Any = MaskablePPO.load(path, device="cpu").policy.features_extractor
    return {"schema": "ooco-gym/normalisation/1", "formula": "clip((x - mean) / deviation, -8, 8)",
            "cluster": encoder.cluster.describe(), "candidates": encoder.candidates.describe()}


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
