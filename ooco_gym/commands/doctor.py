"""`ooco-gym doctor`: what this installation has, and what keeps it from working (configuration: `conf/doctor.yaml`).

Nothing is imported that is slow to load, nothing is sent, and nothing is written but a file that is removed at once.
"""

from __future__ import annotations

import os
import platform
import subprocess
import tempfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from packaging.requirements import Requirement

from ooco_gym.calibrate.measure.interpreter import VARIABLE, find_python
from ooco_gym.errors import UserError
from ooco_gym.files import cache_folder
from ooco_gym.jobs import cores
from ooco_gym.private import not_private
from ooco_gym.report import NONE, Table
from ooco_gym.version import __version__
from ooco_gym.workload.catalogue import DATA_VARIABLE, data_folder

if TYPE_CHECKING:
    from omegaconf import DictConfig

OK, NOTE, PROBLEM = "ok", "note", "problem"
Finding = tuple[str, str, str, str]  # what was looked at, what there is, whether that is well, and what to do
UNSHOWN = ("all", "dev", "docs")  # extras that users need not have


def main(cfg: DictConfig) -> dict[str, Any]:
    """Looks at the installation; returns `findings`, each with `about`, `found`, `state` (ok, note or problem) and
    `advice`, and `problems`, how many."""
    findings = [*_packages(), *_settings(), *_caches()]
    Table("ooco-gym doctor", ("", "found", "", "what to do"), findings, align="l").show(unbroken=1)
    problems = sum(state == PROBLEM for _, _, state, _ in findings)
    print("no problem found" if problems == 0 else f"{problems} to mend: see 'what to do'")
    names = ("about", "found", "state", "advice")
    return {"findings": [dict(zip(names, one, strict=True)) for one in findings], "problems": problems}


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _packages() -> Iterator[Finding]:
    """Our version, and each requirement of the core and of the extras against what is installed."""
    yield "ooco-gym", f"{__version__}, Python {platform.python_version()}, {cores()} cores", OK, ""
    extras = ["", *(name for name in metadata.metadata("ooco-gym").get_all("Provides-Extra") or ()
                    if name not in UNSHOWN)]
    found: dict[str, dict[str, str | None]] = {}
    for needed in map(Requirement, metadata.requires("ooco-gym") or ()):
        marker = needed.marker
        wanted = next((name for name in extras if marker is None or marker.evaluate({"extra": name})), None)
        if needed.name == "ooco-gym" or wanted is None:
            continue
        version = found.setdefault(wanted, {})[needed.name] = _version(needed.name)
        if version and not needed.specifier.contains(version, prereleases=True):
            yield needed.name, version, PROBLEM, f"pip install '{needed.name}{needed.specifier}'"
    for extra, versions in found.items():
        there = ", ".join(f"{name} {version}" for name, version in sorted(versions.items()) if version) or NONE
        about, state, name = (f"[{extra}]", NOTE, f"'ooco-gym[{extra}]', where you need it") if extra else (
            "packages", PROBLEM, "'ooco-gym'")
        if missing := ", ".join(sorted(name for name, version in versions.items() if not version)):
            yield about, f"{there}; without {missing}", state, f"pip install {name}"
        else:
            yield about, there, OK, ""


def _settings() -> Iterator[Finding]:
    """Whether compilation is on, the serving engine's own Python, and where real traces are."""
    if os.environ.get("NUMBA_DISABLE_JIT", "0") != "0":
        yield "NUMBA_DISABLE_JIT", "set", PROBLEM, "unset it: the simulator runs only compiled"
    advice = f"set {VARIABLE} to a Python that has vLLM, or unset it"
    try:
        python = find_python(None)
        ask = "from importlib.metadata import version; print(version('vllm'))"
        done = subprocess.run([str(python), "-c", ask], capture_output=True, text=True, timeout=60, check=False)
        yield ("engine", f"{python}: no vLLM there", PROBLEM, advice) if done.returncode else (
            "engine", f"vLLM {done.stdout.strip()} ({python})", OK, "")
    except UserError as error:
        yield ("engine", str(error), PROBLEM, advice) if VARIABLE in os.environ else (
            "engine", "none", OK, "make engine installs vLLM's CPU build, to measure or compare with")
    root, folder = os.environ.get(DATA_VARIABLE), data_folder()
    if root and not Path(root).expanduser().is_dir():
        yield DATA_VARIABLE, f"{root}: no such folder", PROBLEM, "name one that has traces/, or unset it"
    else:
        count = len([*folder.iterdir()]) if folder.is_dir() else 0
        yield "traces", f"{folder}: {count} files", OK, "" if count else "ooco-gym data list shows public ones"


def _caches() -> Iterator[Finding]:
    """Whether the folders of compiled code and of kept simulations can be written."""
    package, kept = Path(__file__).resolve().parents[1], cache_folder()
    usual = package if os.access(package, os.W_OK) else Path(os.environ.get("XDG_CACHE_HOME") or kept.parent) / "numba"
    for about, folder, why in (("compiled code", Path(os.environ.get("NUMBA_CACHE_DIR") or usual), ""),
                               ("kept simulations", kept, not_private(kept))):
        try:
            tempfile.TemporaryFile(dir=next(path for path in (folder, *folder.parents) if path.exists())).close()
        except OSError as error:
            why = f"cannot be written: {error.strerror}"
        yield (about, f"{folder} {why}", PROBLEM, "NUMBA_CACHE_DIR or OOCO_GYM_CACHE names a folder of your own; "
               "without one everything is made anew at each start") if why else (about, str(folder), OK, "")
