"""What pictures of an episode are drawn from, kept only where a render mode asks for it.

At each decision the simulator's sums are sampled, and what was answered is noted.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ooco_gym.envs import buffers as b
from ooco_gym.envs import reward as r
from ooco_gym.envs.episodes import Episodes
from ooco_gym.errors import UserError
from ooco_gym.sim import state as s
from ooco_gym.sim.loop import look

WORK = ("online prefill", "offline prefill", "decode")
_SUMS = ("online_prefill_ps", "offline_prefill_ps", "decode_ps")
_IN_PROGRESS = (s.PREFILL_ONLINE, s.PREFILL_OFFLINE)  # of which the sums know at their end
PARTNERS, DECLINED, OWN = "partner", "decline", "own"  # what an action was


class Sample(NamedTuple):
    """What stood at a decision (or at the episode's beginning and end)."""

    time_ps: int
    work_ps: np.ndarray  # float64[WORK, instances], time spent so far
    transfers_ps: float  # the same, mean of the links; 0 where there are none
    kv_share: np.ndarray  # float64[instances], of its KV memory in use
    online_waiting: int
    offline_waiting: int
    ttft_misses: int
    tpot_misses: int
    violations: int
    arrived: int


class Answered(NamedTuple):
    """A decision and what was answered."""

    time_ps: int
    decision: str
    instance: int  # -1: of no instance
    action: Any  # an int, or a list of levels
    kind: str  # PARTNERS, DECLINED or OWN
    reward: float

    def line(self) -> str:
        """In words."""
        where = f" on {self.instance}" if self.instance >= 0 else ""
        return f"{self.decision}{where}: {self.action} ({self.kind}), reward {self.reward:+.3f}"


class Watcher:
    """Follows some episodes: which decision is open in each, and what was answered to it."""

    def __init__(self, episodes: Episodes) -> None:
        self.episodes = episodes
        self._open = [(0, "", -1)] * len(episodes.simulations)  # time, decision, instance

    def opened(self, i: int) -> None:
        """The episode in slot i has come to a decision."""
        simulation, asked = self.episodes.simulations[i], self.episodes.asked(i)
        assert simulation is not None
        instance = -1 if asked is None or asked.kind >= b.CLOCK else int(simulation.state.pending.instance)
        self._open[i] = (int(simulation.state.clock.now_ps), asked.name if asked is not None else "", instance)

    def answered(self, i: int) -> Answered:
        """The decision that was open in slot i, which `buffers.actions[i]` has answered; on to the next one."""
        buffers, controls = self.episodes.buffers, self.episodes.controls
        action: Any = buffers.actions[i].tolist()
        if self.episodes.config.box:
            kind = PARTNERS if action[0] == b.ILLEGAL else OWN
        elif controls is not None:
            kind = PARTNERS if action == controls.tuned.tolist() else OWN
        else:
            action = action[0]
            kind = {b.DECLINE_ACTION: DECLINED, b.PARTNER_ACTION: PARTNERS}.get(action, OWN)
        answered = Answered(*self._open[i], action, kind, float(buffers.account[i, r.REWARD]))
        Watcher.opened(self, i)
        return answered


class Recorder(Watcher):
    """Watches episodes and keeps their samples and answers, a list of each a slot."""

    def __init__(self, episodes: Episodes) -> None:
        super().__init__(episodes)
        self.samples: list[list[Sample]] = [[] for _ in episodes.simulations]
        self.answers: list[list[Answered]] = [[] for _ in episodes.simulations]

    def begin(self, i: int) -> None:
        """A new episode begins in slot i."""
        self.samples[i], self.answers[i] = [], []
        self._take(i)

    def opened(self, i: int) -> None:
        """It has come to its first decision."""
        self._take(i)
        super().opened(i)

    def took(self, i: int) -> None:
        """The open decision of slot i was answered with `buffers.actions[i]`, and the episode has gone on."""
        answered = self.answered(i)
        if answered.decision:
            self.answers[i].append(answered)
        self._take(i)

    def of(self, i: int) -> tuple[list[Sample], list[Answered]]:
        """What has been recorded in slot i.

        Raises:
            UserError: nothing yet.
        """
        if not self.samples[i]:
            raise UserError("call reset() first: there is no episode yet")
        return self.samples[i], self.answers[i]

    def copied(self, i: int) -> Any:
        """A copy of what has been recorded in slot i, for `put_back`."""
        return self.samples[i].copy(), self.answers[i].copy(), self._open[i]

    def put_back(self, i: int, copied: Any) -> None:
        """Goes on recording from a copy; from here on, where nothing had been recorded."""
        if copied is None or not copied[0]:
            self.begin(i)
            super().opened(i)
        else:
            self.samples[i], self.answers[i], self._open[i] = copied[0].copy(), copied[1].copy(), copied[2]

    def _take(self, i: int) -> None:
        simulation = self.episodes.simulations[i]
        assert simulation is not None
        state = look(simulation.state)  # steps that are not booked yet count
        totals, instances, now_ps = state.totals, state.instances, int(state.clock.now_ps)
        work = np.array([instances[name] for name in _SUMS], np.float64)
        for kind, activity in enumerate(_IN_PROGRESS):
            work[kind] += np.where(instances["activity"] == activity, now_ps - instances["start_ps"], 0)
        transfers = state.links["busy_ps"].mean() if state.links.size else 0.0
        self.samples[i].append(Sample(
            now_ps, work, float(transfers), 1.0 - instances["free_blocks"] / instances["total_blocks"],
            int(instances["online_waiting"].sum()), int(instances["offline_waiting"].sum()), int(totals.ttft_misses),
            int(totals.tpot_misses), int(totals.violations), int(totals.online_arrived)))


def clock_of(day_s: float) -> str:
    """A time of day as people read it, `17:05:30`."""
    second = int(day_s) % 86_400
    return f"{second // 3600:02d}:{second // 60 % 60:02d}:{second % 60:02d}"
