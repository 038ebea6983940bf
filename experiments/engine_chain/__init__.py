"""`ooco-gym experiment engine_chain`: measure an engine, fit it, simulate it, compare (docs/measuring.md).

The engine serves three loads in real time, and the simulator serves the same requests with what was fitted to designed
batches of the same engine. `fit` turns iterations into a formula, `chip` the formula into a chip for `timing=measured`,
`compare` simulates and sets the two side by side.
"""

from __future__ import annotations

from experiments.engine_chain.chain import main

__all__ = ["main"]
