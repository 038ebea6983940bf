"""Offline requests: datasets of their own, what they share, and how a workload names them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ooco_gym.cli.commands import PLAIN, read_choice
from ooco_gym.errors import UserError
from ooco_gym.resources import conf_root, load_yaml, names
from ooco_gym.workload import (
    Trace,
    generate,
    load_workload,
    merge,
    offline_trace,
    sharing_ratio,
    split_workload,
    with_dataset,
)

SHARING = [name for name in names("offline") if load_yaml("offline", name).get("sharing")]
PAGE = Path(__file__).parents[2] / "docs" / "workloads.md"


def documented(name: str) -> list[str]:
    """The cells of an offline dataset's row in the docs: its name, mean lengths, sharing ratio, and words."""
    _, _, page = PAGE.read_text(encoding="utf-8").partition("## Offline requests")
    row = re.search(rf"^\| `{name}` \|.*$", page, re.MULTILINE)
    assert row, f"{PAGE.name} says nothing of conf/offline/{name}.yaml"
    return [cell.strip() for cell in row.group().strip("|").split("|")]


def backlog(dataset: str, jobs: int, seed: int = 1, **more: Any) -> Trace:
    return offline_trace({"mode": "backlog", "jobs": jobs, "dataset": dataset, **more}, duration_s=1.0, seed=seed)


@pytest.mark.parametrize("dataset", names("offline"))
def test_a_dataset_has_the_means_that_it_states(dataset: str) -> None:
    means = [float(mean.replace(",", "")) for mean in documented(dataset)[1].split(" / ")]
    traces = [backlog(dataset, 10_000, seed) for seed in range(8)]  # groups are drawn once a seed
    for field, mean in zip(("prompt_tokens", "output_tokens"), means, strict=True):
        found = float(np.mean([getattr(trace, field).mean() for trace in traces]))
        assert found == pytest.approx(mean, rel=0.04), field
    assert not traces[0].online.any()


@pytest.mark.parametrize("dataset", SHARING)
def test_the_stated_sharing_ratio_of_a_dataset_is_measured_back(dataset: str) -> None:
    stated = load_yaml("offline", dataset)["sharing"]["ratio"]
    assert documented(dataset)[2] == str(stated)
    assert sharing_ratio(backlog(dataset, 40_000)) == pytest.approx(stated, abs=0.015)


def test_what_echo_states_of_loogle_is_measured_on_its_1951_requests() -> None:
    found = sharing_ratio(backlog("loogle_short", 1951))
    assert found is not None and 0.80 < found < 0.9


def test_brosss_moments_are_those_of_its_table() -> None:
    table = {"bros_sharegpt": (222.76, 256.36, 234.51, 268.50), "bros_lmsys": (90.50, 148.52, 237.04, 228.21)}
    for name, expected in table.items():
        trace = load_workload(name, duration_s=100_000.0, seed=1)
        found = [f(getattr(trace, side)) for side in ("prompt_tokens", "output_tokens") for f in (np.mean, np.std)]
        assert found == pytest.approx(expected, rel=0.02)
        assert np.max(trace.prompt_tokens + trace.output_tokens) <= 2048, "OPT's context"


@settings(deadline=None, max_examples=20)
@given(st.sampled_from(["rate", "jobs", "backlog"]), st.integers(0, 99), st.integers(1, 60))
def test_a_request_is_the_same_in_every_mode_and_at_every_rate(mode: str, seed: int, jobs: int) -> None:
    many = backlog("loogle_short", 60, seed)
    some = offline_trace({"mode": mode, "rate": jobs / 10.0, "jobs": jobs, "dataset": "loogle_short"},
                         duration_s=10.0, seed=seed, start_s=5.0)
    first = many.take(slice(0, len(some)), arrival_s=some.arrival_s)
    assert len(some) == jobs and first.equals(some) and some.arrival_s[0] == 5.0


