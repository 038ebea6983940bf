"""A part of the fuzzing of bundles; `python -m tests.runtime.fuzz N=10000` is all of it."""

import json
from pathlib import Path

import fuzz
import numpy as np
import pytest
from c_double import scorer_bundle

from ooco_gym.errors import UserError
from ooco_gym.runtime import Policy


def test_a_damaged_bundle_is_refused_or_answers_as_it_did():
    found = fuzz.fuzz(300, seed=2)
    refused = sum(count for (_, _, verdict), count in found.items() if verdict == "refused")
    assert sum(found.values()) == 300 and refused > 200
    assert {form for form, _, _ in found} == ({"npz", "onnx"} if fuzz.GRAPHS else {"npz"})
    assert not any(verdict == "same" for _, damage, verdict in found if damage in (
        "cut", "lose", "nan_weights", "claims", "names_of_members", "names_of_files", "compressed", "cut_graph",
        "weights_beside", "huge_nodes", "bulky_graph"))


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="the system does not say how much memory is used")
def test_a_claim_that_is_believed_has_no_room():
    with fuzz.little_memory(), pytest.raises(MemoryError):
        np.ones(1 << 28)
    assert np.ones(1 << 28, np.int8).size == 1 << 28


@pytest.mark.parametrize("change, words", [
    (lambda one: one.update(kind="other"), "kind: 'other' is not one of ['candidates', 'parameters']"),
    (lambda one: one["inputs"]["cluster"].update(shape=[6]), "has 5 features; expected as many as its shape says: [6]"),
    (lambda one: one.pop("licence"), "the document: 'licence' is a required property"),
    (lambda one: one["network"].pop("hidden"), "lacks 'hidden'"),
    (lambda one: one["network"].update(hidden=21), "has an array 'embed.weight' of shape (20, 3); expected (21, 3)"),
    (lambda one: one["network"].update(form="layers"), "of the form 'layers', which scores no candidates"),
    (lambda one: one["network"].update(kinds=2), "has 2 kinds of heads; expected 1 or 3"),
    (lambda one: one["actions"].append("more"), "there are 7 actions; expected as many as flags of the mask (6)"),
    (lambda one: one["reference"].update(vectors=31), "expected (31, "),
])
def test_what_does_not_fit_is_named(tmp_path, change, words):
    folder = scorer_bundle(tmp_path, "set", forms=("npz",))
    manifest = json.loads((folder / "manifest.json").read_text())
    change(manifest)
    (folder / "manifest.json").write_text(json.dumps(fuzz.signed(manifest)))
    with pytest.raises(UserError) as error:
        Policy.load(folder)
    assert words in str(error.value)
