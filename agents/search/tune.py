"""`ooco-gym tune`: searches a policy's parameters on training windows, so that a learned policy has a fair opponent.

A tree-structured Parzen estimator (Bergstra et al., NeurIPS 2011; with the constraint as in Optuna) proposes
parameters, each from its range (`agents.search.space`); each trial plays the same training windows. Feasible first:
the constraint is that the upper 95 % limit of the violation rate keeps the limit, the objective is offline service. The
best trials and the policy as it ships are then played on validation windows, and the best of them there is kept
(docs/training.md).
"""

from __future__ import annotations

import csv
import hashlib
import json
import os
import platform
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any

from agents.environments import Window, check_ours, make_env, split_seeds, windows
from agents.evaluation.heuristics import by_name, seated
from agents.evaluation.scoring import HEADLINE, feasible_first, grid, mean_interval, upper_violation_limit, values
from agents.search.checkpoints import POLICY_FILE, write_policy
from agents.search.space import ranges_of
from agents.settings import LARGEST_SEED, group, number, plain, require, whole
from ooco_gym.envs.decision import are_settings
from ooco_gym.errors import Terminated, UserError, unknown
from ooco_gym.files import DiskFullError, atomic_write
from ooco_gym.policy import get_policy, is_policy, list_policies, spelled, split_name
from ooco_gym.population import Candidate
from ooco_gym.report import Table, with_interval
from ooco_gym.report.terminal import progress

JOURNAL = ".journal"  # ends the name of a storage that is a file which many processes write to
_SEARCH_KEYS = ("policy", "seed", "windows", "window_s", "warmup_s", "violation_limit", "params", "space", "spread",
                "fixed")  # what a study is about, beside the environment: with another value it is another study


def main(cfg: Any) -> dict[str, Any]:
    """Tunes `cfg.policy` for `cfg.env`; writes policy.yaml and trials.csv, and returns the summary.

    Ctrl-C ends the search and judges what there is; the same command with the same storage goes on.

    Raises:
        KeyboardInterrupt: Ctrl-C came before any trial was finished, or SIGTERM: the storage keeps what there is.
        UserError: a policy that has no parameters or no say here, a count or range that is none, or a storage that
            cannot be opened.
    """
    config = plain(cfg)
    _check(config)
    require("tune")
    with _stored(config):
        search = _Search(config)
        interrupted = search.run()
        report = search.report(interrupted)
    out = Path(config["out"])
    out.mkdir(parents=True, exist_ok=True)
    keys, names = (*FIGURES, "policy", "refused"), [one.name for one in search.ranges]
    with atomic_write(out / "trials.csv") as temporary, open(temporary, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["trial", *keys, *names])
        writer.writerows([place, *(trial.user_attrs.get(key) for key in keys),
                          *(trial.params.get(name) for name in names)] for place, trial in enumerate(search.done()))
    write_policy(out, Candidate(get_policy(report["policy"])))
    show(report)
    print(f"policy: {out / POLICY_FILE}")
    return report


@contextmanager
def _stored(config: Mapping[str, Any]) -> Iterator[None]:
    """Says in a sentence what a storage raises that was damaged, or cannot be reached any more."""
    try:
        yield
    except Exception as error:
        if type(error).__module__.partition(".")[0] not in ("alembic", "json", "optuna", "sqlalchemy", "sqlite3"):
            raise
        name = config["storage"] or Path(config["out"]) / "study.db"
        why = " ".join(str(error).split())[:200] or type(error).__name__
        if "full" in why:
            raise DiskFullError(f"storage '{name}' cannot be written: {why}") from error
        raise UserError(f"storage '{name}' cannot be read or written: {why}; move it away and search anew") from error


def _check(config: dict[str, Any]) -> None:
    config["env"] = group(config, "env")
    check_ours(config["env"], "tune")
    validation = config["validation"] = plain(config.get("validation") or {})
    for place, key, least in ((config, "trials", 1), (config, "windows", 2), (validation, "windows", 2),
                              (validation, "finalists", 1)):
        whole(place, key, least, name=key if place is config else f"validation.{key}")
    whole(config, "seed", 0, most=LARGEST_SEED)
    for key, least in (("window_s", 1.0), ("warmup_s", 0.0), ("violation_limit", 0.0), ("spread", 1.0)):
        number(config, key, least)
    name = str(config.get("policy"))
    if not is_policy(name):
        with closing(make_env(config["env"])) as env:
            try:
                by_name(env.unwrapped, name)
            except UserError:
                raise unknown("policy", name, list_policies()) from None
        raise UserError(f"'{name}' has no parameters, so there is nothing to tune; it is played as it is")