def test_merging_keeps_the_hashes_and_no_two_classes_share() -> None:
    offline = backlog("mmlu", 50)
    bare = generate("azure_conv_2023", duration_s=30.0, seed=1)
    both = merge(bare, offline)
    offsets, values = both.prefix_hashes  # type: ignore[misc]
    held = np.diff(offsets)
    assert (held[both.online] == 0).all() and (held[~both.online] == -(-both.prompt_tokens[~both.online] // 512)).all()
    mine, theirs = np.sort(values), np.sort(offline.prefix_hashes[1])  # type: ignore[index]
    assert np.array_equal(mine, theirs)
    few_shot = generate("few_shot", duration_s=30.0, seed=1)
    sharing = merge(few_shot, offline)
    offsets, values = sharing.prefix_hashes  # type: ignore[misc]
    owner = np.repeat(sharing.online, np.diff(offsets))
    assert not set(values[owner].tolist()) & set(values[~owner].tolist())


@pytest.mark.parametrize(("workload", "online", "dataset"), [
    ("azure_conv_2023+arxiv_summarization", "azure_conv_2023", "arxiv_summarization"),
    ("mmlu+ooc+0.5*azure_conv", "ooc+0.5*azure_conv", "mmlu"),
    ("sharegpt+sharegpt_offline", "sharegpt", "sharegpt"),
    ("ooc+ooc_offline", "ooc", "ooc"),
    ("ooc+sharegpt", "ooc+sharegpt", None),
    ("ooc", "ooc", None),
    ({"mix": "ooc + loogle_long", "scale": 2.0}, {"mix": "ooc ", "scale": 2.0}, "loogle_long"),
    ({"name": "mmlu", "path": "mine.csv"}, {"name": "mmlu", "path": "mine.csv"}, None),
])
def test_a_mix_is_split_into_online_work_and_a_dataset(workload: Any, online: Any, dataset: str | None) -> None:
    assert split_workload(workload) == (online, dataset)


@pytest.mark.parametrize(("call", "said"), [
    (lambda: split_workload("ooc+mmlu+arxiv_summarization"), "names 2 offline datasets .mmlu, arxiv_summarization.;"),
    (lambda: split_workload("mmlu"), "'mmlu' is an offline dataset without an .*azure_conv_2023[+]mmlu"),
    (lambda: split_workload("ooc+0.5*mmlu"), "no rate to weight.*offline.rate"),
    (lambda: load_workload("ooc+mmlu", duration_s=1.0, seed=1), "'mmlu' is an offline dataset.*offline=mmlu"),
    (lambda: with_dataset({"rat": 1.0}, None), "offline: unknown key 'rat' .did you mean 'rate'"),
    (lambda: with_dataset({"dataset": "mmlus"}, None), "mmlus.*mmlu"),
    (lambda: with_dataset({"dataset": "mmlu"}, "bros_be"), "two offline datasets"),
    (lambda: with_dataset({"name": "mmlu"}, "bros_be"), "two offline datasets"),
    (lambda: backlog("mmlu", 5, sharing={"form": "chat", "ratio": 0.5}), "sharing.form='chat' must be one of"),
    (lambda: backlog("mmlu", 5, sharing={"form": "few_shot", "ratio": 2}), "sharing.ratio=2 must be"),
])
def test_mistakes_are_named(call: Any, said: str) -> None:
    with pytest.raises(UserError, match=said):
        call()


def test_a_dataset_leaves_mode_and_rate_alone() -> None:
    given = {**load_yaml("offline", "ooc"), "mode": "backlog", "rate": 3.0, "jobs": 7}
    both = with_dataset(given, "mmlu")
    assert (both["mode"], both["rate"], both["jobs"], both["name"]) == ("backlog", 3.0, 7, "mmlu")
    assert both["lengths"] == load_yaml("offline", "mmlu")["lengths"]
    assert with_dataset(both, None) == both
    assert with_dataset({"dataset": "mmlu", "rate": 2.0}, None)["rate"] == 2.0


def test_the_command_line_takes_a_dataset_as_a_part_of_a_mix_only() -> None:
    roots = [conf_root()]
    for mix in ("ooc+mmlu", "sharegpt+sharegpt_offline"):
        assert read_choice(roots, "workload", mix) == {PLAIN: mix}
    with pytest.raises(UserError, match="'mmlu' is an offline dataset without an .*azure_conv_2023[+]mmlu"):
        read_choice(roots, "workload", "mmlu")
    with pytest.raises(UserError, match="unknown workload 'mmlus'"):
        read_choice(roots, "workload", "ooc+mmlus")
    with pytest.raises(UserError, match="unknown cluster 'mmlu'"):
        read_choice(roots, "cluster", "pair_7b+mmlu")


def test_served_in_groups_mmlu_computes_the_less_that_hygen_s_order_saves() -> None:
    """HyGen 5.3 deducts what each request shares with the one before: nearly nothing in a random order."""
    trace = backlog("mmlu", 5000)
    offsets, values = trace.prefix_hashes  # type: ignore[misc]

    def computed(order: np.ndarray) -> int:
        total, before = 0, np.zeros(0, np.int64)
        for row in order:
            mine = values[offsets[row]:offsets[row + 1]]
            length = min(len(mine), len(before))
            same = int(np.argmin(np.append(mine[:length] == before[:length], False)))
            total += int(trace.prompt_tokens[row]) - 512 * same
            before = mine
        return total

    whole = int(trace.prompt_tokens.sum())
    grouped = computed(np.argsort(values[offsets[:-1]], kind="stable"))
    assert computed(np.arange(len(trace))) > 0.97 * whole
    ratio = load_yaml("offline", "mmlu")["sharing"]["ratio"]
    assert grouped / whole == pytest.approx(1 - ratio, abs=0.02)
