"""Peak factors: how much of a workload a cluster carries by itself (PROTOCOL, comparing policies; OOCO 5.2).

For each (workload, cluster, SLO) the online load is scaled once, by base P/D with no offline work, and every policy is
then measured at that load. The presets' factors are shipped in `conf/peak_factors.yaml`; `ooco-gym capacity` finds
others and keeps them in the user's cache folder.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from ooco_gym.errors import UserError
from ooco_gym.files import atomic_write
from ooco_gym.resources import conf_root, load_yaml, names

FILE_NAME = "peak_factors.yaml"
_STORING = threading.Lock()  # a file is read, changed and written
SLO_KEYS = ("ttft_s", "tpot_s", "tpot_min_tokens")


def cache_folder() -> Path:
    """The user's folder for what can be computed again: `$OOCO_GYM_CACHE`, or `ooco-gym` in the usual cache folder."""
    own = os.environ.get("OOCO_GYM_CACHE")
    if own:
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ooco-gym"


def shipped_file() -> Path:
    """The file of the presets' factors, part of the package."""
    return conf_root() / FILE_NAME


def stored_peak_factor(workload: Any, cluster: Any, slo: Mapping[str, Any] | str, tpot_from: str) -> float | None:
    """Looks up the peak factor of a workload on a cluster under an SLO.

    Args:
        workload: its name; anything else has no stored factor.
        cluster: its name; anything else has no stored factor.
        slo: mapping with `ttft_s`, `tpot_s`, `tpot_min_tokens`, or the name of a preset in `conf/slo`.
        tpot_from: which TPOT violates, `first_token` or `first_decode`.

    Returns:
        The factor that multiplies the workload's own rate, or None where none has been found yet.

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
    """What a factor belongs to, as the fields of its entry."""
    values = load_yaml("slo", slo) if isinstance(slo, str) else slo
    return {"workload": workload, "cluster": cluster, "tpot_from": tpot_from,
            **{field: float(values[field]) for field in SLO_KEYS}}


def stored_entry(key: Mapping[str, Any]) -> dict[str, Any] | None:
    """The whole entry of a factor (`factor`, `floor`, `violation_rate`, `seeds` …); the shipped file goes first."""
    for path in (shipped_file(), cache_folder() / FILE_NAME):
        for entry in read_entries(path):
            if all(entry.get(name) == value for name, value in key.items()):
                return entry
    return None


def read_entries(path: Path) -> list[dict[str, Any]]:
    """Reads a file of factors; a file that is not there holds none."""
    if not path.is_file():
        return []
    try:
        entries = (yaml.safe_load(path.read_text(encoding="utf-8")) or {}).get("factors") or []
        return [dict(entry) for entry in entries]
    except (yaml.YAMLError, AttributeError, TypeError, ValueError) as error:
        raise UserError(f"file of peak factors '{path}' must hold 'factors:', a list of mappings; "
                        "delete it and they are found again") from error


def store_entry(entry: Mapping[str, Any], path: Path, key: Mapping[str, Any]) -> None:
    """Writes an entry to a file of factors, in the place of the one with the same key, sorted."""
    with _STORING:
        _store(entry, path, key)


def _store(entry: Mapping[str, Any], path: Path, key: Mapping[str, Any]) -> None:
    others = [old for old in read_entries(path) if any(old.get(name) != value for name, value in key.items())]
    entries = sorted([*others, dict(entry)], key=lambda item: tuple(str(item.get(name)) for name in key))
    head = ("# How much of each workload's own rate a cluster carries by itself (PROTOCOL: peak factor), as found by\n"
            "# `ooco-gym capacity workload=W cluster=C find_peak=true write_peak=true`. Not edited by hand.\n")
    with atomic_write(path) as temporary:
        temporary.write_text(head + yaml.safe_dump({"factors": entries}, sort_keys=False), encoding="utf-8")
