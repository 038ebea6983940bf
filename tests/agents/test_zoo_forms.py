"""The shipped policies answer alike as torch, graph, arrays and C on 10,000 states that were recorded on the way."""

import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from ooco_gym import zoo
from ooco_gym.errors import UserError

sys.path.insert(0, str(Path(__file__).parents[1] / "runtime"))
pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

STATES = 10_000
KEYS = ("cluster", "candidates", "action_mask", "decision")


def recorded(policy, count):
    """States of the policy's environment, played by it, every third action at random, stacked."""
    import gymnasium as gym

    env = gym.make(policy.card["environment"], window_s=120.0, warmup_s=20.0)
    random, kept, window = np.random.default_rng(0), {key: [] for key in KEYS}, 0
    shape = policy.manifest["inputs"]["candidates"]["shape"]
    while len(kept["cluster"]) < count:
        observation, _ = env.reset(seed=4000 + window, options={"window": 0})
        window, over = window + 1, False
        while not over and len(kept["cluster"]) < count:
            for key in KEYS:
                kept[key].append(np.asarray(observation[key]).reshape(shape if key == "candidates" else -1))
            action = policy.decide(observation)
            if not policy.parts and random.random() < 1 / 3:
                action = int(random.choice(np.flatnonzero(observation["action_mask"])))
            observation, _, _, over, _ = env.step(action)
    env.close()
    return tuple(np.stack(kept[key]) for key in KEYS)


def in_torch(arrays, network, sizes, parts):
    """Logits of the network class itself, with the weights of `weights.npz`."""
    torch = pytest.importorskip("torch")
    from agents.learning.networks import CandidateScorer, Layout

    layout = Layout(sizes.cluster, sizes.decisions, sizes.places, sizes.features, sizes.actions, sizes.levels)
    scorer = CandidateScorer(layout, network["hidden"], network["kinds"] > 1)
    names = {"embed": "actor.of_candidate", "context": "actor.of_context", "own": "own", "state": "own_pool",
             "pool": "fixed_pool", "head": "heads.of_candidate", "fixed": "heads.of_fixed"}
    state = {f"{names[name.rpartition('.')[0]]}.{name.rpartition('.')[2]}": torch.as_tensor(array)
             for name, array in arrays.items() if name.rpartition(".")[0] in names}
    missing, unexpected = scorer.load_state_dict(state, strict=False)
    assert not unexpected and all(name.startswith(("critic", "value", "fixed_pool")) for name in missing)

    def scaled(name, values):
        z = (torch.as_tensor(values) - torch.as_tensor(arrays[f"{name}.mean"])) / torch.as_tensor(
            arrays[f"{name}.deviation"])
        return z.clamp(-8.0, 8.0)

    cluster, candidates, mask, decision = parts
    flags = torch.as_tensor((mask > 0).astype(np.float32))
    offered = scaled("candidates", candidates)
    if not sizes.levels:
        offered = offered * flags[:, sizes.fixed :].unsqueeze(-1)
    with torch.inference_mode():
        return scorer.forward_actor(torch.cat([scaled("cluster", cluster), torch.as_tensor(decision),
                                               offered.flatten(1), flags], dim=1)).numpy()


def chosen(logits, levels):
    """The best action, or level of each part."""
    ends = pairwise(np.cumsum((0, *(levels or (logits.shape[1],)))))
    return np.stack([logits[:, begin:end].argmax(axis=1) for begin, end in ends], axis=1)


@pytest.mark.slow
@pytest.mark.parametrize("name", zoo.names())
def test_all_forms_of_a_shipped_policy_answer_alike(name, tmp_path):
    from c_double import COMPILERS, asked_in_c, library

    from agents.learning.export import main as export
    from ooco_gym.runtime import Policy
    from ooco_gym.runtime.manifest import read_arrays
    from ooco_gym.runtime.networks import sizes_of

    out = tmp_path / "bundle"
    export({"policy": name, "out": str(out), "checks": 1000, "seed": 1})
    policy, graph = Policy.load(out, form="npz"), Policy.load(out, form="onnx")
    policy.card = zoo.card(name)
    sizes, parts = sizes_of(policy.manifest), recorded(policy, STATES)
    legal = parts[2] > 0
    asked = (parts[0].astype(np.float32), parts[1].astype(np.float32), parts[2].astype(np.int8),
             parts[3].astype(np.float32))
    answers = {"npz": policy._network(*asked)[1], "onnx": graph._network(*asked)[1],
               "torch": in_torch(read_arrays(out / "weights.npz"), policy.manifest["network"], sizes, asked)}
    if COMPILERS:
        symbol = policy.manifest["name"].replace("-", "_")
        answers["c"] = asked_in_c(library(out, "policy", tmp_path), symbol, asked, sizes.actions,
                                  max(1, len(sizes.levels)))[1]
    wanted = chosen(answers["torch"], sizes.levels)
    for form, logits in answers.items():
        error = np.abs(logits.astype(np.float64) - answers["torch"])[legal].max()
        assert error <= 1e-5, f"{form}: logits differ by {error:.1e}"
        mine = chosen(logits, sizes.levels)
        others = np.flatnonzero((mine != wanted).any(axis=1))
        assert not len(others), f"{form}: another action in {len(others)} of {STATES:,} states"


def test_a_bundle_is_not_exported_into_itself():
    from agents.learning.export import main as export

    with pytest.raises(UserError, match="is the bundle itself"):
        export({"policy": zoo.names()[0], "out": str(zoo.folder(zoo.names()[0])), "checks": 10, "seed": 1})
