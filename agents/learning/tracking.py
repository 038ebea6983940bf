"""What trackers show of a run beside its losses: what is chosen, held-out windows as table and picture, regret.

Nothing here changes what is learned: it watches rollouts and the validation that is played anyway, and looks ahead
at a few decisions of it. Without a tracker (`logger=none`) it does nothing.

The picture shows one validation window over time: memory, queues, latency, violations, and what was decided when. It is
drawn with Pillow, which TensorBoard and W&B bring along, so that training needs no plotting library.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import Image

from agents.evaluation.players import Player
from agents.learning.dashboard import ACTIONS, TIMELINE, WINDOWS
from agents.learning.loggers import Table, logger_settings
from agents.settings import is_number, number, plain, whole
from ooco_gym.envs.base import DecisionEnv
from ooco_gym.envs.buffers import DECLINE_ACTION, FIXED, PARTNER_ACTION
from ooco_gym.envs.decision import actual
from ooco_gym.envs.features import CLUSTER, Feature, kind_name
from ooco_gym.report.pages import GRID_COLOUR, LIMIT_COLOUR

_NUMBERS_ONLY = ("csv",)  # progress.csv takes no pictures, tables and histograms
_TABLE = ("violation_rate", "offline_reference_gpu_s_per_s", "output_tokens_per_s", "wasted_tokens_per_s",
          "wasted_gpu_s_per_s", "online_arrived", "online_violated", "offline_finished", "evictions", "interruptions",
          "migrations")
_MEANS = ("wasted_tokens_per_s", "output_tokens_per_s")
_TIE = 1e-9


class Tracking(BaseCallback):
    """Logs histograms of actions by kind of decision each rollout, and what each validation shows.

    Args:
        options: the `logger` configuration; `regret.decisions` looks ahead at so many decisions of a validation (0:
            none), each over `regret.horizon_s` of simulated time, `timeline` draws the first validation window.

    Raises:
        UserError: a setting is out of range.
    """

    def __init__(self, options: Any) -> None:
        super().__init__()
        settings = logger_settings(options)
        self.active = settings["name"] != "none"
        regret = plain(settings.get("regret") or {"decisions": 0})
        self.looks = whole(regret, "decisions", 0, name="logger.regret.decisions")
        self.horizon_s = number(regret, "horizon_s", 1e-3, name="logger.regret.horizon_s") if self.looks else 0.0
        self.drawn = bool(settings.get("timeline", True))
        self._asked: list[np.ndarray] = []
        self._taken: list[np.ndarray] = []
        self._watch: Watch | None = None

    # --- Rollouts --------------------------------------------------------------------------------------------------
    def _on_rollout_start(self) -> None:
        self._asked, self._taken = [], []

    def _on_step(self) -> bool:
        if self.active:
            before: Any = self.model._last_obs  # type: ignore[attr-defined]
            self._asked.append(np.argmax(before["decision"], axis=-1))
            self._taken.append(np.copy(self.locals["actions"]))
        return True

    def _on_rollout_end(self) -> None:
        if not self._taken:
            return
        kinds, actions = np.concatenate(self._asked), np.concatenate(self._taken)
        for kind in np.unique(kinds):
            chosen = actions[kinds == kind]
            if chosen.ndim == 1:
                self._histogram(kind_name(kind), chosen)
                continue
            for part, name in enumerate(self._parts(chosen.shape[1])):
                self._histogram(f"{kind_name(kind)}/{name}", chosen[:, part])

    def _parts(self, count: int) -> list[str]:
        """What the parts of an action of several set."""
        episodes: Any = getattr(getattr(self.training_env.unwrapped, "env", None), "episodes", None)
        controls = getattr(episodes, "controls", None)
        return [str(part) for part in range(count)] if controls is None else list(controls.names)

    def _histogram(self, name: str, actions: np.ndarray) -> None:
        self.logger.record(f"{ACTIONS}/{name}", actions.astype(np.int64), exclude=_NUMBERS_ONLY)

    # --- Validation ------------------------------------------------------------------------------------------------
    def watched(self, player: Player, windows: Sequence[Any]) -> Player:
        """The player of the validation that is about to begin, watched where a tracker wants to know."""
        if not self.active or not windows:
            return player
        self._watch = Watch(player, windows, self.looks, self.horizon_s, self.drawn)
        return self._watch

    def validated(self, records: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Logs what a validation showed; returns its records as they are."""
        if not self.active or not records:
            return records
        for key in _MEANS:
            if all(key in record["summary"] for record in records):
                name = "offline_output_tokens_per_s" if key == "output_tokens_per_s" else key
                self.logger.record(f"validation/{name}", float(np.mean([r["summary"][key] for r in records])))
        self.logger.record(WINDOWS, window_table(records), exclude=_NUMBERS_ONLY)
        if self._watch is not None:
            self._log_watch(self._watch)
        return records

    def _log_watch(self, watch: Watch) -> None:
        self._watch = None
        for key, value in watch.regret().items():
            self.logger.record(f"regret/{key}", value)
        if watch.moments:
            seed, place = watch.first
            picture = timeline(watch.moments, f"seed {seed}, window {place}, after {self.num_timesteps:,} decisions",
                               watch.features)
            self.logger.record(TIMELINE, Image(picture, "HWC"), exclude=_NUMBERS_ONLY)


