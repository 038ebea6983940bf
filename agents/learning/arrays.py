"""A trained network's weights as `weights.npz` keeps them (`ooco_gym.runtime.networks`).

The layers of `agents.learning.networks` have other names there, because an engine's programmer reads them without the
classes beside them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

_NAMES = {"encoder.cluster.mean": "cluster.mean", "encoder.cluster.deviation": "cluster.deviation",
          "encoder.candidates.mean": "candidates.mean", "encoder.candidates.deviation": "candidates.deviation"}
_LAYERS = {
    "candidate_scorer": {"actor.of_candidate": "embed", "actor.of_context": "context", "own": "own",
                         "own_pool": "state", "fixed_pool": "pool", "heads.of_candidate": "head",
                         "heads.of_fixed": "fixed"},
    "mlp": {"actor.0": "first", "actor.2": "second", "last": "last"},
}
_FORMS = {"candidate_scorer": "candidate_scorer", "mlp": "flat"}


def arrays_of_run(run: Any) -> tuple[dict[str, Any], dict[str, np.ndarray]] | None:
    """(The manifest's `network`, the arrays) of a run's actor; None where its network has no such form (attention)."""
    scorer = run.actor.scorer
    name = {"CandidateScorer": "candidate_scorer", "FlatScorer": "mlp"}.get(type(scorer).__name__)
    if name is None:
        return None
    state = {key: value.detach().cpu().numpy() for key, value in run.actor.state_dict().items()}
    kinds = scorer.heads.kinds if name == "candidate_scorer" else scorer.kinds
    arrays = {mine: state[theirs] for theirs, mine in _NAMES.items()}
    for theirs, mine in _LAYERS[name].items():
        for part in ("weight", "bias"):
            if f"scorer.{theirs}.{part}" in state:
                arrays[f"{mine}.{part}"] = state[f"scorer.{theirs}.{part}"]
    if name == "candidate_scorer" and "fixed.weight" not in arrays:  # levels alone: nothing reads the pooled state
        arrays = {key: array for key, array in arrays.items() if not key.startswith("pool.")}
    return {"form": _FORMS[name], "hidden": int(scorer.latent_dim_vf), "kinds": int(kinds)}, arrays
