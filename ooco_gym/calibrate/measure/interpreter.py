"""The engine's own Python: how it is found, and the driver that runs in it."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ooco_gym.errors import UserError
from ooco_gym.files import write_json
from ooco_gym.schema import whole

VARIABLE = "OOCO_GYM_ENGINE_PYTHON"
_SCRIPTS = Path(__file__).parent / "scripts"
_PLACE = Path(".venv-engine") / "bin" / "python"
SIZES = ("layers", "hidden", "heads", "kv_heads", "head_dim", "intermediate", "vocab")


def find_python(given: str | None) -> Path:
    """Returns the interpreter with the engine: `given`, `$OOCO_GYM_ENGINE_PYTHON`, or the one of
    `make engine`.

    Raises:
        UserError: there is none.
    """
    setup = "`make engine` in a checkout of ooco-gym makes one, engine.python=PATH names another"
    chosen = given or os.environ.get(VARIABLE)
    if chosen:
        path = Path(chosen).expanduser().absolute()
        if not os.access(path, os.X_OK) or path.is_dir():
            source = "engine.python" if given else VARIABLE
            raise UserError(f"{source}={chosen} is no Python interpreter that can be run; {setup}")
        return path
    for folder in (Path.cwd(), Path(__file__).resolve().parents[3]):
        if os.access(folder / _PLACE, os.X_OK):
            return folder / _PLACE
    raise UserError(f"no Python interpreter with an engine was found (engine.python and ${VARIABLE} are not set, and "
                    f"there is no '{_PLACE}'); {setup}")


class Driver:
    """A process of `python` that drives an engine; a context manager.

    The `__main__` of `package` in `folder` answers each line of JSON with one line. `environment`
    is added to this process's variables; `log` receives the engine's output.
    """

    def __init__(self, python: Path, environment: Mapping[str, Any], log: Path, *, package: str = "engine_driver",
                 folder: Path = _SCRIPTS) -> None:
        self._log = log
        values = {key: str(value) for key, value in environment.items() if value is not None}
        paths = [str(folder), os.environ.get("PYTHONPATH", "")]
        values["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
        with log.open("w", encoding="utf-8") as file:
            self._process = subprocess.Popen(
                [str(python), "-m", package], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=file,
                text=True, env={**os.environ, **values}, start_new_session=True)

    def __enter__(self) -> Driver:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:                    # a session of its own gets no Ctrl-C
            self._process.kill()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()
        try:
            self._process.wait(timeout=30.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def ask(self, order: dict[str, Any]) -> dict[str, Any]:
        """Sends an order and returns its answer.

        Raises:
            UserError: the engine failed or is gone; the message ends with its last output.
        """
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(order) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        answer = json.loads(line) if line else {"error": self._last_words()}
        if "error" in answer:  # the folder of a failed run is removed, so the log is copied
            with tempfile.NamedTemporaryFile(prefix="ooco-gym-engine-", suffix=".log", delete=False) as copy:
                copy.write(self._log.read_bytes())
            raise UserError(f"the engine failed at '{order['do']}': {answer['error']}; what it printed is in "
                            f"'{copy.name}'")
        return answer

    def _last_words(self) -> str:
        lines = self._log.read_text(encoding="utf-8", errors="replace").split("\n")
        return f"the process ended ({next((line for line in reversed(lines) if line.strip()), 'it printed nothing')})"


def write_random_model(folder: Path, sizes: dict[str, Any], longest: int) -> Path:
    """Writes the configuration of a Qwen2 of these sizes, without weights, to `folder`; returns
    `folder`.

    Raises:
        UserError: a size is not a positive integer.
    """
    for key in SIZES:
        whole(f"engine.random_model.{key}", sizes.get(key), 1)
    write_json(folder / "config.json", {
        "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_act": "silu",
        "num_hidden_layers": sizes["layers"], "hidden_size": sizes["hidden"], "head_dim": sizes["head_dim"],
        "num_attention_heads": sizes["heads"], "num_key_value_heads": sizes["kv_heads"],
        "intermediate_size": sizes["intermediate"], "vocab_size": sizes["vocab"],
        "max_position_embeddings": longest, "tie_word_embeddings": False, "use_sliding_window": False,
        "max_window_layers": sizes["layers"], "initializer_range": 0.02, "rms_norm_eps": 1e-6, "rope_theta": 1e6,
        "attention_dropout": 0.0, "use_cache": True, "bos_token_id": 1, "eos_token_id": 2, "torch_dtype": "float32"})
    return folder
