"""`ooco-gym experiment oracle_vllm`: vLLM's real scheduler and ours on the same traces, step by step (docs/oracle.md).

`oracle` drives the real one in its own Python (`scripts/oracle_driver` runs there), `ours` the simulator's, both under
the simulator's cost tables; `compare` sets the two side by side, `loads` has the traces, `record` writes the real
scheduler's steps down for the everyday tests.
"""

from __future__ import annotations

from experiments.studies.oracle_vllm.study import main

__all__ = ["main"]
