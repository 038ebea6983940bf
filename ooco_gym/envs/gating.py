"""`ooco_gym/Gating-v0`: when does a relaxed instance start an offline prefill, and which?"""

from __future__ import annotations

from dataclasses import replace
from operator import index as whole
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from ooco_gym.compile import address_of
from ooco_gym.decisions import addresses, ask_outside, call_rule
from ooco_gym.envs import features, stepping
from ooco_gym.envs.config import EpisodeConfig, episode_config
from ooco_gym.errors import UserError
from ooco_gym.policy import get_policy, list_policies
from ooco_gym.policy.bundle import HOOKS, Policy
from ooco_gym.sim import state as s
from ooco_gym.sim.driver import Simulation
from ooco_gym.sim.loop import RUN_SIGNATURE, run

GATE = HOOKS.index("gate")
GATE_WINDOW = 64  # waiting requests from which the candidates are chosen
HOLD_ACTION = 0


class GatingEnv(gym.Env):
    """The gate of OOCO's relaxed pool as a decision of one's own; a partner policy takes all other decisions.

    ## Description
    An online service and offline work share a cluster of latency-relaxed and latency-strict instances (OOCO, arXiv
    2511.21862). Whenever a relaxed instance has no online request to prefill, and offline requests wait for a prefill
    that fits its KV memory, it may go on decoding the offline requests that are resident, or start a prefill. Prefills
    make larger decode batches and feed the strict instances, but an online arrival interrupts them, and what was
    computed is lost; residents may lose their memory to online prefills later.

    ## Action Space
    `Discrete(K + 1)`: 0 holds (decode what is resident; asked again after the next decode step, or after
    `gate_poll_s` where nothing is resident); `1 + k` starts the prefill of candidate k, filled up with waiting
    requests in queue order to the partner's token budget. An illegal action holds.

    ## Observation Space
    `Dict`: `cluster` float32 (C,), `candidates` float32 (K, F), `action_mask` int8 (K + 1,). The tables of features,
    units and bounds are below. Candidate 0 is the head of the queue among the waiting requests that fit (what every
    published gate starts); the others are length quantiles of the 64 first ones, shortest first.

    ## Rewards
    The sum of named parts, each in `info["reward/<part>"]`, with weights from `conf/reward`: `service` (reference
    GPU-seconds of the offline requests completed), `waiting` (reference GPU-seconds of offline work in the system times
    seconds, negative), `ttft` and `tpot` (online requests that missed that SLO, negative, charged when the deadline
    passes or the miss becomes certain), `waste` (instance time to be spent again, negative). `info["cost"]` counts the
    online requests that missed an SLO for the first time.

    ## Starting State
    `reset(seed=s, options={"window": w})` plays window w of seed s: a part of the day, its arrivals and lengths, after
    a warm-up under the partner. Without options the window is drawn from the seed.

    ## Episode End
    Truncated after `window_s`; the load then goes on under the partner until every online request of the window has
    finished or missed its SLO, and the misses found there are in the last reward. Never terminated.

    ## Information
    `action_mask` (int8), `elapsed_s` (simulated time since the last decision), `cost`, `reward/<part>`; at the end
    `summary`, the protocol's figures of the episode.

    ## Arguments
    `scenario` (name in `conf/env`, YAML path or mapping of `Scenario` fields), `partner` (policy), `window_s`,
    `warmup_s`, `candidates` (K), `reward` (name in `conf/reward` or mapping of weights).

    ## Version History
    * v0: first version.
    """

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["ansi"], "render_fps": 4}

    def __init__(self, scenario: Any = None, partner: str | None = None, window_s: float | None = None,
                 warmup_s: float | None = None, candidates: int | None = None, reward: Any = None,
                 render_mode: str | None = None) -> None:
        if render_mode not in (None, "ansi"):
            raise UserError(f"render_mode='{render_mode}' must be ansi or left out")
        self.render_mode = render_mode
        self.config: EpisodeConfig = episode_config(scenario, partner, window_s, warmup_s, candidates, reward)
        size = self.config.candidates
        self.action_space = spaces.Discrete(size + 1)
        low, high = features.bounds(features.CLUSTER)
        each_low, each_high = features.bounds(features.CANDIDATES)
        self.observation_space = spaces.Dict({
            "cluster": spaces.Box(low, high, dtype=np.float32),
            "candidates": spaces.Box(np.tile(each_low, (size, 1)), np.tile(each_high, (size, 1)), dtype=np.float32),
            "action_mask": spaces.MultiBinary(size + 1),
        })
        self._partner = _asked(get_policy(self.config.partner))
        self._run_address = address_of(run, RUN_SIGNATURE)
        self._chosen = np.full(size, -1, np.int32)
        self._rules: dict[str, Policy] = {}
        self._simulation: Simulation | None = None

    # --- Gymnasium -------------------------------------------------------------------------------------------------
    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None
              ) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Starts a window; see the class."""
        super().reset(seed=seed)
        self._seed = seed if seed is not None else int(self.np_random.integers(2**31))
        number = (options or {}).get("window")
        self._window = int(number) if number is not None else int(self.np_random.integers(1_000))
        scenario = self.config.window(self._seed, self._window)
        self._simulation = simulation = Simulation(scenario, self._partner)
        simulation.advance(simulation.window_s[0])
        self._gate_rules = simulation._hooks.copy()
        self._gate_rules[GATE] = addresses([ask_outside])[0]
        self._state = simulation.state
        self._until_ps = round(simulation.window_s[1] * s.PS_PER_S)
        self._day_s = float(scenario.start_s or 0.0) - simulation.window_s[0]
        self._account = stepping.new_account()
        self._totals = np.zeros(stepping.ACCOUNT)
        self._open = True
        self._advance(s.ASK)  # opens the books at the first decision
        self._totals[:] = 0.0
        return self._observation(), {"action_mask": self._mask.copy(), "elapsed_s": 0.0}

    def step(self, action: int) -> tuple[dict[str, np.ndarray], float, bool, bool, dict[str, Any]]:
        """Answers the decision and runs on to the next one; see the class.

        Raises:
            UserError: the action is no whole number, or the episode is over.
        """
        try:
            choice = whole(action)
        except TypeError:
            raise UserError(f"step({action!r}): an action is a whole number of {self.action_space} (0 holds, 1 to "
                            f"{self.config.candidates} start a candidate)") from None
        legal = 0 < choice <= self.config.candidates and self._mask[choice]
        self._advance(int(self._chosen[choice - 1]) if legal else s.HOLD)
        account = self._account.tolist()
        info = {"action_mask": self._mask.copy(), "elapsed_s": account[stepping.ELAPSED],
                "cost": account[stepping.COST], "reward/service": account[stepping.SERVICE],
                "reward/waiting": account[stepping.WAITING_COST], "reward/ttft": account[stepping.TTFT_COST],
                "reward/tpot": account[stepping.TPOT_COST], "reward/waste": account[stepping.WASTE_COST]}
        if not self._open:
            info["summary"] = self.summary()
        return self._observation(), account[stepping.REWARD], False, not self._open, info

    def action_masks(self) -> np.ndarray:
        """Legality of each action, bool (K + 1,), as sb3-contrib asks for it."""
        return self._mask.astype(bool)

    def render(self) -> str | None:
        """One line of text on the instances (mode `ansi`)."""
        if self.render_mode is None or self._simulation is None:
            return None
        parts = [f"t={self._simulation.now_s:9.2f} s"]
        for instance in self._state.instances:
            free = instance["free_blocks"] / instance["total_blocks"]
            parts.append(f"{s.ROLE_NAMES[instance['role']]}: {s.ACTIVITY_NAMES[instance['activity']]}, "
                         f"{instance['urgent_members']} online, {instance['offline_members']} offline, "
                         f"{instance['offline_waiting']} waiting, {free:.0%} KV free")
        return " | ".join(parts) + "\n"

    # --- For agents and evaluation ---------------------------------------------------------------------------------
    def partner_action(self) -> int:
        """What the partner policy's own gate would do now."""
        return self.rule_action(self.config.partner)

    def rule_action(self, name: str) -> int:
        """What another policy's gate would do now: the action index.

        Raises:
            UserError: no policy of that name.
        """
        if not self._open or self._mask[1:].sum() == 0:
            return HOLD_ACTION
        if name not in self._rules:
            self._rules[name] = get_policy(name)
        policy, state = self._rules[name], self._state
        own, state.params[:] = state.params.copy(), policy.vector()
        answer = call_rule(state, policy.hooks()[GATE], int(state.counters[s.PENDING_INSTANCE]), -1,
                           int(state.counters[s.PENDING_COUNT]))
        state.params[:] = own
        return self._action_of(answer)

    @property
    def rules(self) -> list[str]:
        """Names that `rule_action` knows."""
        return list_policies()

    @staticmethod
    def feature_tables() -> dict[str, list[dict[str, Any]]]:
        """Name, unit, scale, bounds and meaning of every feature, by part of the observation."""
        return {"cluster": [f._asdict() for f in features.CLUSTER],
                "candidates": [f._asdict() for f in features.CANDIDATES]}

    def summary(self) -> dict[str, float]:
        """The protocol's figures of the episode so far."""
        counters, window_s = self._state.counters, self.config.window_s
        arrived = max(1, int(counters[s.ONLINE_ARRIVED]))
        totals = self._totals.tolist()
        return {
            "reward_total": totals[stepping.REWARD], "online_arrived": float(counters[s.ONLINE_ARRIVED]),
            "online_violated": float(counters[s.VIOLATIONS]), "violation_rate": float(counters[s.VIOLATIONS] / arrived),
            "offline_finished": float(counters[s.OFFLINE_FINISHED]),
            "offline_reference_gpu_s_per_s": float(counters[s.SERVICE_PS] / s.PS_PER_S / window_s),
            "output_tokens_per_s": float(counters[s.OFFLINE_OUTPUT_TOKENS] / window_s),
            "wasted_tokens_per_s": float(counters[s.WASTED_TOKENS] / window_s),
            "wasted_gpu_s_per_s": float(counters[s.WASTED_PS] / s.PS_PER_S / window_s),
            "evictions": float(counters[s.EVICTIONS]), "interruptions": float(counters[s.INTERRUPTIONS]),
            "reward/service": totals[stepping.SERVICE], "reward/waiting": totals[stepping.WAITING_COST],
            "reward/ttft": totals[stepping.TTFT_COST], "reward/tpot": totals[stepping.TPOT_COST],
            "reward/waste": totals[stepping.WASTE_COST],
        }

    # --- Inside ----------------------------------------------------------------------------------------------------
    def _advance(self, answer: int) -> None:
        """Runs to the next decision; at the end of the window the partner plays what is left of it."""
        size = self.config.candidates
        self._cluster = np.zeros(features.CLUSTER_SIZE, np.float32)
        self._candidates = np.zeros((size, features.CANDIDATE_SIZE), np.float32)
        self._mask = np.zeros(size + 1, np.int8)
        if not self._open:
            raise UserError("the episode is over: call reset()")
        why = self._step(answer, self._gate_rules, self._until_ps)
        if why != s.ASKED:
            self._open = False
            self._finish()
        self._totals += self._account

    def _step(self, answer: int, rules: np.ndarray, until_ps: int) -> int:
        return stepping.step_gate(self._state, self._run_address, rules, until_ps, answer, self._day_s,
                                  self.config.weights, self._account, self._cluster, self._candidates, self._mask,
                                  self._chosen)

    def _finish(self) -> None:
        """Drains under the partner and adds what it finds out to the last step's account."""
        simulation = self._simulation
        assert simulation is not None
        last = self._account.copy()
        self._step(s.ASK, simulation._hooks, simulation.end_ps)
        parts = slice(stepping.SERVICE, stepping.REWARD + 1)
        self._account[stepping.WAITING_COST] = 0.0  # the window is over: nothing waits on the agent's account
        self._account[stepping.REWARD] = self._account[stepping.SERVICE:stepping.REWARD].sum()
        self._account[parts] += last[parts]
        self._account[stepping.COST] += last[stepping.COST]
        self._account[stepping.ELAPSED] = last[stepping.ELAPSED]
        self._mask[0] = 1

    def _observation(self) -> dict[str, np.ndarray]:
        return {"cluster": self._cluster, "candidates": self._candidates, "action_mask": self._mask}

    def _action_of(self, answer: int) -> int:
        """The action for a rule's answer: its candidate, or the offered one closest in length."""
        if answer < 0:
            return HOLD_ACTION
        offered = [int(i) for i in self._chosen if i >= 0]
        if answer in offered:
            return 1 + offered.index(answer)
        requests, picks = self._state.requests, self._state.picks
        size = requests["prompt_tokens"] + requests["generated_tokens"]
        return 1 + int(np.argmin([abs(int(size[picks[i]]) - int(size[picks[answer]])) for i in offered]))


def _asked(partner: Policy) -> Policy:
    """The partner with a gate that sees enough of the queue to choose from."""
    if any(param.name == "gate_window" for param in partner.params):
        return replace(partner, values={**partner.values, "gate_window": GATE_WINDOW})
    raise UserError(f"partner '{partner.name}' has no gate: its class-blind queue leaves nothing to decide")
