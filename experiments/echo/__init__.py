"""`ooco-gym experiment echo`: Echo beside its paper's figures (arXiv 2504.03651, section 7; docs/baselines/echo.md).

`served` runs simulations and keeps their curves, `bench` sets the loads and compares on paired seeds, `study` puts the
parts together, `tables` and `page` show them.
"""

from __future__ import annotations

from experiments.echo.study import main

__all__ = ["main"]
