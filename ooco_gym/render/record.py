"""What a page needs of a run, whether it was just simulated or is read back from its folder."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ooco_gym.cluster import Cluster
from ooco_gym.documents import read_mapping
from ooco_gym.errors import UserError
from ooco_gym.files import read_parquet
from ooco_gym.peak import short_name
from ooco_gym.policy.registry import as_mapping, parameters_in, spelled

if TYPE_CHECKING:
    import pyarrow as pa

    from ooco_gym.simulation import Run

SCHEMA = "ooco-gym/simulate/2"  # of the summary of a run
SUMMARY_FILE, CONFIG_FILE, REQUESTS_FILE = "summary.json", "config.yaml", "requests.parquet"
COLUMNS = ("arrival_s", "output_tokens", "first_token_s", "finish_s", "violated")


@dataclass(frozen=True)
class RunRecord:
    """One run as pages see it. Times in seconds since the start of the measured window.

    Attributes:
        label: how the run is called in figures and tables: the policy as it was asked for.
        seed: the scenario's seed.
        summary: `metrics.summarise`, with `params` and `scenario` (`Scenario.describe`).
        requests: counted requests: `online` bool and `COLUMNS`, arrays of shape (n,), NaN where there is none.
        end_s: when the run ended; of one that is read, until when it went on at least.
        folder: where the run was read from, or an empty string.
    """

    label: str
    seed: int
    summary: Mapping[str, Any]
    requests: Mapping[str, np.ndarray]
    end_s: float = 0.0
    folder: str = ""

    @property
    def scenario(self) -> Mapping[str, Any]:
        """The scenario as it was described with the summary."""
        return self.summary["scenario"]


def record_of(run: Run, label: str | None = None, summary: Mapping[str, Any] | None = None,
              config: Mapping[str, Any] | None = None) -> RunRecord:
    """The record of a finished run, called as its command's configuration says, or `label`; `summary`: where known."""
    from ooco_gym.metrics import requests_table, summarise

    known = summary or {**summarise(run), "params": run.params, "scenario": run.scenario.describe()}
    return RunRecord(label or _policy_words(config or {}, known), run.scenario.seed, known,
                     _columns(requests_table(run)), run.simulated_s - run.window_s[0])


def read_folder(folder: str | os.PathLike[str]) -> tuple[str, dict[str, Any], dict[str, Any]]:
    """What a command left in a run folder: the command's name, its summary and its configuration.

    Raises:
        UserError: the folder holds no run, or one of these files cannot be read.
    """
    path = Path(folder)
    if not path.is_dir():
        raise UserError(f"run '{folder}' is no folder; expected one that a command such as 'ooco-gym simulate … "
                        "out=DIR' wrote")
    if not (path / SUMMARY_FILE).is_file():
        raise UserError(f"folder '{folder}' is no run: {SUMMARY_FILE} is missing")
    summary, config = (read_mapping(path / name, f"run '{folder}': {name}", "; make it again")
                       for name in (SUMMARY_FILE, CONFIG_FILE))
    schema = re.fullmatch(r"ooco-gym/(\w+)/\d+", str(summary.get("schema")))
    if schema is None:
        raise UserError(f"run '{folder}': {SUMMARY_FILE} has schema '{summary.get('schema')}'; expected such as "
                        f"'{SCHEMA}'")
    return schema[1], summary, config


def read_record(folder: str | os.PathLike[str]) -> RunRecord:
    """Reads the run that `ooco-gym simulate` left in a folder.

    Raises:
        UserError: the folder holds no such run, or one of its files cannot be read.
    """
    command, summary, config = read_folder(folder)
    if command != "simulate":
        raise UserError(f"folder '{folder}' is a run of '{command}', not of 'simulate'")
    if summary["schema"] != SCHEMA:
        raise UserError(f"run '{folder}': {SUMMARY_FILE} has schema '{summary['schema']}', of another version, whose "
                        f"figures mean something else; expected '{SCHEMA}': simulate it again")
    try:
        requests = _columns(read_parquet(Path(folder, REQUESTS_FILE)))
    except Exception as error:  # pyarrow raises many kinds for damaged bytes; all mean that they are
        raise UserError(f"run '{folder}': {REQUESTS_FILE} is missing or cannot be read "
                        f"({' '.join(str(error).split())[:200]}); simulate it again") from error
    until_s = max(float(summary["window_s"]), np.nanmax(requests["finish_s"], initial=0.0))
    return RunRecord(_policy_words(config, summary), int(summary["seed"]), summary, requests, until_s, str(folder))


def grouped(records: Sequence[RunRecord]) -> dict[tuple[str, str], list[RunRecord]]:
    """Records by label and cluster, in the order in which these first come, seeds ascending; where conditions differ,
    a label has its folder's name besides.

    Raises:
        UserError: one has a seed twice.
    """
    groups: dict[tuple[str, str], list[RunRecord]] = {}
    apart = bool(differing_conditions(records))
    for record in records:
        label = f"{record.label} ({Path(record.folder).name})" if apart and record.folder else record.label
        groups.setdefault((label, short_name(record.scenario["cluster"])), []).append(record)
    for (label, _), members in groups.items():
        members.sort(key=lambda record: record.seed)
        for one, two in pairwise(members):
            if one.seed == two.seed:
                raise UserError(f"two runs of '{label}' have seed {one.seed} ('{one.folder}', '{two.folder}'); "
                                "expected one run for each policy and seed")
    return groups


def differing_conditions(records: Sequence[RunRecord]) -> list[str]:
    """Names of the scenario's fields, other than the seed, in which the records differ; a twin is no other cluster."""
    first = records[0].scenario
    found = {key for record in records[1:] for key in {*first, *record.scenario}
             if key != "seed" and _text(record.scenario.get(key)) != _text(first.get(key))}
    clusters = [Cluster.load(record.scenario["cluster"]) for record in records] if "cluster" in found else []
    if all(one.name == clusters[0].name or one.name == short_name(clusters[0].twin or "") for one in clusters):
        found.discard("cluster")
    return sorted(found)


def _columns(table: pa.Table) -> dict[str, np.ndarray]:
    columns = {name: table.column(name).to_numpy(zero_copy_only=False) for name in COLUMNS}
    if "online" in table.column_names:  # classes have names of their own
        return columns | {"online": table.column("online").to_numpy(zero_copy_only=False)}
    return columns | {"online": table.column("class").to_numpy(zero_copy_only=False) == "online"}


def _policy_words(config: Mapping[str, Any], summary: Mapping[str, Any]) -> str:
    """The policy as it was asked for: its name, and the parameters that are not its file's own."""
    policy = config.get("policy", summary["policy"])
    if not isinstance(policy, Mapping):
        return str(policy)
    name = str(policy.get("name", summary["policy"]))
    try:
        usual = as_mapping(str(policy.get("file", name)))
    except UserError:  # a file that is gone
        usual = {}
    return spelled(name, {key: value for key, value in parameters_in(policy).items() if usual.get(key) != value})


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str)
