"""What training logs, by name: the charts of the dashboard, and which values stand for a run beside others.

One list, from which W&B's `define_metric`, the dashboard (`agents.dashboard`) and its test are made, so that no chart
can ask for a series that no run has.
"""

from __future__ import annotations

from typing import NamedTuple

from ooco_gym.envs.reward import PARTS

STEP = "decisions"  # the x-axis of everything: decisions taken in training, over all episodes side by side
TIMELINE, WINDOWS = "validation/timeline", "validation/table"  # a picture, and a table of one row a window
ACTIONS = "actions"  # histograms, one a kind of decision: actions/<decision>, or actions/control/<parameter>


class Chart(NamedTuple):
    """A line plot over decisions.

    Attributes:
        section: of the dashboard.
        title: above the chart.
        unit: of the vertical axis.
        series: names as they are logged.
        kept: W&B's summary of these series: which of their values a run is compared by, beside the last.
        only: the key of an agent's configuration without which the series are not logged; '': always.
    """

    section: str
    title: str
    unit: str
    series: tuple[str, ...]
    kept: str = "last"
    only: str = ""


HELD_OUT, EARNED, PROMISED, PLAYED = "Held-out windows", "Reward", "Costs and the budget", "Training episodes"
CHOSEN, LEARNING, SPEED = "What is chosen", "Learning", "Speed"

CHARTS = (
    Chart(HELD_OUT, "Reward of a validation window", "reward", ("validation/reward",), "max,last"),
    Chart(HELD_OUT, "Offline service", "reference GPU-s/s", ("validation/offline_reference_gpu_s_per_s",), "max,last"),
    Chart(HELD_OUT, "Violation rate", "share of online requests", ("validation/violation_rate",), "min,last"),
    Chart(HELD_OUT, "Waste", "tokens/s", ("validation/wasted_tokens_per_s",), "min,last"),
    Chart(HELD_OUT, "Regret: a look ahead's best action over the policy's", "reward", ("regret/mean", "regret/max"),
          "min,last"),
    Chart(HELD_OUT, "Decisions where the look ahead finds nothing better", "share", ("regret/best_share",),
          "max,last"),
    Chart(EARNED, "Reward by part", "per simulated second", tuple(f"reward/{part}_per_s" for part in PARTS)),
    Chart(PROMISED, "Online requests that missed an SLO", "per simulated second",
          ("cost/cost_per_s", "cost/cost_ttft_per_s", "cost/cost_tpot_per_s"), "min,last"),
    Chart(PROMISED, "Multiplier of a Lagrangian agent", "", ("lagrangian/multiplier",), only="lagrangian"),
    Chart(PROMISED, "Violation rate that moves the multiplier", "share of online requests",
          ("lagrangian/violation_rate", "lagrangian/budget"), only="lagrangian"),
    Chart(PLAYED, "Offline service", "reference GPU-s/s", ("episode/offline_reference_gpu_s_per_s",), "max,last"),
    Chart(PLAYED, "Offline output", "tokens/s", ("episode/output_tokens_per_s",), "max,last"),
    Chart(PLAYED, "Violation rate", "share of online requests", ("episode/violation_rate",), "min,last"),
    Chart(PLAYED, "Waste", "tokens/s", ("episode/wasted_tokens_per_s",), "min,last"),
    Chart(CHOSEN, "Share of 'no' and of the partner's action", "share",
          ("rollout/no_share", "rollout/partner_share")),
    Chart(LEARNING, "Losses", "", ("train/policy_gradient_loss", "train/value_loss")),
    Chart(LEARNING, "Explained variance of the critic", "share", ("train/explained_variance",), "max,last"),
    Chart(LEARNING, "Distance of an update", "", ("train/approx_kl", "train/clip_fraction")),
    Chart(LEARNING, "Entropy", "nats, negative", ("train/entropy_loss",)),
    Chart(SPEED, "Decisions per second of collecting", "1/s", ("time/decisions_per_s",), "max,last"),
)


def summaries() -> dict[str, str]:
    """W&B's summary of each series that the charts name: such as `max,last`."""
    return {name: chart.kept for chart in CHARTS for name in chart.series}
