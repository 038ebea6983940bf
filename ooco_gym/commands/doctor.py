"""`ooco-gym doctor`: what this installation has, and what keeps it from working (configuration: `conf/doctor.yaml`).

Nothing is imported that is slow to load, nothing is sent, and nothing is written but a file that is removed at once.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from packaging.requirements import Requirement

from ooco_gym.calibrate.measure.interpreter import VARIABLE, find_python
from ooco_gym.errors import UserError
from ooco_gym.files import cache_folder
from ooco_gym.private import not_private
from ooco_gym.report import NONE, Column, Table
from ooco_gym.version import __version__
from ooco_gym.workload.catalogue import DATA_VARIABLE, data_folder

if TYPE_CHECKING:
    from omegaconf import DictConfig

OK, NOTE, PROBLEM = "ok", "note", "problem"
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")
UNSHOWN = ("all", "dev", "docs")  # extras that users need not have
LOW_SPACE_GB = 1.0  # of a file system that a cache is on: a training run with its recordings may need it


class Finding(NamedTuple):
    """One line: what was looked at, what there is, whether that is well, and what to do where it is not."""

    about: str
    found: str
    state: str = OK
    advice: str = ""


def main(cfg: DictConfig) -> dict[str, Any]:
    """Looks at the installation and shows what it finds.

    Args:
        cfg: keys as in `conf/doctor.yaml`.

    Returns:
        `findings`, each with `about`, `found`, `state` (ok, note or problem) and `advice`; and `problems`, how many.
    """
    findings = [*packages(), *machine(), *caches(), *data(), *services(), *engine()]
    columns = [Column("", "about", align="l"), Column("found", "found", align="l"), Column("", "state", align="l"),
               Column("what to do", "advice", align="l")]
    records = [one._asdict() for one in findings]
    Table.of(columns, records, "ooco-gym doctor").show(frame="simple", unbroken=1)
    problems = sum(one.state == PROBLEM for one in findings)
    print("no problem found" if problems == 0 else f"{problems} to mend: see 'what to do'")
    return {"findings": records, "problems": problems}


# --- Packages -------------------------------------------------------------------------------------------------------
def packages() -> Iterator[Finding]:
    """Our version, and each requirement of the core and of the extras against what is installed."""
    yield Finding("ooco-gym", __version__)
    extras = [name for name in metadata.metadata("ooco-gym").get_all("Provides-Extra") or () if name not in UNSHOWN]
    found: dict[str, dict[str, str | None]] = {}
    for requirement in map(Requirement, metadata.requires("ooco-gym") or ()):
        marker = requirement.marker
        wanted = [""] if marker is None else [name for name in ("", *extras) if marker.evaluate({"extra": name})]
        if requirement.name == "ooco-gym" or not wanted:
            continue
        version = _version(requirement.name)
        found.setdefault(wanted[0], {})[requirement.name] = version
        found[wanted[0]] |= dict.fromkeys(_lacking(requirement)) if version else {}
        if version and not requirement.specifier.contains(version, prereleases=True):
            advice = f"pip install '{requirement.name}{requirement.specifier}'"
            yield Finding(requirement.name, version, PROBLEM, advice)
    for extra, versions in found.items():
        about, name, where = ("packages", "ooco-gym", "") if not extra else (
            f"[{extra}]", f"ooco-gym[{extra}]", ", where you need it")
        there = ", ".join(f"{name} {version}" for name, version in sorted(versions.items()) if version)
        missing = sorted(name for name, version in versions.items() if not version)
        if not missing:
            yield Finding(about, there)
            continue
        yield Finding(about, f"{there or NONE}; without {', '.join(missing)}", NOTE if extra else PROBLEM,
                      f"pip install '{name}'{where}")


def _lacking(requirement: Requirement) -> list[str]:
    """Packages of a requirement's own extras that are not installed: `ray` alone is not `ray[rllib]`."""
    needed = map(Requirement, metadata.requires(requirement.name) or ())
    return sorted({one.name for one in needed for extra in requirement.extras
                   if one.marker and one.marker.evaluate({"extra": extra}) and not one.marker.evaluate({"extra": ""})
                   and _version(one.name) is None})


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


# --- The machine ----------------------------------------------------------------------------------------------------
def machine() -> Iterator[Finding]:
    """Python, cores, threads, memory."""
    yield Finding("Python", f"{platform.python_version()} ({platform.machine()}, {platform.system()})")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    yield Finding("cores", f"{cores} of {os.cpu_count()}")
    for name in THREADS:
        if value := os.environ.get(name):
            too_many = value.isdecimal() and int(value) > cores
            yield Finding(name, value, NOTE if too_many else OK, f"at most {cores} are of use" if too_many else "")
    if os.environ.get("NUMBA_DISABLE_JIT", "0") != "0":
        yield Finding("NUMBA_DISABLE_JIT", "set", PROBLEM, "unset it: the simulator runs only compiled")
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        yield Finding("memory", f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 1e9:.1f} GB")
    encoding = sys.getfilesystemencoding()
    if encoding.lower().replace("-", "") != "utf8":
        yield Finding("file names", encoding, NOTE, "names beyond ASCII may be refused: set LC_ALL=C.UTF-8")