def window_table(records: Sequence[Mapping[str, Any]]) -> Table:
    """One row a validation window: which one, its decisions and reward, and the protocol's figures."""
    keys = [key for key in _TABLE if all(key in record["summary"] for record in records)]
    parts = sorted({key for record in records for key in record["summary"] if key.startswith("reward/")})
    head = ["seed", "window", "decisions", "reward", *keys, *parts]
    return Table(head, [[*(record[key] for key in head[:4]), *(record["summary"].get(key) for key in head[4:])]
                        for record in records])


class Watch:
    """A player that notes what another one does: the course of one window, and its regret at a few decisions.

    Regret is what the best action is worth over the chosen one, when both are played out on the true future for a
    horizon with the partner playing on (`lookahead.rollout.Rollout`, one base): in units of the reward, never below 0.
    Each window is looked at equally often, at moments that depend on the window alone, so that validations compare.

    Args:
        windows: what will be played; the first is the one whose course is noted.
        looks: decisions that are looked at in all.
        horizon_s: of a play-out, seconds of simulated time.
        drawn: whether the course is noted.
    """

    learned = True

    def __init__(self, player: Player, windows: Sequence[Any], looks: int, horizon_s: float, drawn: bool) -> None:
        self.name, self._player, self.horizon_s, self._drawn = player.name, player, horizon_s, drawn
        self.history = getattr(player, "history", 1)
        self.first = (int(windows[0][0]), int(windows[0][1]))
        self.moments: list[Moment] = []
        self.features: tuple[Feature, ...] = CLUSTER
        self.regrets: list[float] = []
        self._due = {(int(seed), int(place)): _shares(int(seed), int(place), count)
                     for (seed, place), count in zip(windows, _spread(looks, len(windows)), strict=True)}

    def act(self, envs: Sequence[Any], observations: Sequence[Mapping[str, np.ndarray]]) -> Sequence[Any]:
        """The player's own answers."""
        actions = self._player.act(envs, observations)
        for env, observation, action in zip(envs, observations, actions, strict=True):
            inside = env.unwrapped
            if isinstance(inside, DecisionEnv):
                self._look(inside, observation, action)
        return actions

    def _look(self, env: DecisionEnv, observation: Mapping[str, np.ndarray], action: Any) -> None:
        now_s, self.features = env.simulation.now_s - env.config.warmup_s, env.episodes.features
        if self._drawn and env.window == self.first:
            self.moments.append(Moment(now_s, int(np.argmax(observation["decision"])), action,
                                       observation["cluster"][: len(self.features)].copy()))  # the newest first
        due = self._due.get(env.window)
        if due and now_s >= due[0] * env.config.window_s:
            while due and now_s >= due[0] * env.config.window_s:
                due.pop(0)
            self.regrets.append(regret_of(env, action, self.horizon_s))

    def regret(self) -> dict[str, float]:
        """Mean and largest regret, the share of decisions with none, and how many were looked at; empty if none."""
        found = [value for value in self.regrets if is_number(value)]
        if not found:
            return {}
        return {"mean": float(np.mean(found)), "max": float(np.max(found)), "looks": len(found),
                "best_share": float(np.mean(np.array(found) <= _TIE))}


def regret_of(env: DecisionEnv, action: Any, horizon_s: float) -> float:
    """What the best action at the open decision is worth over `action`, looking `horizon_s` ahead with the partner.

    Of controls, which are not all played out, only those with one parameter turned are: an action that is not among
    them has no regret that is known (nan).
    """
    from agents.lookahead.rollout import Rollout

    actions, _, values = Rollout(env, horizon_s=horizon_s, bases=["partner"]).values()
    mine = np.flatnonzero((actions == np.atleast_1d(np.asarray(action, np.int64))).all(axis=1))
    return float(values.max() - values[mine].max()) if len(mine) else float("nan")


