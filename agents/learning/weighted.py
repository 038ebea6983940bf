"""Exports a policy of `conf/policy` whose rule has a file of weights: no trained network, and none is needed.

What the weights mean is said by the rule (`ooco_gym.policy.weights`), what is known of their training by the policy's
YAML. Nothing here needs torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from agents.learning.describing import forms_of, summarised
from ooco_gym.errors import UserError
from ooco_gym.policy import Policy as Rule
from ooco_gym.policy import get_policy
from ooco_gym.policy.registry import known_of
from ooco_gym.policy.weights import write_linear_bundle
from ooco_gym.runtime import INPUTS, Policy, read_manifest
from ooco_gym.runtime.manifest import FEATURES
from ooco_gym.runtime.networks import Sizes, sizes_of

_TOLERANCE = 1e-5


def export_weighted(config: Mapping[str, Any], wanted: Sequence[str] | None, checks: int, seed: int) -> dict[str, Any]:
    """Writes the bundle of the policy `config["policy"]` into `config["out"]`, and summarises.

    Raises:
        UserError: the policy has no weights, a form needs a package that is not installed, or the forms disagree.
    """
    text, out = str(config["policy"]), Path(config["out"])
    policy, known = get_policy(text), known_of(text)
    forms = forms_of(wanted, True, text)
    how = {"forms": forms, "target": config.get("target"), **({"name": config["name"]} if config.get("name") else {})}
    with TemporaryDirectory() as folder:
        again = [form for form in ("npz", "onnx") if form == "npz" or form in forms]
        write_linear_bundle(folder, policy, known=known, forms=again)
        agreement = _agreement({form: Policy.load(folder, form=form) for form in again}, policy, checks, seed)
    manifest = read_manifest(write_linear_bundle(out, policy, known=known, **how))
    return summarised(out, config, {"env": manifest["environment"], "decisions": manifest["decisions"],
                                    "checks": checks, **agreement})


def _agreement(forms: Mapping[str, Any], rule: Rule, checks: int, seed: int) -> dict[str, Any]:
    """How far each form agrees with the weights themselves, as the rule reads them, on random observations.

    Raises:
        UserError: one does not.
    """
    assert rule.layout is not None and rule.weights is not None
    table, worst, equal = rule.weights.reshape(len(rule.layout.rows), len(rule.layout.columns)), 0.0, 1.0
    for form, policy in forms.items():
        ask = _parameters if policy.kind == "parameters" else _candidates
        errors, same, lost = ask(policy, table, checks, seed)
        disagreements = int(np.count_nonzero(lost > _TOLERANCE))  # a tie within rounding may fall either way
        if disagreements or errors.max() > _TOLERANCE:
            raise UserError(f"the form {form} disagrees with the weights of '{rule.name}': largest error "
                            f"{errors.max():.1e} of the value, {disagreements} of {checks} answers are others; nothing "
                            "was written")
        worst, equal = max(worst, float(errors.max())), min(equal, float(np.mean(same)))
    return {"action_agreement": equal, "disagreements": 0, "max_logit_error": worst}


Compared = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Errors of values, as shares of those above 1; of each observation whether the answers are the same, and what the
policy's is worth less."""


def _errors(mine: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    return np.abs(mine - wanted) / np.maximum(1.0, np.abs(wanted))


def _parameters(policy: Any, table: np.ndarray, checks: int, seed: int) -> Compared:
    """Values of the policy against those of the formula (`baselines.adaptive_deadline`)."""
    rows = policy.manifest["inputs"]["cluster"]["features"]
    low, high = (np.array([row[end] for row in rows]) for end in ("low", "high"))
    x = np.random.default_rng((seed, 13)).uniform(low, high, (checks, len(rows))).astype(np.float32)
    z, wanted = x.astype(np.float64) @ table[:, :-1].T + table[:, -1], np.empty((checks, len(table)))
    for place, one in enumerate(policy.manifest["parameters"]):
        moved = one["step"] * z[:, place]
        value = one["base"] * np.exp(np.clip(moved, -80, 80)) if one["scale"] == "log" else one["base"] + moved
        wanted[:, place] = np.clip(value, one["low"], one["high"])
    errors = _errors(policy.decide_batch(x), wanted)
    return errors, errors.max(axis=1) <= _TOLERANCE, errors.max(axis=1)


def _candidates(policy: Any, table: np.ndarray, checks: int, seed: int) -> Compared:
    """Logits of the policy against the logarithms of the rule's scores times the weights' factors."""
    asked = _drawn(policy.manifest, sizes_of(policy.manifest), checks, seed)
    legal, offered = asked[2] > 0, asked[1].astype(np.float64)
    scores = -(offered[:, :, 0] + offered[:, :, 1:] @ table[0])
    actions, logits = policy.preferences(dict(zip(INPUTS, asked, strict=True)))
    offers, each = np.where(legal, scores, -np.inf), np.arange(len(scores))
    chosen = offers.argmax(axis=1)
    return _errors(logits[legal], scores[legal]), chosen == actions, offers[each, chosen] - offers[each, actions]


def _drawn(manifest: Mapping[str, Any], sizes: Sizes, count: int, seed: int) -> tuple[np.ndarray, ...]:
    """Cluster, candidates, masks with a legal action and decisions, at random within the features' bounds."""
    random = np.random.default_rng((seed, 13))
    parts = {}
    for key in FEATURES:
        table = manifest["inputs"][key]["features"]
        low, high = (np.array([float(row.get(end, default)) for row in table])
                     for end, default in (("low", 0.0), ("high", 1.0)))
        parts[key] = random.uniform(np.maximum(low, -1e3), np.minimum(high, 1e3),
                                    (count, *manifest["inputs"][key]["shape"])).astype(np.float32)
    mask = (random.random((count, sizes.actions)) < 0.5).astype(np.int8)
    first = 0
    for choices in sizes.levels or (sizes.actions,):
        mask[np.arange(count), first + random.integers(0, choices, count)] = 1
        first += choices
    decision = np.eye(sizes.decisions, dtype=np.float32)[random.integers(0, sizes.decisions, count)]
    return parts["cluster"], parts["candidates"], mask, decision
