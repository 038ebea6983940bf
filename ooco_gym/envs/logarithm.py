"""log(1 + x), inlined: without calls, branches and tables, so that loops over it become vector code.

An observation has some forty logarithms. These here differ from the exactly rounded values by less than 1e-15 of them:
as float32 they are the same.
"""

from __future__ import annotations

import math

import numpy as np

from ooco_gym.compile import inlined
from ooco_gym.envs.simd import bits_of, float_of, quotient

LN_2 = math.log(2.0)
_FIRST = np.int64(0x3FE6A09E667F3BCD)  # bits of the square root of 1/2: significands go from there to that of 2
_ONE = np.int64(1023)
_WHOLE = np.int64(0x4330000000000000)  # bits of 2**52: with a small whole number added, of 2**52 + that number
_2_52 = 2.0**52


@inlined
def log1p(x):
    """log(1 + x) of a finite x of at least 0.

    1 + x is (1 + f) 2**k, and log(1 + f) = 2 artanh(s) with s = f / (2 + f), of which the series is summed; what
    rounding 1 + x has lost goes into f.
    """
    u = 1.0 + x
    k = (bits_of(u) - _FIRST) >> 52
    f = (float_of(bits_of(u) - (k << 52)) - 1.0) + (x - (u - 1.0)) * float_of((_ONE - k) << 52)
    s = quotient(f, 2.0 + f)
    z = s * s
    tail = z * (2.0 / 3.0 + z * (2.0 / 5.0 + z * (2.0 / 7.0 + z * (2.0 / 9.0 + z * (2.0 / 11.0 + z * (
        2.0 / 13.0 + z * (2.0 / 15.0 + z * (2.0 / 17.0 + z * (2.0 / 19.0)))))))))
    return (float_of(k + _WHOLE) - _2_52) * LN_2 + (f - s * (f - tail))


@inlined
def scale_log(x, scale):
    """log(1 + x) times `scale`, cut to 0 … 1; x itself where the scale is 0."""
    scaled = min(1.0, log1p(max(0.0, x)) * scale)
    return scaled if scale > 0.0 else x
