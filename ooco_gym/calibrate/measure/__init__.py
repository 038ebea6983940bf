"""`ooco-gym calibrate measure engine=NAME`: measures the iterations of a serving engine.

The engine has its own Python. `interpreter` starts a driver there (`scripts/engine_driver`,
independent of ooco-gym). `design` defines batches and requests; `run` orders them and writes the
measurements.
"""

from __future__ import annotations

from ooco_gym.calibrate.measure.run import main, measure

__all__ = ["main", "measure"]
