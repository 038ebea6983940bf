"""The C sources compile without a warning, answer as numpy does, and touch no memory that is not theirs."""

import ctypes
import shutil
import subprocess

import numpy as np
import pytest

from ooco_gym.runtime import Policy
from ooco_gym.runtime.c_source import symbol
from ooco_gym.runtime.networks import sizes_of
from tests.runtime.c_double import (
    COMPILERS,
    NETWORKS,
    asked_in_c,
    compiled,
    library,
    observations,
    parameter_bundle,
    scorer_bundle,
)

pytestmark = pytest.mark.skipif(not COMPILERS, reason="no C compiler on this machine: neither gcc nor clang")
SOURCES = ("policy.c", "policy_selftest.c")
SANITIZERS = ["-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]


@pytest.mark.parametrize("name", NETWORKS)
def test_numpy_and_c_answer_alike(tmp_path, name):
    policy = Policy.load(scorer_bundle(tmp_path / "bundle", name))
    sizes, parts = sizes_of(policy.manifest), None
    parts = observations(sizes, 2000, 5)
    actions, logits = asked_in_c(library(tmp_path / "bundle", "policy", tmp_path), symbol(policy.manifest), parts,
                                 sizes.actions, max(1, len(sizes.levels)))
    mine = policy._network(*parts)
    legal = parts[2] > 0
    np.testing.assert_allclose(logits[legal], mine[1][legal], rtol=1e-5, atol=1e-5)
    equal = actions.reshape(len(actions), -1) == np.reshape(mine[0], (len(actions), -1))
    assert equal.mean() > 0.999 and len(np.unique(actions)) > 2, "but for ties within rounding"


@pytest.mark.parametrize("compiler", ["gcc", "clang"])
@pytest.mark.parametrize("name", [*NETWORKS, "parameters"])
def test_the_self_test_passes_under_sanitizers(tmp_path, name, compiler):
    folder = parameter_bundle(tmp_path / "bundle") if name == "parameters" else scorer_bundle(
        tmp_path / "bundle", name)
    test = compiled(folder, compiler, tmp_path / "test", SOURCES, SANITIZERS)
    done = subprocess.run([str(test), "64"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "32 of 32 reference vectors are answered as they should be" in done.stdout
    assert "us a decision" in done.stdout and done.stderr == ""


def test_a_self_test_that_should_fail_fails(tmp_path):
    folder = parameter_bundle(tmp_path / "bundle")
    text = (folder / "policy.c").read_text()
    before, found, after = text.partition("of_base[2] = {\n    ")
    assert found
    (folder / "policy.c").write_text(before + found + "0x1.0p+0 + " + after)
    done = subprocess.run([str(compiled(folder, COMPILERS[0], tmp_path / "test", SOURCES, []))], capture_output=True,
                          text=True, check=False)
    assert done.returncode == 1 and "32 of 32" not in done.stdout


def test_c_says_what_is_wrong_and_takes_any_number_of_candidates(tmp_path):
    policy = Policy.load(scorer_bundle(tmp_path / "bundle", "set"))
    held = library(tmp_path / "bundle", "policy", tmp_path)
    sizes = sizes_of(policy.manifest)

    def asked(n, cluster=0.0, legal=1):
        parts = [np.full(5, cluster, np.float32), np.zeros((max(n, 1), 3), np.float32),
                 np.full(2 + max(n, 1), legal, np.int8), np.array([1, 0, 0], np.float32)]
        action = ctypes.c_int(-1)
        pointers = [part.ctypes.data_as(ctypes.c_void_p) for part in parts]
        return held.test_set_decide(*pointers[:2], n, *pointers[2:], None, ctypes.byref(action)), action.value

    assert asked(4)[0] == asked(0)[0] == asked(256)[0] == 0
    assert asked(4, cluster=np.nan) == (1, -1) and asked(4, cluster=np.inf) == (1, -1)
    assert asked(4, legal=0) == (2, -1)
    assert asked(257) == (3, -1) and asked(-1) == (3, -1)
    assert sizes.places == 4


def test_fewer_candidates_are_as_if_the_others_were_not_legal(tmp_path):
    policy = Policy.load(scorer_bundle(tmp_path / "bundle", "set"))
    held, sizes = library(tmp_path / "bundle", "policy", tmp_path), sizes_of(policy.manifest)
    cluster, candidates, mask, decision = observations(sizes, 200, 9)
    mask[:, 4:], mask[:, 0] = 0, 1
    _, few = asked_in_c(held, "test_set", (cluster, candidates[:, :2], mask[:, :4], decision), 4)
    _, all_of_them = policy._network(cluster, candidates, mask, decision)
    legal = mask[:, :4] > 0
    np.testing.assert_allclose(few[legal], all_of_them[:, :4][legal], rtol=1e-5, atol=1e-5)


def test_parameters_in_c_are_those_of_numpy(tmp_path):
    policy = Policy.load(parameter_bundle(tmp_path / "bundle"))
    held = library(tmp_path / "bundle", "policy", tmp_path)
    for x in np.random.default_rng(0).uniform(-1, 1, (500, 6)).astype(np.float32):
        values = np.zeros(2)
        assert held.adaptive_deadline_decide(x.ctypes.data_as(ctypes.c_void_p),
                                             values.ctypes.data_as(ctypes.c_void_p)) == 0
        np.testing.assert_allclose(values, list(policy.decide(x).values()), rtol=1e-9)
    for x, outside in ((np.zeros(6, np.float32), 0), (np.full(6, 1.5, np.float32), 1)):
        assert held.adaptive_deadline_outside(x.ctypes.data_as(ctypes.c_void_p)) == outside


@pytest.mark.skipif(shutil.which("cmake") is None, reason="no cmake on this machine")
def test_the_cmake_example_builds_and_tests(tmp_path):
    folder = scorer_bundle(tmp_path / "bundle", "set")
    for command in (["cmake", "-S", str(folder), "-B", str(tmp_path / "build"), "-DCMAKE_BUILD_TYPE=Release"],
                    ["cmake", "--build", str(tmp_path / "build")], ["ctest", "--test-dir", str(tmp_path / "build")]):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    assert "100% tests passed" in done.stdout
