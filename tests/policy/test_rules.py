"""Compiled helpers that rules share, against NumPy."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import types

from ooco_gym.compile import jit
from ooco_gym.policy.rules import sum_of_smallest


@jit(types.int64(types.int64[::1], types.int64, types.int64))
def summed(keys, count, few):
    return sum_of_smallest(keys, count, few)


@settings(deadline=None)
@given(st.lists(st.integers(0, 30), min_size=1, max_size=40), st.data())
def test_the_smallest_are_summed_whatever_their_order_and_ties(lengths, data):
    few = data.draw(st.integers(0, len(lengths)))
    keys = np.array([*lengths, -7], np.int64)  # what lies behind the keys is not theirs

    assert summed(keys, len(lengths), few) == sum(sorted(lengths)[:few])
    assert sorted(keys[:-1]) == sorted(lengths), "keys change places, and nothing else"
    assert keys[-1] == -7
