"""Following an episode of one mixed instance, iteration by iteration."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ooco_gym.sim import state as s
from tests.sim.harness import Episode


def steps(episode: Episode) -> Iterator[np.void]:
    """Plays on event by event; yields the instance at the beginning of each of its iterations."""
    spec, begun = episode.state.instances[0], -1
    while (at_ps := episode.next_event_ps()) < s.NEVER:
        if episode.advance(at_ps) == s.DONE:
            return
        if spec["activity"] == s.MIXING and spec["steps_begun"] != begun:
            begun = int(spec["steps_begun"])
            yield spec


def given_tokens(episode: Episode) -> dict[int, int]:
    """The iteration's new tokens by slot, of the requests that have any, in the order of the batch."""
    slots = episode.state.members[s.BATCH, 0, : episode.state.instances[0]["running"]]
    tokens = episode.state.requests["num_scheduled_tokens"]
    return {int(slot): int(tokens[slot]) for slot in slots if tokens[slot]}


def iterations(episode: Episode) -> Iterator[dict[int, int]]:
    """Plays on event by event; yields each iteration's tokens by slot, as it begins."""
    for _ in steps(episode):
        yield given_tokens(episode)
