"""Routers of online requests over mixed instances: published rules, and a learned score on top of
one.

Iterations are filled as by `deadline`, and offline requests go where `deadline` routes them, so
policies of this kind differ only in the instance of an online request. A router's observations are
up to `lag_s` old (`ooco_gym/policy/router_view.py`). `rule` names a score; the least wins, and
among equals the first:

- `requests`, join the shortest queue (Winston 1977; the default of engines): (n + 1), with n the
  online requests that run or wait there; waiting ones count `waiting_weight` times (four times in
  vLLM's data-parallel balancer). With `speed_share` 1 it is the shortest expected delay for unequal
  servers.
- `power_of_two` (Mitzenmacher 2001): the same among `choices` instances drawn at random for the
  request.
- `latency`, least predicted latency (llm-d's and AIBrix's latency-aware routers): predicted time to
  the first token (rest of the iteration, prompts ahead, the request's own uncached prompt), and of
  `decode_tokens` decode steps with it.
- `lmetric` (LMetric, arXiv 2603.15202): new prefill tokens, times batch size. The tokens are the
  request's own uncached ones, and `queue_weight` times those ahead of it; the batch counts the
  request itself.
- `sticky`, prefix affinity (the cache-aware rule of SGLang's router): the instance that caches the
  longest prefix of the request, if that is `cache_threshold` of its prompt and the loads n are in
  balance (the largest is at most `balance_abs` above the least, or at most `balance_rel` times it);
  else as `requests`.
- `none`: all scores are one, and only learned weights choose.

All but `latency` and `none` are multiplied by the instance's seconds per prompt token, over the mean of all,
to the power `speed_share`. Requests sent since the last observation count `sent_weight`. `drain` is
the share of the time since then in which an instance is predicted to have computed the prompts
ahead. With `lag_s` 0, `waiting_weight` 1 and `speed_share` 0, `requests` is `deadline`, request by
request.

*Learned* (ours): the score is multiplied by exp(z), with z the weights times the features of
`router_view.COLUMNS`. They compare an instance with the mean of all (logarithms of ratios, differences of
shares), so that the same weights serve any number of instances of any speed. A few are products
with the observation's age, the prompt's length and the load. Without weights z is 0, and the choice
is exactly the rule's. As products of powers the scores include `requests`, `latency`, LMetric and
mixtures of them. The model is NVIDIA's learned router, a logit of such features found by CMA-ES
over whole episodes.

Parameters besides those of `deadline`: conf/policy/router.yaml. Results of the rules and the
learned score: docs/learned.md.
"""

import math

import numpy as np

from baselines.deadline import PARAMS, fewest_of, within_deadlines
from ooco_gym.compile import inlined, inner
from ooco_gym.compile.instructions import stack_floats
from ooco_gym.policy import router_view as v
from ooco_gym.policy.decisions import ROUTE, hook
from ooco_gym.policy.latency_budget import GIVEN, MOST_GIVEN
from ooco_gym.policy.policy import Param, Policy, slots
from ooco_gym.policy.rules import is_weighted
from ooco_gym.policy.weights import Layout
from ooco_gym.sim.costs import length, random_below

RULES = ("requests", "power_of_two", "latency", "lmetric", "sticky", "none")
REQUESTS, POWER_OF_TWO, LATENCY, LMETRIC, STICKY, NONE = range(len(RULES))
OWN = (
    Param("rule", "score by which online requests are routed", choices=RULES),
    Param("lag_s", "largest age of the observations of instances, seconds", 0.0, 60.0),
    Param("sent_weight", "weight of the requests sent since the last observation", 0.0, 4.0),
    Param("drain", "share of the time since the last observation in which prompts ahead were computed", 0.0, 2.0),
    Param("waiting_weight", "weight of a waiting request; rules that count requests", 0.0, 16.0),
    Param("speed_share", "power of the seconds per prompt token, over the mean, in the score", 0.0, 4.0),
    Param("choices", "instances drawn for a request; power_of_two", 1, 1024),
    Param("decode_tokens", "decode steps that the predicted latency includes; latency", 0.0, 1000.0),
    Param("queue_weight", "weight of a prompt token ahead; lmetric", 0.0, 4.0),
    Param("cache_threshold", "share of the prompt that must be cached to stick to an instance; sticky", 0.0, 1.0),
    Param("balance_abs", "largest difference of balanced loads, in requests; sticky", 0.0, 1e6),
    Param("balance_rel", "largest ratio of balanced loads; sticky", 1.0, 1e3),
    Param("weights", "file of the learned score's weights; without one: the rule alone", default="", file=True),
)
ALL = (*PARAMS, *OWN)
Q = slots(ALL)
if v.FIRST < GIVEN + MOST_GIVEN:
    raise AssertionError("the router's places of State.memory overlap those of deadline")
