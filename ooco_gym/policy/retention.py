"""What a rule for `retain` may know of the request whose blocks nothing reads any more."""

import numpy as np

from ooco_gym.compile import inlined
from ooco_gym.sim.retention import FRESH, KNOWN, LONGEST_US, TURN

FIRST_TO_GO = -LONGEST_US  # an answer below all others


@inlined
def turn(view):
    """Its turn: one more than the number of earlier prompts that are a prefix of its prompt."""
    return view.state.retained[KNOWN * view.request + TURN]


@inlined
def new_tokens(view):
    """Tokens of its prompt that no earlier prompt has."""
    return view.state.retained[KNOWN * view.request + FRESH]


@inlined
def pressure(view):
    """Share of its instance's blocks that requests read, 0 to 1."""
    spec = view.state.instances[view.instance]
    return 1.0 - spec.free_blocks / max(np.int64(1), np.int64(spec.total_blocks))
