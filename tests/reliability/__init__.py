"""What is promised where things go wrong, tried at random: fuzz, kills, damaged files, odd machines
(docs/outputs.md).

`python -m tests.reliability.fuzz`, `.kills`, `.corruption` and `.surroundings` are commands; a small part of each is
among the tests.
"""

import sys
from pathlib import Path

# The fuzz plays episodes as the simulator's and the environments' tests do, with their helpers.
for folder in ("sim", "envs"):
    place = str(Path(__file__).parents[1] / folder)
    if place not in sys.path:
        sys.path.append(place)
