"""`ooco-gym experiment replay run=DIR`: a run of a real engine, request by request, served again by the simulator.

`recorded` reads the folder, `again` simulates it under a timing form, `chip` finds or calibrates the chip, `page` draws
both side by side (docs/validity.md).
"""

from __future__ import annotations

from experiments.replay.study import main

__all__ = ["main"]
