"""Peak factors: the online load that a cluster sustains alone (docs/protocol.md, comparing
policies; OOCO 5.2).

For each (workload, cluster, SLO) the online load is scaled once, by base P/D without offline work,
and every policy is measured at that load. `conf/peak_factors.yaml` has the presets' factors;
`ooco-gym capacity` finds others and keeps them, with the conditions of their search, in the user's
cache folder. Factors found under the protocol (its window, seeds and limits) serve every run, those
of a trial only the same trial.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from ooco_gym.documents import read_yaml, version_of
from ooco_gym.errors import UserError
from ooco_gym.files import atomic_write, cache_path
from ooco_gym.resources import conf_root, load_yaml, names

FILE_NAME = "peak_factors.yaml"
_STORING = threading.Lock()  # guards reading, changing and writing a file
PROTOCOL = "protocol"  # `conditions` of an entry found with the protocol's window, seeds and limits
SLO_KEYS = ("ttft_s", "tpot_s", "tpot_min_tokens")


class NoPeakFactor(UserError):
    """No load is given, and no peak factor is stored."""


def shipped_file() -> Path:
    """The package's file of the presets' factors."""
    return conf_root() / FILE_NAME


def stored_peak_factor(workload: Any, cluster: Any, slo: Mapping[str, Any] | str, tpot_from: str) -> float | None:
    """Returns the peak factor of a workload on a cluster, by label (only strings have one), under
    an SLO (a mapping with `SLO_KEYS`, or a preset's name) whose TPOT counts from `tpot_from`; None
    if none was found under the protocol.

    Raises:
        UserError: a file of factors cannot be read.
    """
    if not (isinstance(workload, str) and isinstance(cluster, str)):
        return None
    if isinstance(slo, str) and slo not in names("slo"):
        return None
    entry = stored_entry(key_of(workload, cluster, slo, tpot_from))
    return None if entry is None else float(entry["factor"])


def key_of(workload: str, cluster: str, slo: Mapping[str, Any] | str, tpot_from: str) -> dict[str, Any]:
    """Key of a peak factor: the identifying fields of its entry."""
    values = load_yaml("slo", slo) if isinstance(slo, str) else slo
    return {"workload": workload, "cluster": cluster, "tpot_from": tpot_from,
            **{field: float(values[field]) for field in SLO_KEYS}}


def label(group: str, value: Any) -> str:
    """Unique name of a workload or a cluster (`group`): a preset's own name, else with a digest. A
    path and the mapping in it have one label."""
    if not isinstance(value, Mapping):
        text = os.fspath(value)
        if not text.endswith((".yaml", ".yml")):
            stamps = file_stamps(text)
            return f"{text}@{digest(stamps)}" if stamps else text
        value = load_yaml(group, text)
    name = title_of(value)
    if name in names(group) and dict(value) == load_yaml(group, name):
        return name
    return f"{name}@{digest([dict(value), file_stamps(value)])}"


def title_of(value: Any) -> str:
    """Name of a workload or a cluster for titles: name, mix or path, or `custom`."""
    if isinstance(value, Mapping):
        return str(value.get("path") or value.get("name") or value.get("mix") or "custom")
    return os.fspath(value)


def digest(value: Any) -> str:
    """Digest of a JSON-able value, ten hexadecimal digits."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()[:10]


def file_stamps(value: Any) -> list[tuple[str, str]]:
    """Path and digest of every file that a description names.

    These include files named in YAML files, such as a cluster's chip and its tables, recursively.
    """
    found: dict[Path, str] = {}
    _stamp(value, [Path()], found)
    return [(str(path), version) for path, version in found.items()]


def _stamp(value: Any, folders: list[Path], found: dict[Path, str]) -> None:
    """Adds files that `value` names, relative to one of the folders, recursively."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        for item in value:
            _stamp(item, folders, found)
    elif isinstance(value, (str, os.PathLike)):
        text = os.fspath(value)
        for part in _paths_in(text):
            for folder in folders:
                _stamp_file(folder / part, found)


def _paths_in(text: str) -> list[str]:
    """Possible paths in a text: all of it, without parameters, and each part of a mix without weight and class."""
    sources = [part.rpartition("*")[2].strip() for part in text.split("+")]
    without_class = [source.rpartition("@")[0] for source in sources if "@" in source]
    return list(dict.fromkeys([text, text.partition(":")[0], *sources, *without_class]))


def _stamp_file(path: Path, found: dict[Path, str]) -> None:
    """Adds a file, if it exists, and the files that a YAML file names."""
    version = None if path in found else version_of(path)
    if version is not None:
        found[path] = version
        if path.suffix in (".yaml", ".yml"):
            _stamp(_named_in(path, version), [Path(), path.parent], found)


@lru_cache(maxsize=256)
def _named_in(path: Path, version: str) -> Any:
    """Content of a YAML file of this version; a parent named without a suffix is added as a file."""
    try:
        values = read_yaml(path)
    except UserError:
        return None  # a later reader reports the error
    if isinstance(values, dict) and isinstance(values.get("extends"), str):
        values["extends"] = [values["extends"], f"{values['extends']}.yaml"]
    return values


def stored_entry(key: Mapping[str, Any], conditions: str | None = None) -> dict[str, Any] | None:
    """The entry of a factor (`factor`, `floor`, `violation_rate`, `seeds` …) by its `key_of`, the
    package's file first. An entry with the digest `conditions` precedes one found under the
    protocol; None: only the latter."""
    own = cache_path(FILE_NAME)
    entries = read_entries(shipped_file())
    if own:
        entries += [entry for entry in read_entries(own) if entry.get("conditions") in (PROTOCOL, conditions)]
    found = [entry for entry in entries if not _differs(entry, key)]
    same = [entry for entry in found if conditions is not None and entry.get("conditions") == conditions]
    return next(iter(same + found), None)


def _differs(entry: Mapping[str, Any], key: Mapping[str, Any]) -> bool:
    """Whether an entry belongs to another key."""
    return any(entry.get(name) != value for name, value in key.items())


def read_entries(path: Path) -> list[dict[str, Any]]:
    """Reads a file of factors, cached until it changes; a missing file has none."""
    return [dict(entry) for entry in _entries(path, version_of(path))] if path.is_file() else []


@lru_cache(maxsize=8)
def _entries(path: Path, version: str | None) -> list[dict[str, Any]]:
    try:
        return [dict(entry) for entry in (read_yaml(path) or {}).get("factors") or []]
    except (AttributeError, TypeError, ValueError) as error:
        raise UserError(f"file of peak factors '{path}' must hold 'factors:', a list of mappings; "
                        "delete it and they are found again") from error


def store_entry(entry: Mapping[str, Any], path: Path, key: Mapping[str, Any]) -> None:
    """Writes an entry to a file of factors, replacing one with the same key; sorted."""
    head = ("# Factor on each workload's own rate that a cluster sustains without offline work (its peak factor), "
            "found by\n# `ooco-gym capacity workload=W cluster=C find_peak=true write_peak=true`. Not edited by "
            "hand.\n")
    with _STORING:
        others = [old for old in read_entries(path) if _differs(old, key)]
        entries = sorted([*others, dict(entry)], key=lambda item: tuple(str(item.get(name)) for name in key))
        with atomic_write(path) as temporary:
            temporary.write_text(head + yaml.safe_dump({"factors": entries}, sort_keys=False), encoding="utf-8")
