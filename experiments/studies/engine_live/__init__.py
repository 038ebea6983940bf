"""`ooco-gym experiment engine_live`: schedulers in a real vLLM server, beside what the simulator said of them.

Real HTTP, streaming, one server for all schedulers, which are switched while it runs; requests of one trace for each
load; a chip measured on that very engine (docs/sim_to_real.md).
"""

from __future__ import annotations

from experiments.studies.engine_live.study import main

__all__ = ["main"]
