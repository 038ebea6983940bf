"""The logarithms of observations, as NumPy's for all magnitudes, and what goes on by lanes."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from ooco_gym.compile import jit
from ooco_gym.compile.instructions import count_below, stack_floats
from ooco_gym.envs.filling import scale_log
from ooco_gym.policy.engine_features import log1p

_room = stack_floats(16)


@jit
def _logs(values, out):
    for i in range(values.size):
        out[i] = log1p(values[i])


@jit
def _scaled(values, scales, out):
    room = _room()
    for i in range(16):
        room[i] = values[i]
    for i in range(16):
        out[i] = scale_log(room[i], scales[i])


def _of(compiled, values):
    out = np.empty(len(values))
    compiled(np.array(values, np.float64), out)
    return out


@settings(deadline=None)
@given(st.lists(st.floats(0.0, 1e300), min_size=1, max_size=40))
def test_logarithms_are_those_of_numpy(values):
    """As far as fifteen digits say, in vector code and in what is left over of it."""
    np.testing.assert_allclose(_of(_logs, values), np.log1p(values), rtol=1e-15, atol=0.0)


def test_logarithms_of_every_magnitude_are_the_same_as_float32():
    """Of whole numbers, as tokens and requests are, and of fractions, as seconds and milliseconds are."""
    values = np.concatenate([np.arange(100_000.0), 10.0 ** np.random.default_rng(0).uniform(-12.0, 18.0, 100_000)])
    got, expected = _of(_logs, values), np.log1p(values)
    assert got[0] == 0.0
    np.testing.assert_allclose(got, expected, rtol=5e-16, atol=0.0)
    np.testing.assert_array_equal(got.astype(np.float32), expected.astype(np.float32))


@settings(deadline=None)
@given(st.lists(st.floats(-1e6, 1e12), min_size=16, max_size=16), st.lists(st.booleans(), min_size=16, max_size=16))
def test_scale_log_takes_the_logarithm_only_where_the_scale_is_positive(values, logarithmic):
    """The others stay as they are; logarithms lie between 0 and 1, and negative numbers have that of 0."""
    scales = np.where(logarithmic, 1.0 / np.log1p(1000.0), 0.0)
    out = np.empty(16)
    _scaled(np.array(values), scales, out)
    logs = np.minimum(1.0, np.log1p(np.maximum(0.0, values)) * scales)
    np.testing.assert_allclose(out, np.where(logarithmic, logs, values), rtol=1e-15, atol=0.0)


@jit
def _below(values, first, limit):
    return count_below(values, first, limit)


@settings(deadline=None)
@given(st.lists(st.integers(-3, 3), min_size=13, max_size=13), st.integers(0, 5), st.integers(-3, 3))
def test_count_below_counts_the_lanes_from_an_index_on(values, first, limit):
    """Eight of them, and of those the ones that are less."""
    array = np.array(values, np.float64)
    assert _below(array, first, float(limit)) == (array[first : first + 8] < limit).sum()
