"""Lets pytest find the package `tests.reliability`, however it is started."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
