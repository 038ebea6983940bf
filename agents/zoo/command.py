"""`ooco-gym zoo`: trains every environment's policies over several seeds, tunes their opponents, ships the best.

A zoo's working folder has `<env>/seed_<n>/` (runs of `ooco-gym train`) and `<env>/tuned/<policy>/` (of
`ooco-gym tune`), as conf/zoo.yaml plans them. What is complete there under the same settings is not made again, so that
a zoo that was stopped goes on with what is left (docs/zoo.md).
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from agents.learning.runs import SUMMARY_FILE, clear
from agents.settings import LARGEST_SEED, plain, require, whole
from agents.settings import seeds as checked_seeds
from ooco_gym.documents import read_yaml
from ooco_gym.errors import UserError, check_keys, is_whole, signal_of, unknown
from ooco_gym.files import atomic_write, write_json
from ooco_gym.jobs import SPAWN, ended_by_ctrl_c, processes
from ooco_gym.report import Table
from ooco_gym.report.terminal import progress
from ooco_gym.resources import conf_root
from ooco_gym.resources import names as known

TRAIN, TUNE = "train", "tune"
TUNED = "tuned:"  # in a training configuration: the policy that this environment's search of the one named came to
JOB_FILE, LOG_FILE = "job.yaml", "log.txt"
_ENTRY_KEYS = ("name", "agent", "seeds", "train", "tune", "tried", "estimate_s")
_NOT_ASKED = ("out", "overwrite", "storage")  # of a configuration: not what is made, only where
_OPEN = ("agent", "env")  # parts of a configuration to which an entry may add keys


class Job(NamedTuple):
    """One training run or one search: what is asked for, and where it goes."""

    kind: str
    env: str
    label: str
    folder: Path
    config: dict[str, Any]
    estimate_s: float  # of one core

    @property
    def name(self) -> str:
        """For people: `gating seed_3`, `gating tuned/ooco`."""
        return f"{self.env} {self.label}"

    def complete(self) -> bool:
        """Whether its folder has all of it, made under the same settings."""
        return (self.folder / SUMMARY_FILE).is_file() and self.begun()

    def begun(self) -> bool:
        """Whether its folder has some of it, made under the same settings."""
        try:
            return read_yaml(self.folder / JOB_FILE) == self.asked()
        except UserError:  # not there, or damaged: made anew
            return False

    def under_other_settings(self) -> bool:
        """Whether its folder has all of another job, which making this one replaces."""
        return (self.folder / SUMMARY_FILE).is_file() and (self.folder / JOB_FILE).is_file() and not self.begun()

    def asked(self) -> dict[str, Any]:
        """The settings, without where the result goes and what becomes of another that lies there."""
        settings = {key: value for key, value in self.config.items() if key not in _NOT_ASKED}
        return {"kind": self.kind, **settings}


def main(cfg: Any) -> dict[str, Any]:
    """Makes what is left of the zoo in `cfg.out`, or with `ship=true` puts the best of `cfg.zoo` into the package.

    Raises:
        UserError: an unknown environment or key, a count that is none, or jobs that failed.
    """
    config = plain(cfg)
    entries = chosen(config)
    if config.get("ship"):
        from agents.zoo.ship import ship

        return ship(config, entries)
    jobs = [resolved(job) for job in planned(config, entries, Path(config["out"]))]
    left = [job for job in jobs if not job.complete()]
    workers = whole(config, "workers", 1)
    show_plan(jobs, left, workers)
    for purpose in {job.kind for job in left}:
        require(purpose)
    started = time.monotonic()
    made, failed, interrupt = run(left, workers)
    summary = {"command": "zoo", "jobs": len(jobs), "skipped": len(jobs) - len(left), "made": made, "failed": failed,
               "left": len(left) - len(made) - len(failed), "stopped_by": "interrupt" if interrupt else "end",
               **(signal_of(interrupt) if interrupt else {}), "wall_s": time.monotonic() - started}
    if interrupt:
        print(f"stopped by Ctrl-C: {summary['left'] + len(failed)} jobs are left; the same command goes on with them")
        return summary
    if failed:
        first = next(iter(failed))
        rest = summary["left"]
        raise UserError(f"{len(failed)} of {len(left)} jobs failed"
                        + (f" and {rest} were not begun, for they need what was to be tuned" if rest else "")
                        + f"; the first, {first}: {failed[first]}; the same command goes on with what is left")
    return summary


# --- The plan -----------------------------------------------------------------------------------------------------
def chosen(config: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The entries of conf/zoo.yaml that `envs` asks for, all where it is null.

    Raises:
        UserError: an unknown environment, or an entry with an unknown key.
    """
    entries = {name: plain(entry or {}) for name, entry in plain(config.get("environments") or {}).items()}
    for name, entry in entries.items():
        check_keys(f"environments.{name}", entry, _ENTRY_KEYS)
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
    for name, entry in entries.items():
        seconds = plain(entry.get("estimate_s") or {})
        jobs += [Job(TUNE, name, f"tuned/{one['policy'].partition(':')[0]}",
                     out / name / "tuned" / one["policy"].partition(":")[0], one,
                     float(seconds.get(TUNE, 0.0)) * smaller(config, "trials", plain(entry.get(TUNE) or {})))
                 for one in searches(config, name, entry, out)]
        runs = trainings(config, name, entry)
        jobs += [Job(TRAIN, name, label, out / name / label, {**one, "out": str(out / name / label)},
                     float(seconds.get(TRAIN, 0.0)) * smaller(config, "total_timesteps", plain(entry.get(TRAIN) or {})))
                 for label, one in ((f"seed_{one['seed']}", one) for one in runs)]
    return jobs