def _spread(count: int, windows: int) -> list[int]:
    """`count` looks over windows, as evenly as can be."""
    return [count // windows + (place < count % windows) for place in range(windows)]


def _shares(seed: int, place: int, count: int) -> list[float]:
    """Where in a window it is looked at: shares of its length, ascending, keyed by the window."""
    return sorted(np.random.default_rng([seed, place, 17]).uniform(0.0, 0.9, count).tolist())


WIDTH, LEFT, RIGHT, TOP, PANEL, GAP, STRIP, BIN = 1000, 64, 20, 34, 108, 34, 30, 4
_BLUE, _ORANGE, _GREEN, _GREY, _DARK = "#0072B2", "#D55E00", "#009E73", "#9A9A9A", "#222222"
_MARKS = ((DECLINE_ACTION, "no", _GREY), (PARTNER_ACTION, "as the partner", _BLUE), (FIXED, "a candidate", _ORANGE))
# title, unit, lines (feature, colour, words), a limit to draw
_PANELS = (
    ("Free KV memory", "%", (("kv_free", _BLUE, "where it is decided"),
                             ("strict_kv_free", _ORANGE, "strict instances")), None),
    ("Step latency of the strict instances over the TPOT SLO", "%", (("strict_latency", _ORANGE, "believed"),), 100.0),
    ("Waiting for prefill", "requests", (("offline_waiting", _GREEN, "offline"), ("online_waiting", _ORANGE, "online")),
     None),
    ("Online arrivals", "requests/s", (("online_rate_60s", _BLUE, "average over 60 s"),), None),
    ("Online requests that missed an SLO", "%", (("violations", _ORANGE, "so far"),
                                                 ("recent_violations", _BLUE, "last ten minutes")), 3.0),
)


class Moment(NamedTuple):
    """One decision of a window.

    Attributes:
        at_s: simulated seconds since the window's start.
        kind: slot of the observation's `decision`.
        action: what was answered; of several parts, all of them.
        cluster: float32[C], what was seen of the cluster.
    """

    at_s: float
    kind: int
    action: Any
    cluster: np.ndarray


def timeline(moments: Sequence[Moment], title: str, features: Sequence[Feature] = CLUSTER) -> np.ndarray:
    """Draws a window. Returns uint8[height, width, 3].

    Args:
        moments: its decisions, in order; at least one.
        title: above the picture.
        features: of what was seen of the cluster; panels of others are left out.
    """
    from PIL import Image, ImageDraw

    places = {feature.name: place for place, feature in enumerate(features)}
    panels = [(name, unit, there, limit) for name, unit, lines, limit in _PANELS
              if (there := [line for line in lines if line[0] in places])]
    kinds = sorted({moment.kind for moment in moments})
    height = TOP + len(panels) * (PANEL + GAP) + GAP + len(kinds) * (STRIP + 6) + 46
    image = Image.new("RGB", (WIDTH, height), "white")
    canvas = _Canvas(ImageDraw.Draw(image), np.array([moment.at_s for moment in moments]))
    canvas.text(LEFT, 8, f"A validation window: {title}", 15)
    seen = np.array([moment.cluster for moment in moments])
    top = TOP + 18
    for name, unit, lines, limit in panels:
        canvas.panel(top, name, unit, [(_figures(seen[:, places[one]], features[places[one]]), colour, words)
                                       for one, colour, words in lines], limit)
        top += PANEL + GAP
    canvas.strips(top + 4, moments, kinds)
    canvas.time_axis(height - 34)
    return np.asarray(image)


def _figures(seen: np.ndarray, feature: Feature) -> np.ndarray:
    """A feature over time in its unit; shares in percent."""
    figures = np.array([actual(feature, float(value)) for value in seen])
    return 100.0 * figures if feature.unit == "share" else figures


class _Canvas:
    """Places things on the picture; the time axis spans the decisions."""

    def __init__(self, draw: Any, at_s: np.ndarray) -> None:
        self.draw, self.at_s = draw, at_s
        self.first_s, self.last_s = float(min(at_s[0], 0.0)), float(max(at_s[-1], at_s[0] + 1.0))
        self.x = LEFT + (at_s - self.first_s) / (self.last_s - self.first_s) * (WIDTH - LEFT - RIGHT)

    def text(self, x: float, y: float, words: str, size: int = 12, colour: str = _DARK, anchor: str = "la") -> None:
        from PIL import ImageFont

        self.draw.text((x, y), words, fill=colour, font=ImageFont.load_default(size), anchor=anchor)

    def panel(self, top: float, title: str, unit: str, lines: Sequence[tuple[np.ndarray, str, str]],
              limit: float | None) -> None:
        """Lines over time with their scale, which starts at 0."""
        most = max([float(figures.max()) for figures, _, _ in lines] + ([limit] if limit is not None else []))
        scale = nice(max(most, 1e-9))
        bottom = top + PANEL
        for share in (0.0, 0.5, 1.0):
            y = bottom - share * PANEL
            self.draw.line((LEFT, y, WIDTH - RIGHT, y), fill=GRID_COLOUR)
            self.text(LEFT - 6, y, f"{share * scale:g}", 11, anchor="rm")
        if limit is not None:
            y = bottom - limit / scale * PANEL
            self.draw.line((LEFT, y, WIDTH - RIGHT, y), fill=LIMIT_COLOUR, width=1)
        self.text(LEFT, top - 17, f"{title} ({unit})")
        self.legend(top - 17, [(words, colour) for _, colour, words in lines])
        for figures, colour, _ in lines:
            y = bottom - np.clip(figures / scale, 0.0, 1.0) * PANEL
            self.draw.line(list(zip(self.x.tolist(), y.tolist(), strict=True)), fill=colour, width=1)

    def legend(self, top: float, words: Sequence[tuple[str, str]]) -> None:
        """Words in their colours, flush right."""
        from PIL import ImageFont

        right = float(WIDTH - RIGHT)
        for text, colour in reversed(words):
            self.text(right, top, text, 12, colour, "ra")
            right -= 16 + ImageFont.load_default(12).getlength(text)

    def strips(self, top: float, moments: Sequence[Moment], kinds: Sequence[int]) -> None:
        """One row a kind of decision: over time, the shares of the answers, stacked."""
        self.text(LEFT, top - 17, "Decisions: share of each kind of answer")
        self.legend(top - 17, [(words, colour) for _, words, colour in _MARKS])
        bins = ((self.x - LEFT) // BIN).astype(int)
        marks = np.array([_mark(moment.action) for moment in moments])
        asked = np.array([moment.kind for moment in moments])
        for row, kind in enumerate(kinds):
            y = top + row * (STRIP + 6)
            self.text(LEFT - 6, y + STRIP / 2, kind_name(kind), 11, anchor="rm")
            for place in np.unique(bins[asked == kind]):
                inside = marks[(asked == kind) & (bins == place)]
                self._stack(LEFT + float(place) * BIN, y, np.bincount(inside, minlength=len(_MARKS)) / len(inside))

    def _stack(self, x: float, top: float, shares: np.ndarray) -> None:
        bottom = top + STRIP
        for share, (_, _, colour) in zip(shares, _MARKS, strict=True):
            if share:
                self.draw.rectangle((x, bottom - share * STRIP, x + BIN - 1, bottom), fill=colour)
                bottom -= share * STRIP

    def time_axis(self, top: float) -> None:
        """Minutes since the window's start."""
        step = nice((self.last_s - self.first_s) / 60.0 / 6.0)
        for minute in np.arange(np.ceil(self.first_s / 60.0 / step) * step, self.last_s / 60.0 + 1e-9, step):
            x = LEFT + (minute * 60.0 - self.first_s) / (self.last_s - self.first_s) * (WIDTH - LEFT - RIGHT)
            self.draw.line((x, top - 6, x, top - 2), fill=_DARK)
            self.text(x, top, f"{minute:g}", 11, anchor="ma")
        self.text((LEFT + WIDTH - RIGHT) / 2, top + 15, "time since the window's start (min)", anchor="ma")


def _mark(action: Any) -> int:
    """Place in `_MARKS` of an answer; settings of several parts count as a candidate."""
    return min(int(action), len(_MARKS) - 1) if np.size(action) == 1 else len(_MARKS) - 1


def nice(value: float) -> float:
    """The smallest of 1, 2, 2.5, 5 and 10 times a power of ten that is at least `value` (> 0)."""
    power = 10.0 ** np.floor(np.log10(value))
    return float(next(step * power for step in (1.0, 2.0, 2.5, 5.0, 10.0) if step * power >= value * (1 - 1e-9)))
