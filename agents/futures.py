"""Futures as the workload model has them: other arrivals after now, other lengths of what is unfinished."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ooco_gym.envs.episodes import Episodes
from ooco_gym.envs.stepping import change_lengths
from ooco_gym.errors import UserError
from ooco_gym.sim import state as s
from ooco_gym.sim.build import REFERENCE_BATCH
from ooco_gym.sim.driver import Simulation
from ooco_gym.sim.look import bring_up


class Futures:
    """Draws what might come after the open decision of an episode (place 0), in place, in one state.

    Arrivals after now are those of other seeds of the same scenario, at the same time of day. Unfinished requests get
    an output length of their class from these traces, given that it exceeds what they have generated. Nothing of the
    true future is left in a drawn one.

    Args:
        episodes: the episode under way.
        seed: keys everything drawn.
        traces: other seeds from which arrivals are drawn.

    Raises:
        UserError: the partner tells prefixes or blocks apart, whose books name the requests to come.
    """

    def __init__(self, episodes: Episodes, seed: int, traces: int) -> None:
        simulation = episodes.simulations[0]
        assert simulation is not None
        true = simulation.state
        if true.order.size or true.hash_ids.size or true.blocks.size or true.pairs.size:
            raise UserError("an honest rollout needs a partner without prefix caching and without an order by prefix "
                            "or length; take ooco, or samples=0")
        self._random = np.random.default_rng([seed, *(part & 0xFFFFFFFF for part in episodes.windows[0])])
        self._traces = [_requests(simulation, int(self._random.integers(2**31))) for _ in range(traces)]
        longest = true.requests.size + max(trace.size for trace in self._traces) + 1
        requests = s.aligned_zeros(longest, s.REQUEST)
        self.state = s.copy_state(true)._replace(requests=requests, deadlines=np.zeros(longest, np.int32))
        self._handle = s.handle_of(self.state)
        every = np.concatenate(self._traces)
        self._lengths = [np.sort(every["output_tokens"][every["online"] == online]) for online in (0, 1)]

    def draw(self, true: s.State, count: int) -> Iterator[s.State]:
        """Yields `count` states, the same object each time, that go on differently from `true`."""
        for place in self._random.permutation(len(self._traces))[:count]:
            self._lay(true, self._traces[place])
            bring_up(self._handle.address)
            self._draw_lengths()
            change_lengths(self._handle.address)
            yield self.state

    def _lay(self, true: s.State, trace: np.ndarray) -> None:
        """Copies what has been, and what comes in another trace."""
        state, now = self.state, true.counters[s.NOW]
        for name in s.State._fields:
            if name not in s.SHARED and name not in ("requests", "deadlines"):
                np.copyto(getattr(state, name), getattr(true, name))
        past = int(true.counters[s.NEXT_ARRIVAL])
        come = trace[trace["arrival_ps"] > now]
        end, requests = past + come.size, state.requests
        requests[:past] = true.requests[:past]
        requests[past:end] = come
        requests[end:] = np.zeros((), s.REQUEST)
        requests["arrival_ps"][end:] = s.NEVER
        swept = int(true.counters[s.NEXT_DEADLINE])
        open_slots = true.deadlines[swept:]
        open_slots = open_slots[open_slots < past]
        new = past + np.flatnonzero(come["online"])
        slots = np.concatenate([open_slots, new])
        due = requests["arrival_ps"][slots] + requests["ttft_slo_ps"][slots]
        state.deadlines[:swept] = true.deadlines[:swept]
        state.deadlines[swept : swept + slots.size] = slots[np.argsort(due, kind="stable")]
        state.deadlines[swept + slots.size :] = end  # never due
        counted = [int(np.count_nonzero((rows["online"] == 1) & (rows["counted"] == 1)))
                   for rows in (true.requests[past:], come)]
        state.counters[s.OPEN_ONLINE] += counted[1] - counted[0]
        state.counters[[s.NEXT_ARRIVAL_PS, s.NEXT_DEADLINE_PS]] = 0  # to be looked up anew
        state.counters[s.SEED] = int(self._random.integers(2**62))

    def _draw_lengths(self) -> None:
        """Other output lengths for all that has arrived and is unfinished, and what their work is then worth."""
        state = self.state
        requests = state.requests[: int(state.counters[s.NEXT_ARRIVAL])]
        slots = np.flatnonzero(requests["status"] < s.FINISHED)
        made = requests["generated_tokens"][slots].astype(np.int64)
        old = requests["output_tokens"][slots].astype(np.float64)
        drawn, uniform = np.empty(slots.size, np.int64), self._random.random(slots.size)
        for online, lengths in enumerate(self._lengths):
            mine = requests["online"][slots] == online
            if not mine.any():
                continue
            first = np.searchsorted(lengths, made[mine], side="right")
            left = lengths.size - first
            place = np.minimum(first + (uniform[mine] * left).astype(np.int64), max(0, lengths.size - 1))
            longer = made[mine] + 1 + (uniform[mine] * made[mine]).astype(np.int64)  # longer than any that was seen
            drawn[mine] = np.where(left > 0, lengths[place] if lengths.size else 0, longer)
        requests["output_tokens"][slots] = drawn
        prompt = requests["prompt_tokens"][slots].astype(np.float64)
        change = np.rint(drawn * self._share(prompt, drawn) - old * self._share(prompt, old)).astype(np.int64)
        requests["service_ps"][slots] += change
        offline = (requests["online"][slots] == 0) & (requests["status"][slots] > s.FUTURE)
        state.counters[s.OUTSTANDING_PS] += int(change[offline].sum())

    def _share(self, prompt: np.ndarray, output: np.ndarray) -> np.ndarray:
        """An output token's reference time, as in `sim.build`, in ps."""
        state = self.state
        strict = min(int(state.counters[s.RELAXED_COUNT]), state.instances.size - 1)
        lines = state.decode_lines[state.instances["table"][strict]]
        size = min(REFERENCE_BATCH, len(lines) - 1)
        base, slope, other_base, other_slope = lines[size]
        context = size * (prompt + 0.5 * output)
        return np.maximum(base + slope * context, other_base + other_slope * context) / size


def _requests(simulation: Simulation, seed: int) -> np.ndarray:
    """The requests of another seed of a scenario, as they are before anything happens."""
    return Simulation(simulation.scenario.with_(seed=seed), simulation.policy).state.requests
