"""`ooco-gym experiment hygen`: HyGen beside its paper's figures (arXiv 2501.14808, section 5; docs/baselines/hygen.md).

`bench` runs and profiles policies on one bench, `latency` is Figures 3 and 4 and what the paper leaves open, `sharing`
is Figure 6 and the fairness ratio, `study` puts them together.
"""

from __future__ import annotations

from experiments.hygen.study import main

__all__ = ["main"]
