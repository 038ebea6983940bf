"""Acting by looking ahead: actions are played out under base policies, and the best one is taken.

*Clairvoyant*: on the true future, arrivals and output lengths, which no policy knows; no bound, but what a policy that
improves on the bases once a decision could have had. *Sampled-future*: on futures drawn from the workload model
(`Futures`: other arrivals after now, other lengths of what is unfinished), the same ones for all actions. Play-outs run
in copies of the episode's state (`Clones`), laid down once, so that one costs no more than copying arrays.

Bases are the partner and plain heuristics (`BASES`). At a decision each legal action is played out with the base in
force playing on, and beside them each other base from here on; the base that won stays in force until the next look. So
the clairvoyant rollout, played out to the end of the episode, never gets less reward (by its own weights) than any of
its bases: going on as before, and going on as any base would, are among what it chooses from. Ties go to the partner.
(Parallel rollout: Chang, Givan and Chong, Discrete Event Dynamic Systems 14, 2004.)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from agents.evaluation.heuristics import SIZED, by_length, decline
from ooco_gym.compile import address_of
from ooco_gym.envs import buffers as b
from ooco_gym.envs import reward as r
from ooco_gym.envs.episodes import Episodes
from ooco_gym.envs.playing_out import (
    BASES,
    DECLINE,
    HOLD,
    LONGEST,
    PARTNER,
    SCORE,
    SHORTEST,
    change_lengths,
    play_out,
)
from ooco_gym.errors import UserError, unknown
from ooco_gym.policy.lengths import believed_outputs
from ooco_gym.sim import state as s
from ooco_gym.sim.build import REFERENCE_BATCH
from ooco_gym.sim.loop import RUN_SIGNATURE, flush_handle, run
from ooco_gym.simulation import Simulation

_TIE = 1e-9
RAREST = 0.002  # a drawn length is exceeded with this probability at least: the law's tail has no end
PRICED = ("ttft", "tpot", "burst")  # parts of the reward that the weight of costs multiplies


class Rollout:
    """Plays one environment (`ooco_gym.envs.base.DecisionEnv`) by looking ahead.

    Args:
        horizon_s: seconds of simulated time that are played out; None: to the end of the drain.
        weight: factor on the reward's parts that are SLO misses, in the rollout's own score.
        every: every k-th decision is looked at, from the first; the base that won the last look takes the others.
        progress: share of their worth credited for unfinished offline requests at a horizon within the window
            (service is paid at completion, so that a short horizon undervalues long requests).
        samples: futures that are drawn at a decision; 0: the true one.
        bases: rules that decide after an action, names of `BASES`; None: all that mean something here.

    Raises:
        UserError: no base of that name.
    """

    def __init__(self, env: Any, horizon_s: float | None = None, weight: float = 1.0, every: int = 1,
                 progress: float = 1.0, samples: int = 0, bases: Sequence[str] | None = None, seed: int = 0) -> None:
        if env.config.box:
            raise UserError("action=box: looking ahead plays single candidates out; leave action=discrete")
        self.env, self.horizon_s, self.every, self.progress = env, horizon_s, every, progress
        self.samples, self.seed = samples, seed
        self.weights = env.config.weights.copy()
        self.weights[[r.TERMS.index(term) for term in PRICED]] *= weight
        self.bases = bases_of(env, bases)
        self._window: Any = None
        self._clones: Clones | None = None
        self._futures: Futures | None = None
        self._asked, self._base, self._held = 0, PARTNER, np.zeros(0, np.int64)

    def act(self) -> Any:
        """The action at the open decision."""
        self._begin()
        self._asked += 1
        if (self._asked - 1) % self.every:
            best = self._own(self._base)
        else:
            actions, bases, values = self.values()
            winner = int(np.argmax(values > values.max() - _TIE))
            best, self._base, self._held = actions[winner], int(bases[winner]), actions[winner]
        return best if self.env.episodes.controls is not None else int(best[0])

    def values(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """What is played out, the partner first, and what it is worth.

        Returns:
            (actions int64[n, parts], base after each int64[n], rewards of the episode float64[n]).
        """
        self._begin()
        episodes = self.env.episodes
        simulation = episodes.simulations[0]
        actions, bases = self._options()
        now_ps, end_ps = int(simulation.state.clock.now_ps), simulation.end_ps
        until_ps = end_ps if self.horizon_s is None else min(end_ps, now_ps + round(self.horizon_s * s.PS_PER_S))
        assert self._clones is not None
        if self._futures is None:
            return actions, bases, self._clones.play(episodes, 0, simulation.state, actions, bases, until_ps, end_ps,
                                                     self.progress)
        total = np.zeros(len(actions))
        for state in self._futures.draw(simulation.state, self.samples):
            total += self._clones.play(episodes, 0, state, actions, bases, until_ps, end_ps, self.progress)
        return actions, bases, total / self.samples

    def _options(self) -> tuple[np.ndarray, np.ndarray]:
        """Every base from here on, and every action with the base in force after it."""
        listed = [(tuple(self._own(base).tolist()), base) for base in self.bases if base != HOLD]
        after = (PARTNER, HOLD) if HOLD in self.bases else (self._base,)
        listed += [(tuple(action.tolist()), base) for action in legal_actions(self.env, self._held) for base in after]
        unique = list(dict.fromkeys(listed))
        return np.array([action for action, _ in unique], np.int64), np.array([base for _, base in unique], np.int64)

    def _own(self, base: int) -> np.ndarray:
        """What a base does at the open decision: int64[parts]."""
        if base == HOLD:
            return self._held
        if base == PARTNER:
            return np.atleast_1d(np.asarray(self.env.partner_action(), np.int64))
        return np.array([decline(self.env) if base == DECLINE else by_length(self.env, base == LONGEST)], np.int64)

    def _begin(self) -> None:
        """Room for the copies, once an episode."""
        episodes = self.env.episodes
        simulation = episodes.simulations[0]
        if self._clones is not None and self._window is simulation:
            return
        self._window, self._asked, self._base, self._held = simulation, 0, PARTNER, np.zeros(0, np.int64)
        self._futures = Futures(episodes, self.seed, max(8, self.samples)) if self.samples else None
        template = simulation.state if self._futures is None else self._futures.state
        count = len(BASES) + 2 * max(episodes.buffers.mask.shape[1], 1)
        self._clones = Clones(episodes, template, count, self.weights)


def bases_of(env: Any, names: Sequence[str] | None) -> list[int]:
    """Bases by name, the partner first; None: all that mean something.

    Raises:
        UserError: no base of that name.
    """
    kinds = {decision.kind for decision in env.decisions}
    if names is not None:
        for name in names:
            if name not in BASES:
                raise unknown("base", name, BASES)
        return [PARTNER, *(base for base, name in enumerate(BASES) if name in names and base != PARTNER)]
    if kinds <= {s.COMPOSE, b.CLOCK, b.CONTROL}:
        return [PARTNER, HOLD]
    return [PARTNER, DECLINE] + [SHORTEST, LONGEST] * bool(kinds & set(SIZED))


def legal_actions(env: Any, held: np.ndarray) -> np.ndarray:
    """What is played out: the partner's action, then every other legal one; of controls, one turned at a time.

    Args:
        held: what the controls were last set to, from which they are turned; of size 0: the partner's.
    """
    controls, mask = env.episodes.controls, env.episodes.buffers.mask[0]
    if controls is None:
        legal = np.flatnonzero(mask)
        partner = [b.PARTNER_ACTION] * bool(mask[b.PARTNER_ACTION])
        return np.concatenate([partner, legal[legal != b.PARTNER_ACTION]])[:, None].astype(np.int64)
    held = held if held.size else controls.tuned
    moves = [controls.tuned, held]
    for part, count in enumerate(controls.counts):
        for level in range(int(count)):
            if level != held[part]:
                move = held.copy()
                move[part] = level
                moves.append(move)
    return np.array(moves, np.int64)


_OWN = (*b.ROWS, "handles", "weights")  # of the buffers: all else is the episodes' own


class Clones:
    """Room for play-outs of an episode of `episodes`, one an action, with weights of their own.

    Args:
        episodes: whose partner plays on.
        state: an episode of the configuration; its copies have its sizes.
        count: at most so many actions.
        weights: float64[parts], of the reward's parts.
    """

    def __init__(self, episodes: Episodes, state: s.State, count: int, weights: np.ndarray) -> None:
        self.count, self._bases = count, np.zeros((2, count), np.int64)
        shared = episodes.buffers
        rows = {name: np.zeros((count, *getattr(shared, name).shape[1:]), getattr(shared, name).dtype)
                for name in _OWN if name != "weights"}
        self.buffers = episodes.buffers._replace(**rows, weights=np.array(weights, float))
        self._changing = [name for name in s.State._fields if name not in s.SHARED and getattr(state, name).size]
        self._states = [s.copy_state(state) for _ in range(count)]
        self._handles = [s.handle_of(copy) for copy in self._states]
        self.buffers.handles[:] = [handle.address for handle in self._handles]
        self._handle, self._run = b.buffers_handle(self.buffers), address_of(run, RUN_SIGNATURE)
        self._pairs = [(name, [getattr(copy, name) for copy in self._states]) for name in self._changing]

    def play(self, episodes: Episodes, i: int, state: s.State, actions: np.ndarray, bases: np.ndarray, until_ps: int,
             end_ps: int, progress: float = 0.0) -> np.ndarray:
        """Plays each of `actions` out from where episode i stands. Returns their scores: float64[actions].

        Args:
            episodes: where the decision is open.
            i: which of them.
            state: its state, or another future of the same sizes as the copies.
            actions: int64[n, parts]; the first is the partner's.
            bases: int64[n], what decides after each (`ooco_gym.envs.playing_out.BASES`).
        """
        count = len(actions)
        for name, copies in self._pairs:
            source = getattr(state, name)
            for copy in copies[:count]:
                np.copyto(copy, source)
        for name in b.ROWS:
            getattr(self.buffers, name)[:count] = getattr(episodes.buffers, name)[i]
        self.buffers.actions[:count] = actions
        self._bases[0, :count] = bases
        play_out(self._handle.address, self._run, self._bases[:, :count].copy(), int(until_ps), int(end_ps), progress)
        return self.buffers.account[:count, SCORE].copy()


class Futures:
    """Draws what might come after the open decision of an episode (place 0), in place, in one state.

    Arrivals after now are those of other seeds of the same scenario, at the same time of day. Unfinished requests get
    an output length of their class from these traces, given that it exceeds what they have generated. Nothing of the
    true future is left in a drawn one.

    Args:
        traces: other seeds from which arrivals are drawn.

    Raises:
        UserError: the partner tells prefixes or blocks apart, whose books name the requests to come; or requests have
            deadlines.
    """

    def __init__(self, episodes: Episodes, seed: int, traces: int) -> None:
        simulation = episodes.simulations[0]
        assert simulation is not None
        true = simulation.state
        if true.order.size or true.hash_ids.size or true.blocks.size or true.pairs.size:
            raise UserError("a sampled-future rollout needs a partner without prefix caching and without an order by "
                            "prefix or length; take ooco, or samples=0")
        if true.due_ps.size:
            raise UserError("a sampled-future rollout cannot draw requests with deadlines (deadline_s of a class); "
                            "take samples=0, or leave the deadlines out")
        self._random = np.random.default_rng([seed, *(part & 0xFFFFFFFF for part in episodes.windows[0])])
        self._traces, said = zip(*(_requests(simulation, int(self._random.integers(2**31))) for _ in range(traces)),
                                 strict=True)
        longest = true.requests.size + max(trace.size for trace in self._traces) + 1
        requests = s.aligned_zeros(longest, s.REQUEST)
        self._predicted = dict(zip(map(id, self._traces), said, strict=True))
        self.state = s.copy_state(true)._replace(requests=requests, deadlines=np.zeros(longest, np.int32),
                                                 predicted=np.ones((longest if true.predicted.size else 0, 2)))
        self._handle = s.handle_of(self.state)
        every = np.concatenate(self._traces)
        self._lengths = [np.sort(every["output_tokens"][every["online"] == online]) for online in (0, 1)]

    def draw(self, true: s.State, count: int) -> Iterator[s.State]:
        """Yields `count` states, the same object each time, that go on differently from `true`."""
        for place in self._random.permutation(len(self._traces))[:count]:
            self._lay(true, self._traces[place])
            flush_handle(self._handle.address)
            self._draw_lengths()
            change_lengths(self._handle.address)
            yield self.state

    def _lay(self, true: s.State, trace: np.ndarray) -> None:
        """Copies what has been, and what comes in another trace."""
        state, now = self.state, true.clock.now_ps
        for name in s.State._fields:
            if name not in s.SHARED and name not in ("requests", "deadlines"):
                np.copyto(getattr(state, name), getattr(true, name))
        past = int(true.clock.next_arrival)
        come = trace[trace["arrival_ps"] > now]
        end, requests = past + come.size, state.requests
        requests[:past] = true.requests[:past]
        requests[past:end] = come
        requests[end:] = np.zeros((), s.REQUEST)
        if state.predicted.size:
            state.predicted[:past] = true.predicted[:past]
            state.predicted[past:end] = self._predicted[id(trace)][trace["arrival_ps"] > now]
        requests["arrival_ps"][end:] = s.NEVER
        swept = int(true.clock.next_deadline)
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
        state.gauges.open_online += counted[1] - counted[0]
        state.clock.next_arrival_ps = state.clock.next_deadline_ps = 0  # to be looked up anew
        state.config.seed = int(self._random.integers(2**62))

    def _draw_lengths(self) -> None:
        """Other output lengths for all that has arrived and is unfinished, and what their work is then worth."""
        state = self.state
        requests = state.requests[: int(state.clock.next_arrival)]
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
        if state.predicted.size:  # what is believed of each of them, rather than of its class
            drawn = believed_outputs(state.predicted[slots], made, np.maximum(RAREST, 1.0 - uniform))
        requests["output_tokens"][slots] = drawn
        prompt = requests["prompt_tokens"][slots].astype(np.float64)
        change = np.rint(drawn * self._share(prompt, drawn) - old * self._share(prompt, old)).astype(np.int64)
        requests["service_ps"][slots] += change
        offline = (requests["online"][slots] == 0) & (requests["status"][slots] > s.FUTURE)
        state.gauges.outstanding_ps += int(change[offline].sum())

    def _share(self, prompt: np.ndarray, output: np.ndarray) -> np.ndarray:
        """An output token's reference time, as in `sim.build`, in ps."""
        state = self.state
        strict = min(int(state.config.relaxed_count), state.instances.size - 1)
        lines = state.decode_lines[state.instances["table"][strict]]
        size = min(REFERENCE_BATCH, len(lines) - 1)
        base, slope, other_base, other_slope = lines[size]
        context = size * (prompt + 0.5 * output)
        return np.maximum(base + slope * context, other_base + other_slope * context) / size


def _requests(simulation: Simulation, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """The requests of another seed of a scenario before anything happens, and what is predicted of their lengths."""
    state = Simulation(simulation.scenario.with_(seed=seed), simulation.policy).state
    return state.requests, state.predicted
