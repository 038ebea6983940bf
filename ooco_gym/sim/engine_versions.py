"""Releases of vLLM whose V1 schedule the policies `vllm_*` follow, and what changed from one to the next.

Each was held against the engine's own scheduler, step by step (docs/oracle.md). State.config.engine_version is a place
in ENGINE_VERSIONS: 0 is the newest, which is also what policies without this parameter follow. The other constants are
the place of the last release that had the older rule, so that `engine_version >= RULE` asks whether it is in force.
"""

import re

from ooco_gym.errors import UserError

ENGINE_VERSIONS = (
    "0.33.0", "0.32.0", "0.31.0", "0.30.0", "0.29.0", "0.28.0", "0.27.1", "0.27.0", "0.26.0", "0.25.1", "0.25.0",
    "0.24.0", "0.23.0", "0.22.1", "0.22.0", "0.21.0", "0.20.2", "0.20.1", "0.20.0", "0.19.1", "0.19.0", "0.18.1",
    "0.18.0", "0.17.1", "0.17.0", "0.16.0", "0.15.1", "0.15.0", "0.14.1", "0.14.0", "0.13.0", "0.12.0",
)
# Cards of 160 GiB and more have a larger token budget of their own, from this release on.
LARGEST_CARDS = ENGINE_VERSIONS.index("0.28.0")
# A running request that preempts itself (by priority) ends the pass over the running ones; now the pass goes on.
SELF_PREEMPTION_ENDS_PASS = ENGINE_VERSIONS.index("0.32.0")
# Freed blocks are taken again in the order in which they were freed; now those that hold nothing come first.
FREED_IN_ORDER = ENGINE_VERSIONS.index("0.23.0")
# A waiting request is admitted where its first chunk fits; now its whole context must.
CHUNK_MUST_FIT = ENGINE_VERSIONS.index("0.18.1")


def engine_version_of(version: str) -> str:
    """Whose schedule stands for a release of vLLM: its own, else the newest known one that is not newer.

    Raises:
        UserError: it is older than all known ones, or not written as a version.
    """
    release = version.partition("+")[0]
    if release in ENGINE_VERSIONS:
        return release
    known = [one for one in ENGINE_VERSIONS if _numbers(one) <= _numbers(release)]
    if not known:
        raise UserError(f"vLLM {version} has no schedule of ours to stand beside it: expected {ENGINE_VERSIONS[-1]} or "
                        "newer")
    return known[0]


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version)[:3]))