def _mend(journal: Path) -> None:
    """Takes the last line off a journal that was torn in it, so that what is written next does not join it."""
    from optuna.storages.journal import JournalFileSymlinkLock

    def torn() -> int:
        data = journal.read_bytes() if journal.is_file() else b""
        return len(data) - (data.rfind(b"\n") + 1)

    if torn():
        lock = JournalFileSymlinkLock(str(journal))  # others may be writing it
        lock.acquire()
        try:
            os.truncate(journal, journal.stat().st_size - torn())
        finally:
            lock.release()


class Windows:
    """Windows to be played by one policy after the other, kept as they stand after the warm-up where they can be."""

    def __init__(self, config: Mapping[str, Any], games: Sequence[Window]) -> None:
        self.config, self.games = plain(config), list(games)
        self.env: Any = make_env(self.config).unwrapped
        self.env.episodes.bank = len(self.games)

    def play(self, policy: str) -> list[dict[str, Any]]:
        """Plays all windows with a policy: records as `players.play` gives them, without the reward's parts.

        Raises:
            UserError: the policy cannot play here.
        """
        config, name = seated(self.config, policy, self.env)
        env: Any = self.env if config == self.config else make_env(config).unwrapped
        records, episodes = [], env.episodes
        for window in self.games:  # past Gymnasium: the observations are not looked at
            env.reset(seed=window.seed, options={"window": window.number})
            act = by_name(env, name).begin(env)
            while episodes.open(0):
                episodes.buffers.actions[0] = act()
                episodes.step(0, 1)
            summary = env.summary()
            records.append({"seed": window.seed, "window": window.number, "reward": summary["reward_total"],
                            "summary": summary})
        if env is not self.env:
            env.close()
        return records


FIGURES = ("service", "violation_rate", "violation_upper_limit")


