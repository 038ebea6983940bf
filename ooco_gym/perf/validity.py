"""Does a run stay within the sizes that a chip's figures were fitted on? If not, in which sentence is it said?"""

from __future__ import annotations

import warnings
from collections.abc import Iterable

from ooco_gym.perf.deployment import Deployment
from ooco_gym.perf.timing.measured import unmeasured

_said: set[str] = set()


def validity_warnings(deployment: Deployment, *, max_batch: float | None = None, max_tokens: float | None = None,
                      max_context: float | None = None) -> list[str]:
    """Says where a run leaves what is known of its chip.

    Args:
        deployment: the instance.
        max_batch: largest decode batch of the run, in requests; None leaves it out, as below.
        max_tokens: most tokens of one iteration.
        max_context: most tokens of one request's context.

    Returns:
        A sentence for each size beyond the chip's `validity`, for a tensor-parallel degree that was not measured,
        and, with `timing=measured`, for operators that the tables lack.
    """
    chip, valid = deployment.chip, deployment.chip.validity
    found = []
    if valid:
        sizes = (("a decode batch", max_batch, valid.max_batch, "requests"),
                 ("an iteration", max_tokens, valid.max_tokens, "tokens"),
                 ("a context", max_context, valid.max_context, "tokens"))
        found = [f"chip '{chip.name}': its figures were fitted up to {name} of {limit:,} {unit}; this run reaches "
                 f"{size:,.0f}, where times are extrapolated"
                 for name, size, limit, unit in sizes if size is not None and limit is not None and size > limit]
        if valid.tp and deployment.tp not in valid.tp:
            degrees = ", ".join(str(tp) for tp in valid.tp)
            found.append(f"chip '{chip.name}': its figures were fitted for tp={degrees}; tp={deployment.tp} is "
                         "extrapolated")
    if deployment.timing == "measured":
        missing = unmeasured(deployment.shard)
        roofline = "extended" if chip.extended else "ooco"
        if missing:
            found.append(f"chip '{chip.name}': not measured for model '{deployment.model.name}' at "
                         f"tp={deployment.tp}, so timing={roofline} stands in: {', '.join(missing)}")
    return found


def warn_once(sentences: Iterable[str]) -> None:
    """Gives each sentence as a `UserWarning`, once in a process, whatever size the run reaches."""
    for sentence in sentences:
        what = sentence.partition("; this run reaches")[0]
        if what not in _said:
            _said.add(what)
            warnings.warn(sentence, UserWarning, stacklevel=2)
