"""Takes orders as lines of JSON on stdin and answers each with one line on what was stdout.

`{"do": "tables", "file": …}` gives the clock its cost tables; `{"do": "play", "case": …, "settings": …, "out": …}`
schedules a case and writes what came of it; `play_sides` gives it to the block pools of a pair; `stop`. Files are
NumPy's .npz. What vLLM prints goes to stderr.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

import numpy as np

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")


def main() -> None:
    """Answers orders until told to stop, or until the other side is gone."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    oracle: Any = None
    for line in sys.stdin:
        order = json.loads(line)
        if order["do"] == "stop":
            break
        try:
            oracle = oracle or _Oracle()
            answer = getattr(oracle, order["do"])(order)
        except Exception as error:
            import traceback

            traceback.print_exc()
            answer = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


class _Oracle:
    def __init__(self) -> None:
        _mend_torch()
        from .play import Factory

        self._factory, self._clock = Factory(), None

    def tables(self, order: dict[str, Any]) -> dict[str, Any]:
        from .iterations import Clock
        from .play import version

        self._clock = Clock(_read(order["file"]))
        return {"vllm": version()}

    def play(self, order: dict[str, Any]) -> dict[str, Any]:
        from .play import play

        begun = time.perf_counter()
        scheduler = self._factory.scheduler(order["settings"])
        assert self._clock is not None, "tables come first"
        found = play(scheduler, self._clock, _read(order["case"]), order["settings"])
        np.savez(order["out"], **found)
        return {"steps": len(found["start_ps"]), "wall_s": time.perf_counter() - begun}

    def play_sides(self, order: dict[str, Any]) -> dict[str, Any]:
        from .sides import play_sides

        managers = [self._factory.scheduler(order["settings"]).kv_cache_manager for _ in range(2)]
        found = play_sides((managers[0], managers[1]), _read(order["case"]), order["settings"])
        np.savez(order["out"], **found)
        return {"requests": len(found["found_0"])}


def _mend_torch() -> None:
    """Puts back what PyTorch 2.13 has no more and vLLM 0.17 asks for when it is imported, and keeps the engine from
    asking for it in a child process, which would not have it."""
    import torch  # pyright: ignore[reportMissingImports]

    processor: Any = torch._C._cpu  # pyright: ignore
    if hasattr(processor, "_is_avx512_supported"):
        return
    processor._is_avx512_supported = lambda: False
    from vllm.model_executor.models import registry  # pyright: ignore[reportMissingImports]

    if hasattr(registry, "_run_in_subprocess"):
        registry._run_in_subprocess = lambda function: function()


def _read(path: str) -> dict[str, np.ndarray]:
    with np.load(path) as file:
        return {key: file[key] for key in file.files}


if __name__ == "__main__":
    main()
