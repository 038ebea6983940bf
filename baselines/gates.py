"""Plain answers to the gate alone, for comparison: OOCO in everything else (its parameters too)."""

from dataclasses import replace

from baselines.ooco import policy as ooco
from ooco_gym.decisions import GATE, hook
from ooco_gym.sim.costs import random_below
from ooco_gym.sim.state import HOLD

GATE_STREAM = 2


@hook(GATE, settles=True)
def start_first(view):
    """Always start the first waiting offline request."""
    return 0


@hook(GATE, settles=True)
def hold(view):
    """Never start an offline prefill."""
    return HOLD


@hook(GATE, settles=True)
def at_random(view):
    """Hold or start one of the candidates, all equally likely."""
    step = view.state.instances[view.instance].steps_begun
    choice = random_below(view.state, GATE_STREAM, view.instance, step, 0, view.candidates.size + 1)
    return choice if choice < view.candidates.size else HOLD


always = replace(ooco, name="always", gate=start_first)
never = replace(ooco, name="never", gate=hold)
random = replace(ooco, name="random", gate=at_random)
