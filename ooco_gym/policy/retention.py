"""What a rule for `retain` may know of the request whose blocks nothing reads any more."""

import numpy as np

from ooco_gym.compile import inlined
from ooco_gym.sim.retention import FRESH, HINT, KNOWN, LONGEST_US, TURN
from ooco_gym.sim.state import ASK

FIRST_TO_GO = -LONGEST_US  # an answer below all others


@inlined
def microseconds(seconds):
    """A rule's answer for a time; never ASK (-1), which would leave the answer to the loop's caller."""
    answer = np.int64(round(1e6 * seconds))
    return answer - (answer == ASK)


@inlined
def turn(view):
    """Its turn: one more than the number of earlier prompts that are a prefix of its prompt."""
    return view.state.retained[KNOWN * view.request + TURN]


@inlined
def new_tokens(view):
    """Tokens of its prompt that no earlier prompt has."""
    return view.state.retained[KNOWN * view.request + FRESH]


@inlined
def hint(view):
    """What its client says: 1, the session ends with it; 0, it goes on; -1, nothing (the rule has no parameter
    `hint_error`)."""
    return view.state.retained[KNOWN * view.request + HINT]


@inlined
def client(view):
    """Its client's number, or -1."""
    state = view.state
    if state.client.size == 0 or state.client[view.request] >= state.ended.shape[0] - 2:
        return np.int64(-1)
    return np.int64(state.client[view.request] // 2)


@inlined
def pressure(view):
    """Share of its instance's blocks that requests read, 0 to 1."""
    spec = view.state.instances[view.instance]
    return 1.0 - spec.free_blocks / max(np.int64(1), np.int64(spec.total_blocks))
