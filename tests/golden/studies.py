"""What commands that play many simulations find: comparisons, sustained loads, plans, evaluations, claims, figures,
searches. Their figures, without words and without what depends on the machine; nothing is kept from before."""

from __future__ import annotations

import contextlib
import io
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

from ooco_gym.cli import main
from tests.golden.digests import Digests, digest

LEFT_OUT = {"schema", "notes", "remarks", "question", "limits", "title", "statement", "command", "played", "out",
            "files", "page", "cluster_file", "workers", "threads", "versions", "simulated_anew", "cpu_s", "wall_s",
            "playing_wall_s", "windows_per_s", "simulated_s_per_s", "isolation", "sentence", "ooco_gym",
            "sha256"}
SHORT = ("duration_s=300", "warmup_s=60")
SEARCH = "search={first: 0.5, factor: 2.0, last: 8.0, precision: 0.2}"
CMA = ("agent=cma", "agent.windows=4", "agent.validation.windows=4", "agent.population=4", "agent.halving.first=2",
       "window_s=120", "env.window_s=120", "env.warmup_s=60")
COMMANDS = {
    "compare": ("compare", "policies=[ooco,base_pd,online_priority]", "seeds=3", "workload=azure_conv", *SHORT),
    "compare, tuned": ("compare", "policies=[vllm_priority,deadline]", "seeds=2", "tune=true", *SHORT),
    "compare, a trace": ("compare", "policies=[vllm_priority,deadline,sarathi_pp]", "seeds=1", "workload.path=TRACE"),
    "capacity": ("capacity", "policies=[ooco,base_pd]", "seeds=3", SEARCH, *SHORT),
    "capacity, cells": ("capacity", "policies=[deadline,vllm_priority]", "cells=[azure_conv,sharegpt]", "seeds=2",
                        SEARCH, "tune=[vllm_priority]", "tuning.search={precision: 0.4}", "lead=deadline",
                        "cluster=mixed_7b", *SHORT),
    "capacity, a peak": ("capacity", "only_peak=true", "find_peak=true", "workload=azure_conv", "seeds=2",
                         "peak={precision: 0.1}", *SHORT),
    "plan": ("plan", "policies=[ooco,deadline]", "seeds=2", "online_rate=3", "offline.rate=1", "frontier=2", SEARCH,
             "price_per_chip_hour=2", *SHORT),
    "plan, a batch": ("plan", "policies=[deadline,vllm_priority]", "seeds=1", "workload.path=BATCH", "frontier=2",
                      "classes={offline: {deadline_s: 5}}"),
    "evaluate": ("evaluate", "env=gating", "policies=[ooco,memory_gate,'reserve=0.1','random actions']", "episodes=4",
                 "window_s=120", "warmup_s=60", "shift=all"),
    "headroom": ("headroom", "env=prefillgate", "decisions=5", "episodes=2", "window_s=60", "warmup_s=30",
                 "heuristic=never"),
    "suite": ("suite", "run", "policy=memory_gate", "tasks=[pools_code]", "windows=2"),
    "suite score": ("suite", "score", "policy=deadline", "seed=7", "score.held_out={windows: 2, window_s: 120}"),
    "claim growth": ("claim", "name=growth", "seeds=[1]"),
    "claim router": ("claim", "name=router", "seeds=[950001]"),
    "figure ooco/fig3_prefill": ("figure", "name=ooco/fig3_prefill", "quick=true"),
    "figure echo/fig11": ("figure", "name=echo/fig11", "quick=true"),
    "figure ooco/migration": ("figure", "name=ooco/migration", "quick=true"),
    "search": ("train", "env=gating", "agent.generations=10", *CMA),
    "zoo": ("zoo", "policies=learned_gate", "generations=2", "windows=2", "recipes.learned_gate.agent.windows=9",
            "recipes.learned_gate.agent.validation.windows=9"),
}


SOLVED = ("search", "zoo")  # linear algebra, whose last digits are the processor's


def commands() -> Iterator[tuple[str, list[str]]]:
    """The commands' words by case; traces are made in the present folder."""
    rows = [(at, 300 + 37 * (at % 11), 20 + 13 * (at % 7), ("online", "offline")[at % 3 == 0]) for at in range(120)]
    for name, chosen, gap in (("TRACE", rows, 0.5), ("BATCH", [row for row in rows if row[3] == "offline"], 0.0)):
        lines = [f"{at * gap},{prompt},{output},{kind}" for at, prompt, output, kind in chosen]
        Path(f"{name}.csv").write_text("\n".join(["arrival_s,prompt_tokens,output_tokens,class", *lines]) + "\n")
    for case, words in COMMANDS.items():
        yield case, [word.replace("=TRACE", "=TRACE.csv").replace("=BATCH", "=BATCH.csv") for word in words]


def without_machine(value: Any) -> Any:
    """A summary without words and what depends on the machine, to nine digits: sums of floats may differ beyond."""
    if isinstance(value, float):
        return float(f"{value:.9g}")
    if isinstance(value, dict):
        return {key: without_machine(one) for key, one in value.items() if key not in LEFT_OUT}
    return [without_machine(one) for one in value] if isinstance(value, list) else value


def found(words: list[str], out: str = "OUT") -> dict[str, Any]:
    """The summary of a command, run in the present folder."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        code = main([*words, f"out={out}"])
    if code:
        raise RuntimeError(f"{' '.join(words)}: {said.getvalue()[-2000:]}")
    return without_machine(json.loads((Path(out) / "summary.json").read_text("utf-8")))


@contextlib.contextmanager
def empty_folder() -> Iterator[Path]:
    """An empty present folder, and a cache of results that is in it."""
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder, mock.patch.dict(os.environ, OOCO_GYM_CACHE=f"{folder}/cache"):
        os.chdir(folder)
        try:
            yield Path(folder)
        finally:
            os.chdir(before)


def group(every: int = 1, without: tuple[str, ...] = ()) -> Digests:
    """The digests of every n-th command."""
    answers: Digests = {}
    with empty_folder():
        for case, words in [one for one in commands() if one[0] not in without][::every]:
            answers[case] = {key: digest(value) for key, value in found(words, case.replace(" ", "_")).items()}
    return answers
