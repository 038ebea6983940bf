"""Peak factors: how much of a workload a cluster carries by itself (docs/protocol.md, comparing policies; OOCO 5.2).

For each (workload, cluster, SLO) the online load is scaled once, by base P/D with no offline work, and every policy is
then measured at that load. The presets' factors are shipped in `conf/peak_factors.yaml`; `ooco-gym capacity` finds
others and keeps them in the user's cache folder, with the conditions under which they were found: those found as the
protocol says (its window, seeds and figures) serve every run, those of a trial only the same trial.
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
_STORING = threading.Lock()  # a file is read, changed and written
PROTOCOL = "protocol"  # the conditions of an entry found with the protocol's own window, seeds and figures
SLO_KEYS = ("ttft_s", "tpot_s", "tpot_min_tokens")


class NoPeakFactor(UserError):
    """No load is known: none was given, and no peak factor is stored."""


def shipped_file() -> Path:
    """The file of the presets' factors, part of the package."""
    return conf_root() / FILE_NAME


def stored_peak_factor(workload: Any, cluster: Any, slo: Mapping[str, Any] | str, tpot_from: str) -> float | None:
    """The peak factor of a workload on a cluster, by their labels (anything but a string has none), under an SLO (a
    mapping with `SLO_KEYS`, or the name of a preset) whose TPOT counts from `tpot_from`; None where none has been
    found under the protocol.

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
    """Key of a peak factor: the fields of its entry that tell it from others."""
    values = load_yaml("slo", slo) if isinstance(slo, str) else slo
    return {"workload": workload, "cluster": cluster, "tpot_from": tpot_from,
            **{field: float(values[field]) for field in SLO_KEYS}}


def label(group: str, value: Any) -> str:
    """A name that tells a workload or a cluster (`group`) from all others: its own where it is as shipped, else with a
    digest. A path and the mapping that it holds have one label."""
    if not isinstance(value, Mapping):
        text = os.fspath(value)
        if not text.endswith((".yaml", ".yml")):
            stamps = file_stamps(text)
            return f"{text}@{digest(stamps)}" if stamps else text
        value = load_yaml(group, text)
    name = short_name(value)
    if name in names(group) and dict(value) == load_yaml(group, name):
        return name
    return f"{name}@{digest([dict(value), file_stamps(value)])}"


def short_name(value: Any) -> str:
    """Name of a workload or a cluster for titles: its name, mix or path; `custom` for a mapping without one."""
    if isinstance(value, Mapping):
        return str(value.get("path") or value.get("name") or value.get("mix") or "custom")
    return os.fspath(value)


def digest(value: Any) -> str:
    """Ten hexadecimal digits that tell JSON-able values apart."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()[:10]


def file_stamps(value: Any) -> list[tuple[str, str]]:
    """Path and digest of every file that a description names: with the file the answer changes.

    Files that a YAML file names, such as a cluster's chip and its tables, are among them, and so on.
    """
    found: dict[Path, str] = {}
    _stamp(value, [Path()], found)
    return [(str(path), version) for path, version in found.items()]


def _stamp(value: Any, folders: list[Path], found: dict[Path, str]) -> None:
    """Adds the files that `value` names, relative to one of the folders, and those that they name."""
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
    """Possible paths in a text: all of it, and each part of a mix without its weight and its class."""
    sources = [part.rpartition("*")[2].strip() for part in text.split("+")]
    without_class = [source.rpartition("@")[0] for source in sources if "@" in source]
    return list(dict.fromkeys([text, *sources, *without_class]))


def _stamp_file(path: Path, found: dict[Path, str]) -> None:
    """Adds a file, where it is one, and the files that a YAML file names."""
    version = None if path in found else version_of(path)
    if version is not None:
        found[path] = version
        if path.suffix in (".yaml", ".yml"):
            _stamp(_named_in(path, version), [Path(), path.parent], found)


@lru_cache(maxsize=256)
def _named_in(path: Path, version: str) -> Any:
    """Content of a YAML file of this version; a parent that it names without a suffix stands there as a file."""
    try:
        values = read_yaml(path)
    except UserError:
        return None  # whatever reads the file for its content says what is wrong with it
    if isinstance(values, dict) and isinstance(values.get("extends"), str):
        values["extends"] = [values["extends"], f"{values['extends']}.yaml"]
    return values


def stored_entry(key: Mapping[str, Any], conditions: str | None = None) -> dict[str, Any] | None:
    """The whole entry of a factor (`factor`, `floor`, `violation_rate`, `seeds` …) by its `key_of`, the shipped file
    first. One found under the `conditions` of this digest goes before one found as the protocol says; None: only the
    latter will do."""
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
    """Reads a file of factors, again only when it has changed; a file that is not there holds none."""
    return [dict(entry) for entry in _entries(path, version_of(path))] if path.is_file() else []


@lru_cache(maxsize=8)
def _entries(path: Path, version: str | None) -> list[dict[str, Any]]:
    try:
        return [dict(entry) for entry in (read_yaml(path) or {}).get("factors") or []]
    except (AttributeError, TypeError, ValueError) as error:
        raise UserError(f"file of peak factors '{path}' must hold 'factors:', a list of mappings; "
                        "delete it and they are found again") from error


def store_entry(entry: Mapping[str, Any], path: Path, key: Mapping[str, Any]) -> None:
    """Writes an entry to a file of factors, in the place of the one with the same key, sorted."""
    head = ("# How much of each workload's own rate a cluster carries by itself (its peak factor), as found by\n"
            "# `ooco-gym capacity workload=W cluster=C find_peak=true write_peak=true`. Not edited by hand.\n")
    with _STORING:
        others = [old for old in read_entries(path) if _differs(old, key)]
        entries = sorted([*others, dict(entry)], key=lambda item: tuple(str(item.get(name)) for name in key))
        with atomic_write(path) as temporary:
            temporary.write_text(head + yaml.safe_dump({"factors": entries}, sort_keys=False), encoding="utf-8")
