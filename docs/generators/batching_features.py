"""Writes `docs/batching_features.md`, the feature contract of engines, from its tables; a test compares.

`python -m docs.generators.batching_features` writes it below the current folder.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from docs.generators.environments import table
from ooco_gym.runtime.features import (
    ACTION,
    BLOCKS_S,
    ENGINE,
    ENTRY,
    HORIZONS_S,
    LOOK_OFFLINE,
    LOOK_ONLINE,
    TARGET,
    VICTIM,
    Contracted,
)
from ooco_gym.sim.memory import MEAN_WEIGHT

NOTE = ("<!-- Written by `python -m docs.generators.batching_features` from the code; a test compares it. "
        "Edit ooco_gym/runtime/features.json instead. -->")
PATH = Path("docs") / "batching_features.md"
_EXAMPLE = '''```python
from ooco_gym.runtime.beliefs import Learned
from ooco_gym.runtime.features import ArrivalRates, Blocks
from ooco_gym.runtime.rules import Engine, Line, Request
from ooco_gym.vllm.replica import Replica

rates, blocks, replica = ArrivalRates(now), Blocks(), Replica()  # .arrived(now) and .missed(now) as they are
engine = Engine(now, [Request(…), …], Line([Request(…), …]), Line([Request(…), …]), …)
cluster = replica.observe(engine, Learned(), rates, blocks, 0.03)  # (44,), float32
```'''


def page() -> str:
    """The Markdown page."""
    return "\n".join([
        NOTE, "# The feature contract of Batching-v0, Admission-v0, Reclaiming-v0 and Serving-v0", "",
        "What a policy of [Batching-v0](envs/batching.md) sees of an engine is computed by one compiled code, from a "
        "simulator's state: that of an episode in training, and in service one that is filled with what runs and waits "
        "in the engine (`ooco_gym.vllm.replica`, which the [scheduler inside vLLM](vllm.md) uses). "
        "`tests/runtime/test_features.py` plays episodes and compares both on every state.", "",
        _EXAMPLE, "",
        "The classes say what describes a request and an engine. Of the waiting requests the first "
        f"{LOOK_ONLINE} online and {LOOK_OFFLINE} offline ones are looked at. Times are seconds of any one clock.", "",
        "The names in the last column are those of vLLM V1 (`vllm/v1/request.py`, `vllm/v1/core`). vLLM has no "
        "deadlines and does not keep the time of a first token in its scheduler; its requests' `priority` can say the "
        "class. Nothing here knows how many tokens a request will generate.", "",
        f"## The engine: {len(ENGINE)} features, `cluster`", "", _rows(ENGINE), "",
        "A running online request is *in time* if its first token met the TTFT SLO. Its next token is due so many "
        "times the TPOT SLO after the first one as it has generated tokens; being ahead of that is its *slack*. A "
        "q-quantile of n values is the one at place ⌊q (n − 1)⌋ in ascending order.", "",
        "Prompts that are priced together count as one of so many tokens, at most `max_num_batched_tokens`.", "",
        f"Rates: exponential averages over {', '.join(map(str, HORIZONS_S))} s. The budget is looked at in blocks of "
        f"{BLOCKS_S[0]} and {BLOCKS_S[1]} s that begin anew: requests that missed an SLO in the block, over the "
        "violation budget times those that arrived in it.", "",
        f"## Each answer: {len(ACTION)} features, of `candidates`", "", _rows(ACTION), "",
        "With the time τ, the shares p and o, and the believed latency D of the online decodes alone, the room is "
        "r = max(0, τ − D). Online prompts take min(p r, their work), offline work max(0, min(o r − that, its work)); "
        "the sum of the three is `step`. In the environment's own table of candidates these stand in columns that are "
        "listed on [its page](envs/batching.md#observation-space).", "",
        f"## Each candidate of [Admission-v0](envs/admission.md): {len(ENTRY)} features, of `candidates`", "",
        "It is asked when all of an iteration is composed but for offline requests that enter it: what of it was "
        "admitted runs by then.", "",
        _rows(ENTRY), "",
        f"A moving mean m becomes m + {MEAN_WEIGHT:g} (n − m) where an offline request finishes with n tokens. Of the "
        "features `step` is max(`before`, min(`limit`, the believed latency with as many tokens as it misses, at most "
        "the token budget)).", "",
        f"## Each candidate of [Reclaiming-v0](envs/reclaiming.md): {len(VICTIM)} features, of `candidates`", "",
        "It is asked before an iteration is composed, where blocks lack: no running request has tokens in it yet. They "
        "lack for the next token of every request that decodes; then, as far as `max_num_batched_tokens` goes, for the "
        f"online prompts under way and the whole contexts of the first {LOOK_ONLINE} online requests that wait, while "
        "there is a seat; less the free ones.", "",
        _rows(VICTIM), "",
        f"## Each engine that a request may go to in [Serving-v0](envs/serving.md): {len(TARGET)} features, of "
        "`candidates`", "",
        "Engines are as their schedulers last left them: tokens of an iteration in progress are not computed yet (vLLM "
        "counts them in `num_computed_tokens` as soon as they are scheduled: take them off). `cluster` is then of the "
        "engine that the router's own rule would choose.", "",
        _rows(TARGET), "",
        "## Scales", "",
        "Scale `log` is log(1 + x) / log(1 + limit), `signed log` the same of |x| with the sign of x, `linear` "
        "x / limit; all are cut at their bounds.", ""])


def _rows(features: Iterable[Contracted]) -> str:
    return table(("", "name", "unit", "scale", "limit", "bounds", "meaning", "vLLM V1"),
                 [(index, f"`{one.name}`", one.unit, one.scale, f"{one.limit:g}", f"{one.low:g} … {one.high:g}",
                   one.meaning, one.vllm) for index, one in enumerate(features)])


def main() -> None:
    """Writes the page below the current folder."""
    (Path.cwd() / PATH).write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
