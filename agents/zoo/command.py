"""`ooco-gym zoo`: trains every environment's policies over several seeds, tunes their opponents, ships the best.

conf/zoo.yaml is a list of presets of `ooco-gym train` and `ooco-gym tune`, which go to `<env>/seed_<n>/` and
`<env>/tuned/<policy>/`. What is complete there under the same settings is not made again (docs/zoo.md).
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from agents.learning.runs import SUMMARY_FILE, clear
from agents.settings import LARGEST_SEED, plain, require, whole
from agents.settings import seeds as checked_seeds
from ooco_gym.documents import read_yaml
from ooco_gym.errors import UserError, check_keys, end_if_interrupted, is_whole, unknown
from ooco_gym.files import atomic_write, write_json
from ooco_gym.jobs import in_processes
from ooco_gym.report import Table
from ooco_gym.report.terminal import progress
from ooco_gym.resources import conf_root
from ooco_gym.resources import names as known

TRAIN, TUNE = "train", "tune"
TUNED = "tuned:"  # in a training configuration: the policy that this environment's search of the one named came to
_OPEN = ("agent", "env")  # parts of a configuration to which an entry may add keys


class Job(NamedTuple):
    """One training run or one search: what is asked for, and where it goes."""

    kind: str
    env: str
    label: str
    folder: Path
    config: dict[str, Any]

    @property
    def name(self) -> str:
        """For people: `gating seed_3`, `gating tuned/ooco`."""
        return f"{self.env} {self.label}"

    @property
    def asked(self) -> dict[str, Any]:
        """The settings, without where the result goes and what becomes of another that lies there."""
        return {"kind": self.kind, **{key: value for key, value in self.config.items()
                                      if key not in ("out", "overwrite", "storage")}}

    def begun(self) -> bool:
        """Whether its folder has some of it, made under the same settings."""
        try:
            return read_yaml(self.folder / "job.yaml") == self.asked
        except UserError:  # not there, or damaged: made anew
            return False

    def complete(self) -> bool:
        """Whether its folder has all of it, made under the same settings."""
        return (self.folder / SUMMARY_FILE).is_file() and self.begun()

    def resolved(self) -> Job:
        """The job with what is tuned in its place, once it is: `tuned:ooco` becomes `ooco:slo_margin=0.95,…`."""
        from agents.search.tune import POLICY_FILE, read_tuned

        def place(value: Any) -> Any:
            if isinstance(value, Mapping):
                return {key: place(one) for key, one in value.items()}
            if isinstance(value, str) and value.startswith(TUNED):
                path = self.folder.parent / "tuned" / value.removeprefix(TUNED) / POLICY_FILE
                return read_tuned(path)["policy"] if path.is_file() else value
            return value

        return self._replace(config=place(self.config)) if self.kind == TRAIN else self


def main(cfg: Any) -> dict[str, Any]:
    """Makes what is left of the zoo in `cfg.out`, or with `ship=true` puts the best of `cfg.zoo` into the package.

    Raises:
        UserError: an unknown environment or key, a count that is none, or jobs that failed.
        KeyboardInterrupt: the same command goes on with what is left.
    """
    config, started = plain(cfg), time.monotonic()
    entries = chosen(config)
    if config.get("ship"):
        from agents.zoo.ship import ship

        return ship(config, entries)
    jobs, workers = planned(config, entries, Path(config["out"])), whole(config, "workers", 1)
    left = [job for job in map(Job.resolved, jobs) if not job.complete()]
    for kind in {job.kind for job in left}:
        require(kind)
    Table(f"{len(left)} of {len(jobs)} jobs to do, {workers} at a time", ("environment", "seeds", "tuned", "to do"), [
        [env, sum(job.kind == TRAIN for job in jobs if job.env == env),
         ", ".join(job.config["policy"] for job in jobs if (job.kind, job.env) == (TUNE, env)) or None,
         sum(job.env == env for job in left)] for env in entries], align="l").show(unbroken=1)
    replaced = sum((job.folder / SUMMARY_FILE).is_file() and not job.begun() for job in left)
    if replaced:
        print(f"{replaced} complete {'jobs lie' if replaced > 1 else 'job lies'} there under other settings and will "
              "be made again; another out keeps what is there")
    made: dict[str, dict[str, Any]] = {}
    failed: dict[str, str] = {}
    with progress("making the zoo", len(left)) as bar:
        for kind in (TUNE, TRAIN):  # what is learned begins from what is tuned
            unsearched = {job.env for job in left if job.kind == TUNE and job.name in failed}
            todo = [job.resolved() for job in left if job.kind == kind and job.env not in unsearched]
            for job, (figures, why) in zip(todo, in_processes(do, todo, workers), strict=True):
                if why:
                    failed[job.name], said = why, f"failed: {why}"
                else:
                    made[job.name] = figures
                    said = ", ".join(f"{key} {value:.4g}" if isinstance(value, float) else f"{key} {value}"
                                     for key, value in figures.items())
                print(f"{job.name}: {said}")
                bar.advance()
    if failed:
        first, rest = next(iter(failed)), len(left) - len(made) - len(failed)
        raise UserError(f"{len(failed)} of {len(left)} jobs failed"
                        + (f" and {rest} were not begun, for they need what was to be tuned" if rest else "")
                        + f"; the first, {first}: {failed[first]}; the same command goes on with what is left")
    return {"command": "zoo", "jobs": len(jobs), "skipped": len(jobs) - len(left), "made": made,
            "wall_s": time.monotonic() - started}


def do(job: Job) -> tuple[dict[str, Any], str]:
    """Does one job, in this process; what it prints goes to its log. Returns a few figures of it, or why it failed."""
    from agents.learning import train
    from agents.search import tune

    goes_on = job.begun()
    job.folder.mkdir(parents=True, exist_ok=True)
    (job.folder / SUMMARY_FILE).unlink(missing_ok=True)
    if job.kind == TRAIN and not goes_on:
        clear(job.folder)  # before job.yaml says otherwise: nothing of another run is to be gone on from
    with atomic_write(job.folder / "job.yaml") as temporary:
        temporary.write_text(yaml.safe_dump(job.asked, sort_keys=False), encoding="utf-8")
    try:
        with open(job.folder / "log.txt", "w", encoding="utf-8") as log, contextlib.redirect_stdout(log), \
                contextlib.redirect_stderr(log):
            summary = None
            if job.kind == TRAIN and goes_on:
                with contextlib.suppress(UserError):  # no checkpoint, or none that can be read
                    summary = train.main({"resume": str(job.folder)})
            if summary is None:
                summary = train.main({**job.config, "overwrite": True}) if job.kind == TRAIN else tune.main(job.config)
    except Exception as error:
        return {}, " ".join(str(error).split()) or type(error).__name__
    end_if_interrupted(summary)
    write_json(job.folder / SUMMARY_FILE, summary)
    if job.kind == TRAIN:
        best = summary.get("best") or {}
        return {"timesteps": summary["timesteps"], "wall_s": summary["wall_s"],
                **{key: best.get(key) for key in ("reward", "violation_rate")}}, ""
    kept = next(row for row in summary["validation"] if row["kept"])
    return {"policy": summary["policy"], **{key: kept[key] for key in ("service", "difference", "violation_rate")}}, ""


# --- The plan ---------------------------------------------------------------------------------------------------------
def chosen(config: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The entries of conf/zoo.yaml that `envs` asks for, all where it is null.

    Raises:
        UserError: an unknown environment, or an entry with an unknown key.
    """
    entries = {name: plain(entry or {}) for name, entry in plain(config.get("environments") or {}).items()}
    for name, entry in entries.items():
        check_keys(f"environments.{name}", entry, ("name", "agent", "seeds", TRAIN, TUNE, "tried"))
    asked = config.get("envs")
    names = list(entries) if asked is None else [asked] if isinstance(asked, str) else list(asked)
    if not names:
        raise UserError(f"envs={asked} names no environment; expected some of {', '.join(entries)}, or null for all")
    for name in names:
        if name not in entries:
            raise unknown("environment of the zoo", name, entries)
    return {name: entries[name] for name in names}