DRAW_STREAM = 5  # of power_of_two's draws

LAYOUT = Layout(("score",), v.COLUMNS)
_features = stack_floats(len(v.COLUMNS))
MOST_Z = 20.0


# --- Published rules ------------------------------------------------------------------------------------------------
@inlined
def load_of(state, instance):
    """Online requests of an instance, by `waiting_weight` and `sent_weight`."""
    p, metrics = state.params, state.memory[instance]
    waiting = (p[Q.waiting_weight] - 1.0) * metrics[v.WAITING]
    return metrics[v.ONLINE] + waiting + p[Q.sent_weight] * metrics[v.SENT]


@inner
def draw_choices(state, slot):
    """Draws `choices` instances without replacement, and sets the scores of all others to infinity."""
    count = state.config.relaxed_count
    drawn = min(count, np.int64(state.params[Q.choices]))
    for instance in range(count):
        state.scratch[0, instance] = 0
    for draw in range(drawn):
        place = random_below(state, DRAW_STREAM, 0, slot, draw, count - draw)
        for instance in range(count):
            if state.scratch[0, instance] == 0:
                if place == 0:
                    state.scratch[0, instance] = 1
                    break
                place -= 1
    for instance in range(count):
        if state.scratch[0, instance] == 0:
            state.memory[instance, v.SCORE] = math.inf


@inner
def affine(state, slot):
    """The instance that the request's prefix sticks to; -1 if it is to be balanced."""
    p, best, most, least, largest = state.params, -1, 0.0, math.inf, 0.0
    for instance in range(state.config.relaxed_count):
        load, cached = load_of(state, instance), state.memory[instance, v.CACHED]
        least, largest = min(least, load), max(largest, load)
        if cached > most or (best >= 0 and cached == most and load < load_of(state, best)):
            best, most = instance, cached
    if largest - least > p[Q.balance_abs] and largest > p[Q.balance_rel] * least:
        return -1
    return best if most >= p[Q.cache_threshold] * length(state, slot) else -1


@inner
def score_by_rule(state, slot):
    p, rule = state.params, np.int64(state.params[Q.rule])
    pace_s = v.mean_of(state, v.PACE_S)
    for instance in range(state.config.relaxed_count):
        metrics = state.memory[instance]
        if rule == LATENCY:
            metrics[v.SCORE] = metrics[v.LATENCY_S] + p[Q.decode_tokens] * metrics[v.STEP_S]
            continue
        if rule == NONE:
            metrics[v.SCORE] = 1.0
            continue
        score = load_of(state, instance) + 1.0
        if rule == LMETRIC:
            ahead = metrics[v.QUEUE] + p[Q.sent_weight] * metrics[v.SENT_TOKENS]
            score *= length(state, slot) - metrics[v.CACHED] + p[Q.queue_weight] * ahead
        metrics[v.SCORE] = score * (metrics[v.PACE_S] / pace_s) ** p[Q.speed_share]
    if rule == POWER_OF_TWO:
        draw_choices(state, slot)
    elif rule == STICKY:
        instance = affine(state, slot)
        if instance >= 0:
            state.memory[instance, v.SCORE] = 0.0


# --- The learned score ----------------------------------------------------------------------------------------------
@inner
def weigh(state, slot, age_s):
    """Multiplies each instance's score by exp(z) of the weights and features."""
    means, features = v.means_of(state), _features()
    for instance in range(state.config.relaxed_count):
        v.compare(state, instance, slot, age_s, means, features)
        z = 0.0
        for place in range(len(v.COLUMNS)):
            z += state.weights[place] * features[place]
        state.memory[instance, v.SCORE] *= math.exp(min(MOST_Z, max(-MOST_Z, z)))


@hook(ROUTE, flushes=True)
def route(view):
    """Returns the instance with the least score; an offline request goes where `deadline` routes it."""
    state, slot = view.state, view.request
    if not state.requests[slot].urgent:
        return fewest_of(state, slot)
    p = state.params
    v.refresh(state, p[Q.lag_s])
    age_s = v.age_of(state)
    for instance in range(state.config.relaxed_count):
        v.estimate(state, instance, slot, age_s, p[Q.sent_weight], p[Q.drain])
    score_by_rule(state, slot)
    if is_weighted(state):
        weigh(state, slot, age_s)
    best = 0
    for instance in range(1, state.config.relaxed_count):
        if state.memory[instance, v.SCORE] < state.memory[best, v.SCORE]:
            best = instance
    v.note_sent(state, best, slot)
    return best


policy = Policy("router", ALL, mixed=True, leaves_open=True, route=route, compose=within_deadlines, layout=LAYOUT)
