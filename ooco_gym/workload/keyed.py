"""Random generators keyed by what a number is for, so that no draw depends on what was drawn before."""

from __future__ import annotations

import hashlib
import operator

import numpy as np

from ooco_gym.errors import UserError

_MASK = (1 << 64) - 1


def check_seed(seed: object) -> int:
    """Returns `seed` as a Python integer.

    Raises:
        UserError: it is not a whole number.
    """
    try:
        return operator.index(seed)  # type: ignore[arg-type]
    except TypeError:
        raise UserError(f"seed must be a whole number, found {seed!r}") from None


def keyed_generator(seed: int, stream: str, block: int = 0, layer: int = 0) -> np.random.Generator:
    """Returns the generator of (seed, stream, block, layer): the same four give the same numbers, always.

    Philox is counter-based: seed and stream are its key, block and layer the upper words of its counter, so that
    generators never overlap. `block` may be negative.
    """
    digest = hashlib.blake2b(stream.encode("utf-8"), digest_size=8).digest()
    key = np.array([seed & _MASK, int.from_bytes(digest, "little")], dtype=np.uint64)
    counter = np.array([0, 0, layer & _MASK, block & _MASK], dtype=np.uint64)
    return np.random.Generator(np.random.Philox(key=key, counter=counter))
