"""Tables of this project's pages.

Two Ascend 910C chips and Qwen2.5-7B, as pools or as mixed instances, at the load that base P/D
carries alone; the hour of the peak.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from experiments.registry import Paper, Test, figure
from experiments.study import Study
from ooco_gym.study.table import Metric

PAPER = Paper("This project", {"timing": "ooco", "cluster": "pair_7b", "duration_s": 3600.0}, seeds=5,
    quick={"seeds": 2})


def _sustained(study: Study, policies: Mapping[str, str]) -> Metric:
    """Plays and shows policies on three days; returns the offline tokens per second that they sustain."""
    runs = study.play({"workload": ["ooc", "azure_conv", "azure_code"], "policy": policies},
        hold={"sustained": {"search": {"first": 0.4, "factor": 2.0, "last": 32.0, "precision": 0.08}}})
    offline = runs["sustained.total_tokens_per_s"]
    study.show({"offline total tokens/s": offline, "offline requests/s": runs["sustained.rate"],
        "late": runs["online.violation_rate"]}, kind="bars", x="workload", series="policy")
    return offline


@figure(PAPER, "OOCO and slack on pools", "The table of docs/capacity.md",
        "docs/capacity.md, 20 seeds of four hours and tuned policies; here as they ship",
        why="On azure_conv slack, OOCO that interrupts late requests alone and online priority are level within the "
            "search's precision of 8 %.")
def capacity(study: Study) -> Iterator[Test]:
    """slack sustains at least what tuned OOCO does, and more than online priority, on each of three days."""
    offline = _sustained(study, {"slack": "slack", "OOCO": "ooco",
        "OOCO, interrupts late ones alone": "ooco:interrupt=slack", "online priority": "online_priority",
        "base P/D": "base_pd"})
    yield Test("slack over the better of OOCO's two where that is least",
        offline.ratio({"policy": "slack"}, {"policy": ["OOCO", "OOCO, interrupts late ones alone"]}, take="least"),
        (0.97, None), (0.9, None))
    yield Test("slack over online priority where that is least",
        offline.ratio({"policy": "slack"}, {"policy": "online priority"}, take="least"), (1.0, None), (0.9, None))


@figure(PAPER, "The field on mixed instances", "The table of docs/field.md",
        "docs/field.md, 20 seeds and tuned policies; here as they ship")
def field(study: Study) -> Iterator[Test]:
    """The rule deadline sustains 1.1 to 1.4 times the offline load of the best published policy on each of three
    days."""
    offline = _sustained(study, {"deadline": "deadline:offline_share=1.0,chunk_efficiency=0.0,decode_share=0.8",
        "vLLM priority": "vllm_priority:max_num_batched_tokens=4096", "Sarathi++": "sarathi_pp",
        "HyGen": "hygen:latency_budget_s=0.045,chunk_size=2048", "ConServe": "conserve", "Niyama": "niyama"})
    yield Test("deadline over the best other where that is least",
        offline.ratio({"policy": "deadline"}, {"policy": ["vLLM priority", "Sarathi++", "HyGen", "ConServe", "Niyama"]},
            take="least"), (1.05, 1.6), (1.0, None))


@figure(PAPER, "A gate that looks at free memory", "The first table of docs/learned.md",
        "docs/learned.md, 20 seeds of four hours; here the gate's rule of one line and the shipped learned gate")
def gate(study: Study) -> Iterator[Test]:
    """On pools a gate that looks at free memory sustains more than OOCO with interrupts of late requests alone."""
    offline = _sustained(study, {"memory_gate": "memory_gate", "learned_gate": "learned_gate",
        "OOCO": "ooco:interrupt=slack"})
    yield Test("the better gate over OOCO", offline.ratio({"policy": "learned_gate"}, {"policy": "OOCO"}), (1.03, 1.4),
        (1.0, None))
