"""What training logs beside Stable-Baselines3's own series, and by which of its values a run is compared in W&B."""

from __future__ import annotations

from ooco_gym.envs.reward import TERMS

STEP = "decisions"  # the x-axis of everything: decisions taken in training, over all episodes side by side
ACTIONS = "actions"  # histograms, one a kind of decision: actions/<decision>, or actions/control/<parameter>

# Series -> W&B's summary of it.
LOGGED = {
    "validation/offline_reference_gpu_s_per_s": "max,last",
    "validation/reward": "max,last",
    "validation/violation_limit": "last",
    "validation/violation_rate": "min,last",
    "validation/wasted_tokens_per_s": "min,last",
    **{f"reward/{term}_per_s": "last" for term in TERMS},
    "cost/cost_per_s": "min,last",
    "cost/cost_tpot_per_s": "min,last",
    "cost/cost_ttft_per_s": "min,last",
    "episode/offline_reference_gpu_s_per_s": "max,last",
    "episode/output_tokens_per_s": "max,last",
    "episode/violation_rate": "min,last",
    "episode/wasted_tokens_per_s": "min,last",
    "rollout/no_share": "last",
    "rollout/partner_share": "last",
    "time/decisions_per_s": "max,last",
    "train/explained_variance": "max,last",
}
LAGRANGIAN = {"lagrangian/budget": "last", "lagrangian/multiplier": "last", "lagrangian/violation_rate": "last"}
SEARCHED = {  # of agent=cma
    "search/best_score": "max,last",
    "search/feasible_share": "last",
    "search/kept_score": "last",
    "search/median_score": "max,last",
    "search/moved": "last",
    "search/sigma": "last",
}