def planned(config: Mapping[str, Any], entries: Mapping[str, Mapping[str, Any]], out: Path) -> list[Job]:
    """All jobs of the zoo, an environment's searches before its training runs.

    Raises:
        UserError: a setting that `train` or `tune` does not have, or no seed.
    """
    jobs: list[Job] = []
    for env, entry in entries.items():
        if entry["agent"] not in known("agent"):
            raise unknown(f"environments.{env}.agent", entry["agent"], known("agent"))
        tune, budgets = plain(entry.get(TUNE) or {}), {}
        for key in ("trials", "total_timesteps"):
            budgets[key] = {} if config.get(key) is None else {key: whole(config, key, 1)}
        policies = {str(policy).partition(":")[0]: policy for policy in tune.pop("policies", [])}
        search = merged(composed(TUNE, f"env={env}"), {**tune, **budgets["trials"]}, f"environments.{env}.tune")
        for name, policy in policies.items():
            folder = out / env / "tuned" / name
            jobs.append(Job(TUNE, env, f"tuned/{name}", folder, {
                **search, "policy": policy, "out": str(folder), "storage": f"sqlite:///{folder / 'study.db'}"}))
        asked = config.get("seeds") if config.get("seeds") is not None else entry.get("seeds")
        numbers = [] if asked == [] else checked_seeds(
            [asked] if is_whole(asked) else asked, "[1,2]", "those of conf/zoo.yaml") or []
        run = merged(composed(TRAIN, f"env={env}", f"agent={entry['agent']}"),
                     {**plain(entry.get(TRAIN) or {}), **budgets["total_timesteps"]}, f"environments.{env}.train")
        for seed in numbers:
            if seed > LARGEST_SEED:
                raise UserError(f"seeds={asked}: {seed} is larger than {LARGEST_SEED}")
            folder = out / env / f"seed_{seed}"
            jobs.append(Job(TRAIN, env, folder.name, folder, {**run, "seed": seed, "out": str(folder)}))
    return jobs


def composed(command: str, *words: str) -> dict[str, Any]:
    """A command's configuration as the command line would compose it, also while the command line runs this one.

    Raises:
        UserError: a word names nothing that there is.
    """
    from hydra import compose, initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra
    from hydra.errors import HydraException
    from omegaconf import OmegaConf

    running, GlobalHydra.instance().hydra = GlobalHydra.instance().hydra, None
    try:
        with initialize_config_dir(str(conf_root()), version_base="1.3"):
            return OmegaConf.to_container(compose(command, overrides=list(words)))  # type: ignore[return-value]
    except HydraException as error:
        raise UserError(f"{command} {' '.join(words)}: {' '.join(str(error).split())}") from error
    finally:
        GlobalHydra.instance().hydra = running


def merged(base: Mapping[str, Any], changes: Mapping[str, Any], where: str) -> dict[str, Any]:
    """A configuration with some of its keys changed, those of mappings one by one; keys of `agent` and `env` may be
    new, others are refused."""
    result = dict(base)
    for key, value in changes.items():
        if key not in base and not set(where.split(".")) & set(_OPEN):
            check_keys(where, [key], base)
        both = isinstance(value, Mapping) and isinstance(base.get(key), Mapping)
        result[key] = merged(base[key], value, f"{where}.{key}") if both else value
    return result
