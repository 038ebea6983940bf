"""Lets these tests use the small episodes of the simulator's tests."""

import sys
from pathlib import Path

for folder in (Path(__file__).parent.parent / "sim", Path(__file__).parent):
    sys.path.insert(0, str(folder))
