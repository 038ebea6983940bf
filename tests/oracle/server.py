"""A real vLLM server for tests: the model, the process, its settings and its counters."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import time
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from ooco_gym.errors import UserError
from ooco_gym.files import atomic_write, write_json

MODEL = "model"
SCHEDULER = "ooco_gym.runtime.vllm.OocoScheduler"
_REPOSITORY = Path(__file__).resolve().parents[2]
_START_S = 300.0
_METRIC = re.compile(r"^(vllm:[a-z_]+)(?:\{[^}]*\})? ([0-9.e+-]+)$", re.MULTILINE)


def write_tokenizer(folder: Path, vocab: int) -> None:
    """Writes the least tokenizer with which the API server starts: one word for each token id."""
    words = {f"t{i}": i for i in range(vocab)}
    write_json(folder / "tokenizer.json", {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None,
        "pre_tokenizer": {"type": "Whitespace"}, "post_processor": None, "decoder": None,
        "model": {"type": "WordLevel", "vocab": words, "unk_token": "t0"}})
    write_json(folder / "tokenizer_config.json", {
        "tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "t2", "bos_token": "t1", "unk_token": "t0",
        "model_max_length": 1_000_000})


class Server:
    """`vllm serve` with our scheduler class; use it as a context manager.

    Args:
        python: the engine's interpreter.
        model: folder or name.
        settings: vLLM's `EngineArgs`, by their names.
        environment: variables for it.
        folder: where its log, its metrics and the scheduler's settings are.
        priority: ask the system to prefer it to other work, if it may (root).
    """

    def __init__(self, python: Path, model: str, settings: Mapping[str, Any], environment: Mapping[str, Any],
                 folder: Path, priority: bool = False) -> None:
        self.folder, self._python, self._priority = folder, python, priority
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._port = int(free.getsockname()[1])
        self.url = f"http://127.0.0.1:{self._port}"
        self._file = folder / "scheduler.yaml"
        metrics = folder / "metrics"
        shutil.rmtree(metrics, ignore_errors=True)  # files of a server that is gone would count on
        metrics.mkdir(parents=True)
        self._environment = {
            **os.environ, **{key: str(value) for key, value in environment.items() if value is not None},
            "OOCO_GYM_VLLM": str(self._file.absolute()), "PROMETHEUS_MULTIPROC_DIR": str(metrics.absolute()),
            "PYTHONPATH": os.pathsep.join(one for one in (str(_REPOSITORY), os.environ.get("PYTHONPATH", "")) if one)}
        self._command = [str(python), "-m", "vllm.entrypoints.openai.api_server", "--model", model, "--port",
                         str(self._port), "--served-model-name", MODEL, "--scheduler-cls", SCHEDULER,
                         "--scheduling-policy", "priority", "--disable-uvicorn-access-log", *_flags(settings)]

    def use(self, scheduler: Mapping[str, Any]) -> None:
        """Sets the scheduler; a server that runs takes it within a second."""
        with atomic_write(self._file) as temporary:
            temporary.write_text(yaml.safe_dump(dict(scheduler)), encoding="utf-8")

    def __enter__(self) -> Server:
        log = self.folder / "server.log"
        with log.open("w", encoding="utf-8") as file:
            self._process = subprocess.Popen(self._command, stdout=file, stderr=file, env=self._environment,
                                             start_new_session=True,
                                             preexec_fn=_prefer if self._priority else None)  # noqa: PLW1509
        try:
            self._wait_for_answers(log)
        except BaseException:  # in a session of its own it does not hear Ctrl-C
            self.__exit__()
            raise
        return self

    def _wait_for_answers(self, log: Path) -> None:
        began = time.monotonic()
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() - began > _START_S:
                said = log.read_text(encoding="utf-8", errors="replace").splitlines()
                words = [line for line in said if "rror" in line] or ["it said nothing"]
                raise UserError(f"the server did not start ({words[-1][-300:]}); its log is '{log}'")
            time.sleep(0.5)

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        try:
            self._process.wait(timeout=30.0)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, 9)

    def metrics(self) -> dict[str, float]:
        """Sums of its Prometheus metrics by name."""
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=30) as response:
            text = response.read().decode()
        found: dict[str, float] = {}
        for name, value in _METRIC.findall(text):
            found[name] = found.get(name, 0.0) + float(value)
        return found

    def wait_idle(self, timeout_s: float = 600.0) -> None:
        """Until nothing runs or waits.

        Raises:
            UserError: something still does after so many seconds.
        """
        until = time.monotonic() + timeout_s
        while True:
            now = self.metrics()
            runs, waits = (int(now.get(f"vllm:num_requests_{name}", 0)) for name in ("running", "waiting"))
            if runs + waits == 0:
                return
            if time.monotonic() > until:
                raise UserError(f"the server is not idle after {timeout_s:g} s: {runs} requests run and {waits} wait; "
                                f"its log is '{self.folder / 'server.log'}'")
            time.sleep(0.3)

    def play(self, cell: Mapping[str, Any]) -> dict[str, Any]:
        """Has the client send a cell; returns its answer."""
        scripts = str(Path(__file__).parent / "scripts")
        done = subprocess.run([str(self._python), "-m", "live_client"], input=json.dumps(cell) + "\n", text=True,
                              capture_output=True, check=False, env={**os.environ, "PYTHONPATH": scripts},
                              preexec_fn=_prefer if self._priority else None)
        if done.returncode:
            raise UserError(f"the client failed: {' '.join(done.stderr.split())[-300:]}")
        return json.loads(done.stdout)

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=5) as response:
                return response.status == 200
        except OSError:
            return False


def _prefer() -> None:
    """Asks for a higher priority, which the system may refuse."""
    try:
        os.nice(-20)
        group = Path("/proc/self/autogroup")
        if group.exists():
            group.write_text("-20", encoding="ascii")
    except OSError:
        pass


def _flags(settings: Mapping[str, Any]) -> list[str]:
    """EngineArgs as flags of the command line."""
    flags = []
    for name, value in settings.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            flags.append(f"--{flag}" if value else f"--no-{flag}")
        elif value is not None:
            flags += [f"--{flag}", str(value)]
    return flags
