"""What training logs, and the charts that show it.

W&B's summaries, the page and the tests are made from one list, `CHARTS`, so that no chart asks for a series that no run
has.
"""

from __future__ import annotations

from typing import NamedTuple

from ooco_gym.envs.reward import TERMS

STEP = "decisions"  # the x-axis of everything: decisions taken in training, over all episodes side by side
ACTIONS = "actions"  # histograms, one a kind of decision: actions/<decision>, or actions/control/<parameter>


class Chart(NamedTuple):
    """A line plot of `series`, named as they are logged, over decisions or the series `x`. A run is compared by the
    values that `kept` (W&B's summary) says; without the key `only` of an agent's configuration the series are not
    logged."""

    section: str
    title: str
    unit: str
    series: tuple[str, ...]
    kept: str = "last"
    only: str = ""
    x: str = STEP


SERVICE, LIMIT = "validation/offline_reference_gpu_s_per_s", "validation/violation_limit"
PROMISE = "Offline service under the promise"
HELD_OUT, EARNED, PROMISED, PLAYED = "Validation windows", "Reward", "Costs and the budget", "Training episodes"
CHOSEN, LEARNING, SEARCH, SPEED = "What is chosen", "Learning", "Search over whole episodes", "Speed"

CHARTS = (
    Chart(PROMISE, "Violations over offline service, with their limit", "share of online requests",
          ("validation/violation_rate", LIMIT), "min,last", x=SERVICE),
    Chart(HELD_OUT, "Reward of a validation window", "reward", ("validation/reward",), "max,last"),
    Chart(HELD_OUT, "Offline service", "reference GPU-s/s", (SERVICE,), "max,last"),
    Chart(HELD_OUT, "Waste", "tokens/s", ("validation/wasted_tokens_per_s",), "min,last"),
    Chart(EARNED, "Reward by part", "per simulated second",
          tuple(f"reward/{term}_per_s" for term in TERMS)),
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
    Chart(SEARCH, "Score of a generation beside the reference, in training", "", ("search/best_score",
          "search/median_score"), "max,last", only="halving"),
    Chart(SEARCH, "Score of what is kept, in validation", "", ("search/kept_score",), "max,last", only="halving"),
    Chart(SEARCH, "Candidates that keep the budget", "share", ("search/feasible_share",), only="halving"),
    Chart(SEARCH, "Step size, and distance from the policy as it ships", "", ("search/sigma", "search/moved"),
          only="halving"),
    Chart(SPEED, "Decisions per second of collecting", "1/s", ("time/decisions_per_s",), "max,last"),
)


def summaries() -> dict[str, str]:
    """W&B's summary of each series that the charts name: such as `max,last`."""
    return {name: chart.kept for chart in CHARTS for name in chart.series}
