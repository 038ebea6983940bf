"""Reads orders as lines of JSON from stdin and answers each with one line on the original stdout.

Orders are `{"do": "start", "adapter": …, "settings": …}`, then any number of `cases` and `serve`,
and `stop`. The engine's own output goes to stderr.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import sys
import time
from typing import Any

from .loop import run_cases, serve


def main() -> None:
    """Answers orders until `stop` or the end of the input."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    engine = None
    for line in sys.stdin:
        order = json.loads(line)
        if order["do"] == "stop":
            break
        try:
            if order["do"] == "start":
                engine = _adapter(order["adapter"]).start(order["settings"])
                answer = engine.describe()
            else:
                answer = _obey(engine, order)
        except Exception as error:
            import traceback

            traceback.print_exc()
            answer = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def _obey(engine: Any, order: dict[str, Any]) -> dict[str, Any]:
    begun, busy = time.monotonic(), time.process_time()
    answer = run_cases(engine, order["cases"]) if order["do"] == "cases" else serve(engine, order["requests"])
    return {**answer, "machine": {"load": os.getloadavg()[0], "wall_s": time.monotonic() - begun,
                                  "processor_s": time.process_time() - busy}}


def _adapter(name: str) -> Any:
    """Returns an engine's module: one of this package by name, or a file."""
    if not name.endswith(".py"):
        return importlib.import_module(f".{name}_engine", __package__)
    spec = importlib.util.spec_from_file_location("engine_adapter", name)
    if spec is None or spec.loader is None:
        raise FileNotFoundError(name)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module             # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    main()