def figures(records: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Offline service (reference GPU-s/s), violation rate and its upper 95 % limit over some windows."""
    limit = upper_violation_limit(records)
    return {"service": float(values(records, HEADLINE).mean()),
            "violation_rate": float(values(records, "violation_rate").mean()),
            "violation_upper_limit": 0.0 if limit is None else limit}  # no online request: nothing to violate


def _worker() -> list[Any]:
    """The machine and the number of this process."""
    return [platform.node(), os.getpid()]


def _is_dead(worker: Any) -> bool:
    """Whether a process that began a trial has ended: one of this machine that is there no more, or had our number."""
    if not worker or list(worker) == _worker():
        return True
    if worker[0] != platform.node():
        return False
    try:
        os.kill(int(worker[1]), 0)
    except ProcessLookupError:
        return True
    except PermissionError:  # it is another user's
        pass
    return False


class _Search:
    """One study: its windows, its ranges, its trials."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.config, self.limit = config, float(config["violation_limit"])
        self.name, given = split_name(str(config["policy"]))
        self.policy = get_policy(str(config["policy"]))
        shorter = {**config["env"], "window_s": config["window_s"], "warmup_s": config["warmup_s"]}
        self.windows = Windows(shorter, windows(split_seeds(config["env"], "train"), int(config["windows"])))
        self.seat = are_settings(self.windows.env.decisions)  # it plays as the partner, rather than answer decisions
        self.given = {part.partition("=")[0].strip() for part in given.split(",") if part}
        self.ranges, self.left = ranges_of(
            self.policy, float(config["spread"]), config["params"], [*(config["fixed"] or ()), *self.given],
            config["space"], asked=not self.seat)
        self.default = {one.name: one.default for one in self.ranges}
        # One parameter at a time first: of a dozen that are drawn at once one at least is always bad, and a search that
        # begins so learns little of a policy that is good as it ships.
        steps = [{**self.default, one.name: value} for one in self.ranges for value in one.steps()]
        self.starts = [self.default, *steps] if all(one.holds(one.default) for one in self.ranges) else []
        self.study = self._study()
        # By policy, what it came to on the training windows: also before a search that goes on.
        self.played = {trial.user_attrs["policy"]: {key: trial.user_attrs[key] for key in FIGURES}
                       for trial in self.done() if "service" in trial.user_attrs}

    def spell(self, searched: Mapping[str, Any]) -> str:
        """The policy with parameters: those given with its name, and those searched."""
        return spelled(self.name, {**{key: self.policy.values[key] for key in self.policy.values if key in self.given},
                                   **searched})

    def _study(self) -> Any:
        import optuna
        from optuna.storages.journal import JournalFileBackend

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        about = {key: self.config[key] for key in _SEARCH_KEYS} | {"env": self.config["env"]}
        digest = hashlib.sha256(json.dumps(about, sort_keys=True, default=str).encode()).hexdigest()[:12]
        storage = given = self.config["storage"]
        if storage is None:
            Path(self.config["out"]).mkdir(parents=True, exist_ok=True)
            storage = f"sqlite:///{Path(self.config['out']) / 'study.db'}"
        try:
            if given and str(given).endswith(JOURNAL):
                Path(given).parent.mkdir(parents=True, exist_ok=True)
                _mend(Path(given))
                storage = optuna.storages.JournalStorage(JournalFileBackend(str(given)))
            return optuna.create_study(storage=storage, study_name=f"{self.name} {digest}", direction="maximize",
                                       load_if_exists=True)
        except Exception as error:  # SQLAlchemy, drivers and Optuna raise many kinds
            why = " ".join(str(error).split())[:200]
            raise UserError(f"storage={storage} cannot be opened: {why}; expected one of Optuna's, such as "
                            f"sqlite:///tune.db, or a journal, tune{JOURNAL}") from error

    def done(self) -> list[Any]:
        """Trials that were played to their end, in order."""
        from optuna.trial import TrialState

        return self.study.get_trials(deepcopy=False, states=(TrialState.COMPLETE, TrialState.PRUNED))

    def run(self) -> bool:
        """Searches until the budget is used up, by this process and others at the same storage; returns whether Ctrl-C
        ended it before."""
        from optuna.trial import TrialState

        for trial in self.study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            if _is_dead(trial.user_attrs.get("worker")):  # of a search that was killed
                self.study.tell(trial.number, state=TrialState.FAIL)
        with progress(f"tuning {self.name}", int(self.config["trials"])) as bar:
            while len(self.open_or_done()) < int(self.config["trials"]):
                bar.advance(len(self.done()) - bar.done)
                try:
                    self._trial()
                except Terminated:
                    raise
                except KeyboardInterrupt:
                    if not self.done():
                        raise
                    return True
        return False

    def open_or_done(self) -> list[int]:
        """Numbers of the trials that were played to their end, or are being played."""
        from optuna.trial import TrialState

        return [trial.number for trial in self.study.get_trials(deepcopy=False) if trial.state != TrialState.FAIL]

    def _trial(self) -> None:
        """One trial; what it draws depends on the trials before it and on its place among them, not on when they
        ran."""
        import optuna
        from numpy.random import SeedSequence

        trial = self.study.ask()
        trial.set_user_attr("worker", _worker())
        place = self.open_or_done().index(trial.number)
        seed = int(SeedSequence([int(self.config["seed"]), place]).generate_state(1)[0])
        sampler: Any = optuna.samplers.TPESampler(seed=seed, n_startup_trials=20)
        if place < len(self.starts):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)  # there since 2021
                sampler = optuna.samplers.PartialFixedSampler(self.starts[place], sampler)
        self.study.sampler = sampler
        policy = self.spell({one.name: one.suggest(trial) for one in self.ranges})
        trial.set_user_attr("policy", policy)
        try:
            found = self._figures(policy)
        except UserError as error:
            trial.set_user_attr("refused", str(error))
            self.study.tell(trial, state=optuna.trial.TrialState.PRUNED)
            return
        for key, value in found.items():
            trial.set_user_attr(key, value)
        trial.set_constraint("violation_upper_limit", found["violation_upper_limit"] - self.limit)
        self.study.tell(trial, found["service"])

    def _figures(self, policy: str) -> dict[str, float]:
        """What a policy comes to on the training windows, which are played once."""
        if policy not in self.played:
            self.played[policy] = figures(self.windows.play(policy))
        return self.played[policy]

    def _order(self, found: Mapping[str, float]) -> tuple[bool, float]:
        return feasible_first(found["violation_upper_limit"], found["service"], self.limit)

    def finalists(self) -> list[str]:
        """The best policies of the search, the best first; of those that play alike, the first that was tried."""
        alike: dict[tuple[float, ...], Any] = {}
        for trial in self.done():
            if "service" in trial.user_attrs:
                alike.setdefault(tuple(trial.user_attrs[key] for key in FIGURES), trial.user_attrs)
        ordered = sorted(alike.values(), key=self._order, reverse=True)
        return [found["policy"] for found in ordered][: int(self.config["validation"]["finalists"])]

    def report(self, interrupted: bool) -> dict[str, Any]:
        """Plays the finalists on validation windows, and says what is kept, why, and against what.

        Raises:
            UserError: no trial was finished.
        """
        finalists = self.finalists()
        if not finalists:
            raise UserError("no trial was finished, so there is nothing to keep; run the same command again")
        default = self.spell({})
        games = windows(split_seeds(self.config["env"], "validation"), int(self.config["validation"]["windows"]))
        held = Windows(self.config["env"], games)
        with progress("validating", len(finalists) + 1) as bar:
            records = {}
            for name in dict.fromkeys([default, *finalists]):
                records[name] = held.play(name)
                bar.advance()
        found = {name: figures(one) for name, one in records.items()}
        kept = max(records, key=lambda name: self._order(found[name]))  # of equals the policy as it ships
        rows = []
        for name, mine in records.items():
            _, *service = mean_interval(grid(mine, HEADLINE))
            _, *violations = mean_interval(grid(mine, "violation_rate"))
            difference, *ends = mean_interval(grid(mine, HEADLINE) - grid(records[default], HEADLINE))
            rows.append({"policy": name, "as_it_ships": name == default, "kept": name == kept, **found[name],
                         "service_interval": service, "violation_interval": violations, "difference": difference,
                         "difference_interval": ends})
        searched = {name: self._figures(name) for name in dict.fromkeys((default, kept))}
        by = {row["policy"]: {key: value for key, value in row.items() if key not in ("policy", "kept", "as_it_ships")}
              for row in rows}
        config, trials = self.config, self.done()
        provenance = {  # without a date or a path: the same search gives the same
            "command": "tune", "environment": config["env"]["id"],
            "plays": "as the partner" if self.seat else "the environment's decisions, beside the partner",
            "config": {key: config[key] for key in (*_SEARCH_KEYS, "env", "validation")},
            "trials": len(trials),
            "feasible_trials": sum(trial.user_attrs.get("violation_upper_limit", 1.0) <= self.limit
                                   for trial in trials),
            "searched": {one.name: str(one) for one in self.ranges}, "not_searched": dict(self.left),
            "training": {"seeds": sorted({window.seed for window in self.windows.games}),
                         "windows": len(self.windows.games), "window_s": config["window_s"],
                         "default": searched[default], "tuned": searched[kept]},
            "validation": {"seeds": sorted({int(seed) for seed in split_seeds(config["env"], "validation")}),
                           "default": by[default], "tuned": by[kept]},
            "versions": {name: metadata.version(name) for name in ("ooco-gym", "optuna", "numpy", "numba")},
        }
        return {"command": "tune", "env": config["env"]["id"], "policy": kept, "default": default,
                "trials": len(trials), "stopped_by": "interrupt" if interrupted else "trials",
                "validation": rows, "provenance": provenance}


def show(report: Mapping[str, Any]) -> None:
    """Prints the policy as it ships and the best trials, on validation windows."""
    ordered = sorted(report["validation"], key=lambda row: (not row["as_it_ships"], not row["kept"]))
    Table(f"{report['default'].partition(':')[0]} tuned for {report['env']}: validation windows",
          ["policy", "offline ref. GPU-s/s", "difference", "violations", "upper limit", ""],
          [["as it ships" if row["as_it_ships"] else "tuned" if row["kept"] else f"finalist {place}",
            with_interval(row["service"], *row["service_interval"]),
            with_interval(row["difference"], *row["difference_interval"]),
            with_interval(row["violation_rate"], *row["violation_interval"], form=".2%"),
            f"{row['violation_upper_limit']:.2%}", "kept" if row["kept"] else ""] for place, row in enumerate(ordered)],
          align="l").show()
    print(f"{report['trials']} trials, {report['provenance']['feasible_trials']} of them feasible: the upper 95 % "
          "limit of the violation rate keeps the limit. Intervals: 95 %, over seeds and their windows")
    if report["stopped_by"] == "interrupt":
        print("stopped by Ctrl-C: the same command goes on where the search stands")
    print(report["policy"])