# --- Caches and data ------------------------------------------------------------------------------------------------
def caches() -> Iterator[Finding]:
    """Where compiled code and kept simulations are, whether they can be written, and how large they are."""
    yield _folder("compiled code", _code_folder(), "*/ooco_gym-*/*.nbc")
    folder = cache_folder()
    why = not_private(folder)
    yield Finding("kept simulations", f"{_short(folder)} {why}", PROBLEM, "none are kept, nor used: set OOCO_GYM_CACHE "
                  "to a folder of your own") if why else _folder("kept simulations", folder, "*")


def _code_folder() -> Path:
    """Where numba keeps what it compiles: what is named, else beside the package, else the user's cache folder."""
    if named := os.environ.get("NUMBA_CACHE_DIR"):
        return Path(named)
    package = Path(__file__).resolve().parents[1]
    if os.access(package, os.W_OK):
        return package
    return Path(os.environ.get("XDG_CACHE_HOME") or cache_folder().parent) / "numba"


def _folder(about: str, folder: Path, pattern: str) -> Finding:
    here = folder
    while not here.exists() and here != here.parent:
        here = here.parent
    try:
        with tempfile.NamedTemporaryFile(dir=here):
            free_gb = shutil.disk_usage(here).free / 1e9
    except OSError as error:
        return Finding(about, f"{_short(folder)}: {error.strerror}", PROBLEM,
                       "NUMBA_CACHE_DIR or OOCO_GYM_CACHE names a folder that can be written; without one everything "
                       "is made anew at each start")
    found = f"{_short(folder)}: {_size(folder, pattern):.1f} MB"
    if free_gb < LOW_SPACE_GB:
        return Finding(about, found, NOTE, f"only {free_gb:.2f} GB are free there")
    return Finding(about, found)


def _short(path: Path) -> str:
    """A path as users write it."""
    home = os.environ.get("HOME", "")
    return f"~{str(path)[len(home):]}" if len(home) > 1 and path.is_relative_to(home) else str(path)


def _size(folder: Path, pattern: str) -> float:
    """Of the files below a folder whose path ends in a pattern, in MB; what goes meanwhile counts nothing."""
    total = 0
    for path in folder.rglob(pattern):
        try:
            total += path.lstat().st_size
        except OSError:
            continue
    return total / 1e6


def data() -> Iterator[Finding]:
    """Real traces, where a folder of them is named."""
    root, folder = os.environ.get(DATA_VARIABLE), data_folder()
    count = len([*folder.iterdir()]) if folder.is_dir() else 0
    if root and not Path(root).expanduser().is_dir():
        yield Finding(DATA_VARIABLE, f"{root}: no such folder", PROBLEM, "name one that has traces/, or unset it")
    else:
        advice = "" if count else "ooco-gym data list shows public ones"
        yield Finding("traces", f"{_short(folder)}: {count} files", OK, advice)


# --- Services and the engine ----------------------------------------------------------------------------------------
def services() -> Iterator[Finding]:
    """Weights & Biases and Ray, as far as can be told without a connection."""
    if _version("wandb"):
        mode = os.environ.get("WANDB_MODE", "online")
        netrc = Path(os.environ.get("NETRC", Path(os.environ.get("HOME", "/")) / ".netrc"))
        known = bool(os.environ.get("WANDB_API_KEY")) or (netrc.is_file() and "wandb" in netrc.read_text("utf-8",
                                                                                                         "replace"))
        if mode in ("offline", "disabled", "dryrun") or known:
            yield Finding("W&B", f"{'logged in' if known else 'no login'}, mode {mode}")
        else:
            yield Finding("W&B", "no login", OK, "logger=wandb stays offline; wandb login for online")
    if address := os.environ.get("RAY_ADDRESS"):
        yield Finding("Ray", f"cluster at {address}" if _version("ray") else "RAY_ADDRESS is set, ray is missing",
                      OK if _version("ray") else PROBLEM, "" if _version("ray") else "pip install 'ooco-gym[sweep]'")


def engine() -> Iterator[Finding]:
    """The serving engine's own Python, for `calibrate measure` and the oracle."""
    try:
        python = find_python(None)
    except UserError as error:
        if os.environ.get(VARIABLE):
            yield Finding("engine", str(error), PROBLEM, f"set {VARIABLE} to a Python that has vLLM, or unset it")
        else:
            yield Finding("engine", "none", OK, "make engine installs vLLM's CPU build, to measure or compare with")
        return
    ask = "from importlib.metadata import version; print(version('vllm'))"
    done = subprocess.run([str(python), "-c", ask], capture_output=True, text=True, timeout=60, check=False)
    if done.returncode:
        yield Finding("engine", f"{_short(python)}: no vLLM there", PROBLEM, f"set {VARIABLE} to a Python that has it")
    else:
        yield Finding("engine", f"vLLM {done.stdout.strip()} ({_short(python)})")
