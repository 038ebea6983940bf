"""`ooco-gym experiment oracle_vllm`: vLLM's real scheduler and ours on the same traces, step by step (docs/oracle.md).

`schedulers` drives the real one in its own Python (`scripts/oracle_driver` runs there) and the simulator's, both under
the simulator's cost tables; `compare` sets the two side by side, `cases` has the traces, `fuzz` random requests and
settings, `record` writes the real scheduler's steps down for the everyday tests, `overlay` lays the sources of a
release over an installed one.
"""

from __future__ import annotations

from experiments.studies.oracle_vllm.study import main

__all__ = ["main"]
