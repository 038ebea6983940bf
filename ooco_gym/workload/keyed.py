"""Random generators keyed by the purpose of a number, so that no draw depends on earlier ones."""

from __future__ import annotations

import hashlib
import operator

import numpy as np

from ooco_gym.errors import UserError

_MASK = (1 << 64) - 1
_NUMBER_BITS = (1 << 63) - 1


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
    """Returns the generator of (seed, stream, block, layer); the same four always give the same
    numbers.

    Philox is counter-based. Seed and stream are its key, block and layer the upper words of its
    counter, so generators never overlap. `block` may be negative.
    """
    digest = hashlib.blake2b(stream.encode("utf-8"), digest_size=8).digest()
    key = np.array([seed & _MASK, int.from_bytes(digest, "little")], dtype=np.uint64)
    counter = np.array([0, 0, layer & _MASK, block & _MASK], dtype=np.uint64)
    return np.random.Generator(np.random.Philox(key=key, counter=counter))


def scattered(numbers: np.ndarray, salt: str) -> np.ndarray:
    """Returns pseudo-random int64[n] >= 0, a function of the numbers and the salt (SplitMix64's finaliser)."""
    key = int.from_bytes(hashlib.blake2b(salt.encode(), digest_size=8).digest(), "little")
    x = np.asarray(numbers).astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(key)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return ((x ^ (x >> np.uint64(31))) & np.uint64(_NUMBER_BITS)).astype(np.int64)


def keyed_uniform(numbers: np.ndarray, seed: int, stream: str) -> np.ndarray:
    """Returns float64[n] in [0, 1); each depends only on (its number int64, seed, stream)."""
    key = int(keyed_generator(seed, stream).integers(1 << 62))
    return (scattered(numbers, f"{stream}/{key}") >> 10) / float(1 << 53)