def smaller(config: Mapping[str, Any], key: str, planned_for: Mapping[str, Any]) -> float:
    """By how much a budget given for all jobs makes one shorter than its estimate, which is for its own."""
    if config.get(key) is None:
        return 1.0
    own = planned_for.get(key) or composed(TUNE if key == "trials" else TRAIN)[key]
    return whole(config, key, 1) / float(own)


def resolved(job: Job) -> Job:
    """The job with what is tuned in its place, once it is: `tuned:ooco` becomes `ooco:slo_margin=0.95,…`."""
    from agents.search.tune import POLICY_FILE, read_tuned

    here = job.folder.parents[len(Path(job.label).parts) - 1]

    def place(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {key: place(one) for key, one in value.items()}
        if isinstance(value, str) and value.startswith(TUNED):
            path = here / "tuned" / value.removeprefix(TUNED) / POLICY_FILE
            return read_tuned(path)["policy"] if path.is_file() else value
        return value

    return job._replace(config=place(job.config)) if job.kind == TRAIN else job


def trainings(config: Mapping[str, Any], name: str, entry: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The configuration of each training run of an environment, as `ooco-gym train` would have it, but for `out`."""
    if entry["agent"] not in known("agent"):
        raise unknown(f"environments.{name}.agent", entry["agent"], known("agent"))
    base = composed(TRAIN, f"env={name}", f"agent={entry['agent']}")
    made = merged(base, plain(entry.get(TRAIN) or {}), f"environments.{name}.train")
    if config.get("total_timesteps") is not None:
        made["total_timesteps"] = whole(config, "total_timesteps", 1)
    asked = config.get("seeds") if config.get("seeds") is not None else entry.get("seeds")
    if asked == []:
        return []
    numbers = checked_seeds([asked] if is_whole(asked) else asked, "[1,2]", "those of conf/zoo.yaml") or []
    for seed in numbers:
        if seed > LARGEST_SEED:
            raise UserError(f"seeds={asked}: {seed} is larger than {LARGEST_SEED}")
    return [{**made, "seed": seed} for seed in numbers]


def searches(config: Mapping[str, Any], name: str, entry: Mapping[str, Any], out: Path) -> list[dict[str, Any]]:
    """The configuration of each search of an environment, as `ooco-gym tune` would have it."""
    settings = plain(entry.get(TUNE) or {})
    policies = settings.pop("policies", [])
    base = composed(TUNE, f"env={name}")
    made = merged(base, settings, f"environments.{name}.tune")
    if config.get("trials") is not None:
        made["trials"] = whole(config, "trials", 1)
    folders = [out / name / "tuned" / str(policy).partition(":")[0] for policy in policies]
    return [{**made, "policy": policy, "out": str(folder), "storage": f"sqlite:///{folder / 'study.db'}"}
            for policy, folder in zip(policies, folders, strict=True)]


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
    """A configuration with some of its keys changed, those of mappings one by one.

    Raises:
        UserError: a key that the configuration has not (those of `agent` and `env` may be new).
    """
    result = dict(base)
    for key, value in changes.items():
        if key not in base and not set(where.split(".")) & set(_OPEN):
            check_keys(where, [key], base)
        old = result.get(key)
        if isinstance(value, Mapping) and isinstance(old, Mapping):
            value = merged(old, value, f"{where}.{key}")
        result[key] = value
    return result


def show_plan(jobs: Sequence[Job], left: Sequence[Job], workers: int) -> None:
    """Prints what there is to do, what is there already, and how long the rest takes by the figures of the plan."""
    rows = []
    for env in dict.fromkeys(job.env for job in jobs):
        mine = [job for job in jobs if job.env == env]
        runs, found = ([job for job in mine if job.kind == kind] for kind in (TRAIN, TUNE))
        rest = [job for job in left if job.env == env]
        rows.append([env, len(runs), f"{runs[0].config['total_timesteps']:,}" if runs else None,
                     ", ".join(job.config["policy"] for job in found) or None,
                     found[0].config["trials"] if found else None, len(rest), minutes(rest, workers)])
    Table(f"{len(left)} of {len(jobs)} jobs to do, {workers} at a time", ("environment", "seeds", "decisions", "tuned",
          "trials", "to do", "min"), rows, align="l").show(unbroken=1)
    print(f"about {minutes(left, workers)} min, by estimate_s of conf/zoo.yaml: seconds of one free core for the "
          "budgets that it names")
    replaced = sum(job.under_other_settings() for job in left)
    if replaced:
        print(f"{replaced} complete {'jobs lie' if replaced > 1 else 'job lies'} there under other settings and will "
              "be made again; another out keeps what is there")


def minutes(jobs: Sequence[Job], workers: int) -> str:
    """What jobs are estimated to take, in minutes."""
    return f"{sum(job.estimate_s for job in jobs) / workers / 60:.0f}"


# --- Making it ----------------------------------------------------------------------------------------------------
def run(jobs: Sequence[Job], workers: int
        ) -> tuple[dict[str, dict[str, Any]], dict[str, str], KeyboardInterrupt | None]:
    """Does jobs in processes, searches first; an environment's training runs begin once its own searches are over.

    Returns:
        (what each came to, by name; why others failed; Ctrl-C or SIGTERM, where it ended before all were made).
    """
    made: dict[str, dict[str, Any]] = {}
    failed: dict[str, str] = {}
    if not jobs:
        return made, failed, None
    searches = sorted((job for job in jobs if job.kind == TUNE), key=lambda job: -job.estimate_s)
    runs = [job for job in jobs if job.kind == TRAIN]
    stopped = SPAWN.Event()
    with processes(min(workers, len(jobs)), _heed, (stopped,)) as pool:
        begun: dict[Future[Any], Job] = {pool.submit(do, job): job for job in searches}
        try:
            with progress("making the zoo", len(jobs)) as bar:
                while True:
                    ready = free_of(runs, searches, made)
                    runs = [job for job in runs if job not in ready]
                    begun |= {pool.submit(do, resolved(job)): job for job in ready}
                    if not begun:
                        return made, failed, None
                    for done in wait(begun, return_when=FIRST_COMPLETED).done:
                        _note(begun.pop(done), done, made, failed)
                        bar.advance()
        except KeyboardInterrupt as interrupt:
            stopped.set()
            for one in begun:
                one.cancel()
            return made, failed, interrupt


def _note(job: Job, done: Future[Any], made: dict[str, dict[str, Any]], failed: dict[str, str]) -> None:
    """Files what a job came to, or why it failed, under its name, and says so."""
    error = done.exception()
    if error is None:
        made[job.name] = done.result()
    else:
        failed[job.name] = " ".join(str(error).split()) or type(error).__name__
    _tell(job, made.get(job.name), failed.get(job.name))


_stopped: Any = None  # in a worker: the event that no further job is to be begun


def _heed(stopped: Any) -> None:
    """Keeps the event in a worker: jobs that already lie in its queue cannot be cancelled."""
    global _stopped
    _stopped = stopped


def free_of(runs: Sequence[Job], searches: Sequence[Job], made: Mapping[str, Any]) -> list[Job]:
    """The training runs of environments whose searches have all been made."""
    waited_for = {job.env for job in searches if job.name not in made}
    return [job for job in runs if job.env not in waited_for]


def do(job: Job) -> dict[str, Any]:
    """Does one job, in this process; what it prints goes to its log. Returns a few figures of it.

    Raises:
        UserError: it was interrupted, or the zoo was before it began.
    """
    if _stopped is not None and _stopped.is_set():
        raise UserError("interrupted")
    goes_on = job.begun()
    job.folder.mkdir(parents=True, exist_ok=True)
    (job.folder / SUMMARY_FILE).unlink(missing_ok=True)
    if job.kind == TRAIN and not goes_on:
        clear(job.folder)  # before job.yaml says otherwise: nothing of another run is to be gone on from
    with atomic_write(job.folder / JOB_FILE) as temporary:
        temporary.write_text(yaml.safe_dump(job.asked(), sort_keys=False), encoding="utf-8")
    with open(job.folder / LOG_FILE, "w", encoding="utf-8") as log, contextlib.redirect_stdout(log), \
            contextlib.redirect_stderr(log):
        summary = _train(job, goes_on) if job.kind == TRAIN else _tune(job)
    if summary["stopped_by"] == "interrupt":
        raise UserError("interrupted")
    write_json(job.folder / SUMMARY_FILE, summary)
    return _figures(job, summary)


def _train(job: Job, goes_on: bool) -> dict[str, Any]:
    """Trains; a run that was stopped goes on from its last checkpoint, where there is one that can be read."""
    from agents.learning import train

    if goes_on:
        with contextlib.suppress(UserError):
            return train.main({"resume": str(job.folder)})
    return train.main({**job.config, "overwrite": True})


def _tune(job: Job) -> dict[str, Any]:
    from agents.search import tune

    with ended_by_ctrl_c():
        return tune.main(job.config)


def _figures(job: Job, summary: Mapping[str, Any]) -> dict[str, Any]:
    if job.kind == TRAIN:
        best = summary.get("best") or {}
        return {"timesteps": summary["timesteps"], "wall_s": summary["wall_s"],
                **{key: best.get(key) for key in ("reward", "violation_rate")}}
    kept = next(row for row in summary["validation"] if row["kept"])
    return {"policy": summary["policy"], **{key: kept[key] for key in ("service", "difference", "violation_rate")}}


def _tell(job: Job, made: Mapping[str, Any] | None, error: str | None) -> None:
    said = f"failed: {error}" if made is None else ", ".join(
        f"{key} {value:.4g}" if isinstance(value, float) else f"{key} {value}" for key, value in made.items())
    print(f"{job.name}: {said}")
