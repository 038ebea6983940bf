"""`ooco-gym calibrate measure engine=NAME`: times of one's own serving engine, iteration by iteration.

The engine lives in a Python of its own. `interpreter` starts a driver there (`scripts/engine_driver`, which knows
nothing of ooco-gym), `design` says which batches it runs and which requests it serves; `run` puts them in order and
writes what was measured.
"""

from __future__ import annotations

from ooco_gym.calibrate.measure.run import main, measure

__all__ = ["main", "measure"]
