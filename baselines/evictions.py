"""Answers to the eviction alone, for comparison: OOCO in everything else (its parameters too)."""

from dataclasses import replace

from baselines.ooco import policy as ooco
from ooco_gym.decisions import EVICT, hook


@hook(EVICT, settles=True)
def last_arrived(view):
    """BROS's least urgent: best-effort requests have no deadline, so the one that arrived last goes (`bros_parts`)."""
    best = 0
    for i in range(view.candidates.size):
        if view.candidates[i] > view.candidates[best]:  # slots are in the order of arrival
            best = i
    return best


least_urgent = replace(ooco, name="least_urgent", evict=last_arrived)
