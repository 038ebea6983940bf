"""All-reduce by kind of link (`conf/link/*.yaml`): what counts for a chip whose own was not measured."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any

from ooco_gym import resources
from ooco_gym.errors import UserError

if TYPE_CHECKING:
    from ooco_gym.perf.specs import ChipSpec


@dataclass(frozen=True)
class Link:
    """A kind of link between the chips of an instance.

    Attributes:
        name: of the file in `conf/link`.
        title: in words.
        peak_bytes_per_s: datasheet, one direction; rates go with a chip's own `peak_link_bytes_per_s`.
        nearest: whether it may stand for a chip that names no link.
        measured: whether the figures were; published or assumed ones otherwise (`sources` says which).
        chips: chips of ours on which they were measured.
        elsewhere: the kind that is assumed of a machine that was not measured, where boards of the same chip may lack
            what this kind needs (peer-to-peer access); '' for itself.
        ranks: (latency in seconds, bytes a second) by number of chips, in order: an all-reduce of `x` bytes over `n`
            chips takes latency + 2 (n - 1) / n * x / rate.
    """

    name: str
    title: str
    peak_bytes_per_s: float
    nearest: bool
    measured: bool
    chips: tuple[str, ...]
    ranks: tuple[tuple[int, float, float], ...]
    elsewhere: str = ""

    def allreduce(self, chips: int, peak_bytes_per_s: float) -> tuple[float, float]:
        """Latency and rate over so many chips: those of the largest measured number that is not above it.

        Args:
            chips: of an instance.
            peak_bytes_per_s: of the chip's own link, which scales the rate.

        Returns:
            (seconds, bytes a second).
        """
        _, latency, rate = max([one for one in self.ranks if one[0] <= chips], default=self.ranks[0])
        return latency, rate * peak_bytes_per_s / self.peak_bytes_per_s


@cache
def list_links() -> tuple[str, ...]:
    """Names of the kinds in `conf/link`."""
    return tuple(resources.names("link"))


@cache
def load_link(name: str) -> Link:
    """A kind of link by name.

    Raises:
        UserError: there is none of that name.
    """
    values: Mapping[str, Any] = resources.load_yaml("link", name)
    ranks = sorted((int(number), float(one["latency_s"]), float(one["bytes_per_s"]))
                   for number, one in values["ranks"].items())
    return Link(str(values["name"]), str(values["title"]), float(values["peak_bytes_per_s"]), bool(values["nearest"]),
                bool(values["measured"]), tuple(values["chips"]), tuple(ranks), str(values.get("elsewhere", "")))


def check_link(name: str, where: str) -> None:
    """Refuses a link that is none of ours.

    Raises:
        UserError: says which there are.
    """
    known = list_links()
    if name and name not in known:
        raise UserError(f"{where}: field 'link' must be one of {', '.join(known)}, got '{name}'")


@cache
def link_of(chip: ChipSpec) -> Link:
    """The kind that a chip names, or the one whose datasheet is nearest to the chip's, by ratio."""
    if chip.link:
        return load_link(chip.link)
    kinds = [one for one in map(load_link, list_links()) if one.nearest]
    return min(kinds, key=lambda one: abs(math.log(one.peak_bytes_per_s / chip.peak_link_bytes_per_s)))


@cache
def with_allreduce(chip: ChipSpec, chips: int) -> ChipSpec:
    """The chip with an all-reduce over so many chips: its own where it has one, otherwise its link's."""
    if chip.allreduce_bytes_per_s:
        return chip
    latency, rate = link_of(chip).allreduce(chips, chip.peak_link_bytes_per_s)
    return replace(chip, allreduce_bytes_per_s=rate, allreduce_latency_s=latency)


def allreduce_remark(chip: ChipSpec, chips: int) -> str:
    """Says in one sentence which all-reduce stands in for one that was not measured; '' where it was."""
    if chip.allreduce_bytes_per_s:
        return ""
    link = link_of(chip)
    if chip.name in link.chips:
        return ""
    latency, rate = link.allreduce(chips, chip.peak_link_bytes_per_s)
    why = "" if chip.link else ", the nearest by peak_link_bytes_per_s"
    where = f"measured on {', '.join(link.chips)}" if link.chips else "measured" if link.measured else "not measured"
    return (f"chip '{chip.name}': its all-reduce was not measured: {1e6 * latency:.1f} µs and {1e-9 * rate:.1f} GB/s "
            f"over {chips} chips are those of link '{link.name}' ({link.title}; {where}{why}); to measure it, or take "
            "another link: docs/timing.md, 'All-reduce'")
