"""Lets the tests of timing share `perf_chips`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
