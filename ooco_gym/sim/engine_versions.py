"""vLLM releases whose V1 schedule the policies `vllm_*` follow, and the changes between them.

Each was compared with the engine's own scheduler, step by step (docs/oracle.md).
State.config.engine_version is an index in ENGINE_VERSIONS; 0 is the newest, which policies without
this parameter follow. Each constant below is the index of the last release with an older rule, so
`engine_version >= RULE` tells whether the older rule applies.
"""

import re

from ooco_gym.errors import UserError

ENGINE_VERSIONS = (
    "0.33.0", "0.32.0", "0.31.0", "0.30.0", "0.29.0", "0.28.0", "0.27.1", "0.27.0", "0.26.0", "0.25.1", "0.25.0",
    "0.24.0", "0.23.0", "0.22.1", "0.22.0", "0.21.0", "0.20.2", "0.20.1", "0.20.0", "0.19.1", "0.19.0", "0.18.1",
    "0.18.0", "0.17.1", "0.17.0", "0.16.0", "0.15.1", "0.15.0", "0.14.1", "0.14.0", "0.13.0", "0.12.0",
)
# Cards of 160 GiB and more have a larger token budget from this release on.
LARGEST_CARDS = ENGINE_VERSIONS.index("0.28.0")
# A running request that preempts itself (by priority) ends the pass over running requests; now the
# pass goes on.
SELF_PREEMPTION_ENDS_PASS = ENGINE_VERSIONS.index("0.32.0")
# Freed blocks are reused in the order of release; now empty ones come first.
FREED_IN_ORDER = ENGINE_VERSIONS.index("0.23.0")
# A waiting request is admitted if its first chunk fits; now its whole context must fit.
CHUNK_MUST_FIT = ENGINE_VERSIONS.index("0.18.1")


def engine_version_of(version: str) -> str:
    """Returns the release whose schedule a vLLM version follows: itself, else the newest known
    older one.

    Raises:
        UserError: it is older than all known releases, or not a version.
    """
    release = version.partition("+")[0]
    if release in ENGINE_VERSIONS:
        return release
    known = [one for one in ENGINE_VERSIONS if _numbers(one) <= _numbers(release)]
    if not known:
        raise UserError(f"vLLM {version} is older than the schedules simulated here: expected {ENGINE_VERSIONS[-1]} or "
                        "newer")
    return known[0]


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version)[:3]))
