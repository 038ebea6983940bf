"""The real scheduler, in the engine's own Python, over a pipe."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from experiments.oracle_vllm.case import Case
from ooco_gym.calibrate.measure.interpreter import Driver

_SCRIPTS = Path(__file__).parent / "scripts"
_ENVIRONMENT = {"OMP_NUM_THREADS": 1, "VLLM_CPU_KVCACHE_SPACE": 1, "VLLM_LOGGING_LEVEL": "ERROR",
                "HF_HUB_OFFLINE": 1, "VLLM_ENABLE_V1_MULTIPROCESSING": 0}


class Oracle:
    """vLLM's scheduler under given cost tables; use it as a context manager. One process serves any number of cases.

    Args:
        python: interpreter that has vLLM (`ooco_gym.calibrate.measure.interpreter.find_python`).
        tables: cost tables (`ours.tables_of`).

    Raises:
        UserError: on entering, and by `play`: the engine fails; the message says how.
    """

    def __init__(self, python: Path, tables: dict[str, Any]) -> None:
        self._python, self._tables = python, tables
        self.version = ""

    def __enter__(self) -> Oracle:
        self._files = tempfile.TemporaryDirectory()
        self._folder = Path(self._files.name)
        self._driver = Driver(self._python, _ENVIRONMENT, self._folder / "oracle.log", package="oracle_driver",
                              folder=_SCRIPTS)
        self.use(self._tables)
        return self

    def __exit__(self, *raised: Any) -> None:
        self._driver.__exit__(*raised)
        self._files.cleanup()

    def use(self, tables: dict[str, Any]) -> None:
        """Takes other cost tables."""
        path = self._folder / "tables.npz"
        np.savez(path, **tables)
        self.version = self._driver.ask({"do": "tables", "file": str(path)})["vllm"]

    def play(self, case: Case) -> dict[str, np.ndarray]:
        """Schedules a case to its end.

        Returns:
            As `oracle_driver.play`: the steps, and of each request `first_token_ps`, `finish_ps`, `cached_tokens`,
            `preemptions`.
        """
        given, made = self._folder / "case.npz", self._folder / "played.npz"
        columns: dict[str, Any] = case.columns()
        np.savez(given, **columns)
        self._driver.ask({"do": "play", "case": str(given), "settings": case.settings(), "out": str(made)})
        with np.load(made) as file:
            return {key: file[key] for key in file.files}
