"""`python -m ooco_gym.vllm`, run in the server's Python with its settings (docs/vllm.md).

Compiles the rule, so that the server's first start is fast, and calls it once.
"""

from __future__ import annotations

import sys
import time
from dataclasses import replace

from ooco_gym.compile import notice
from ooco_gym.errors import UserError
from ooco_gym.runtime.rules import Engine, Line, Request
from ooco_gym.vllm.deciding import Decider
from ooco_gym.vllm.settings import read_settings


def main() -> int:
    """Compiles what the environment's settings need and prints the time; returns 1 on failure."""
    began = time.monotonic()
    try:
        decider = Decider(replace(read_settings()[0], metrics_port=None, shadow=False))
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    rule, waiting = decider.settings.rule, [Request(f"r{i}", i < 2, (i, 0.0), 0.0, 2.0, 0.05, 100) for i in range(4)]
    engine = Engine(1.0, [], Line(waiting[:2]), Line(waiting[2:]), 1000, 1000, 16, 64, 2048, 0.05, (2, 200, 2, 200))
    if decider.decide(lambda: engine, lambda name: True) is None and decider.rule is not None:
        print(f"error: rule '{rule}' fails: {', '.join(decider.watch.counts)}", file=sys.stderr)
        return 1
    print(f"rule '{rule}': compiled {notice.compiled()} functions in {time.monotonic() - began:.0f} s; later starts "
          "reuse them" if notice.compiled() else f"rule '{rule}': everything is already compiled")
    return 0


if __name__ == "__main__":
    sys.exit(main())
