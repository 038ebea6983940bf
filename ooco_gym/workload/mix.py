"""Names of workloads: a name, a path, or a mix of these such as `0.5*ooc+2*azure_code@agent`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ooco_gym.errors import UserError, unknown
from ooco_gym.schema import number
from ooco_gym.workload.classes import split_class
from ooco_gym.workload.generate import list_workloads
from ooco_gym.workload.offline import dataset_name, is_offline_dataset
from ooco_gym.workload.trace import ENDINGS

Source = str | os.PathLike[str] | Mapping[str, Any]
YAML = (".yaml", ".yml")


class MixPart(NamedTuple):
    """One part of a mix: `weight` times the rate of `source`, a name or a path.

    All its requests are of class `class_name`, unless this is None; `stream` keys its random
    numbers.
    """

    source: str
    weight: float
    stream: str
    class_name: str | None = None


def parse_workload(text: str) -> tuple[MixPart, ...]:
    """Parses a mix such as `ooc+azure_conv` or `0.5*ooc+2*azure_code@agent`; a single name is a mix
    of one part.

    `@` precedes the class of a part's requests.

    Raises:
        UserError: an empty part, a weight that is no number >= 0, or an unknown name.
    """
    if not text.strip():
        raise UserError(f"workload is empty; expected a path or one of: {', '.join(list_workloads())}")
    parts: list[MixPart] = []
    for item in _items(text):
        weight_text, star, source = item.rpartition("*")
        source, class_name = split_class(source.strip())
        if not source:
            raise UserError(f"workload '{text}' has an empty part; expected names joined by '+', such as "
                            "'ooc+azure_conv' or '0.5*ooc+azure_code'")
        try:
            given = float(weight_text) if star else 1.0
        except ValueError:
            raise UserError(f"workload '{text}': the weight '{weight_text.strip()}' of '{source}' is not a number; "
                            "expected such as '0.5*ooc+azure_code'") from None
        weight = number(f"the weight of '{source}' in workload '{text}'", given, 0)
        _check_source(source)
        before = sum(part.source == source for part in parts)
        parts.append(MixPart(source, weight, f"{source}#{before + 1}" if before else source, class_name))
    return tuple(parts)


def split_workload(workload: Source) -> tuple[Source, str | None]:
    """Splits a mix into online work and an offline dataset: `azure_conv_2023+arxiv_summarization`.

    The dataset keeps its class (`arxiv_summarization@batch`). A part is an offline dataset if its
    name is in `conf/offline` and not in `conf/workload`, or is `NAME_offline`.

    Args:
        workload: as in `load_workload`.

    Returns:
        (the online part, in the given form; the dataset's name or None).

    Raises:
        UserError: two offline datasets, an offline dataset with a weight, or nothing online.
    """
    if isinstance(workload, Mapping):
        if workload.get("mix") is None or workload.get("path") is not None:
            return workload, None
        online, dataset = split_workload(str(workload["mix"]))
        return (workload, None) if dataset is None else ({**workload, "mix": online}, dataset)
    text = os.fspath(workload)
    items = _items(text)
    found = [item for item in items if is_offline_dataset(_source_of(item))]
    if not found:
        return workload, None
    if len(found) > 1:
        raise UserError(f"workload '{text}' names {len(found)} offline datasets "
                        f"({', '.join(item.strip() for item in found)}); expected one at most")
    dataset = found[0].strip()
    if "*" in dataset:
        raise UserError(f"workload '{text}': the offline dataset in '{dataset}' has no rate to weight; give only its "
                        "name, and its requests a second as offline.rate=…")
    if len(items) == 1:
        raise UserError(f"workload '{text}' is an offline dataset without an online workload; add one, such as "
                        f"'azure_conv_2023+{text}', or with offline={dataset_name(text)}")
    name, class_name = split_class(dataset)
    kept = dataset_name(name) + (f"@{class_name}" if class_name else "")
    return "+".join(item for item in items if item is not found[0]), kept


def from_file(workload: Source) -> bool:
    """Returns whether a workload, as in `load_workload`, is a trace file or a mix with one."""
    if isinstance(workload, Mapping):
        return bool(workload.get("path") or (workload.get("mix") and from_file(str(workload["mix"]))))
    return any(is_trace_file(_source_of(item)) for item in _items(os.fspath(workload)))


def _items(text: str) -> list[str]:
    """Returns the parts of a mix; a file's name may contain a plus."""
    return [text] if is_file(text) else text.split("+")


def _source_of(item: str) -> str:
    """Returns the name or path in a part of a mix."""
    return split_class(item.rpartition("*")[2].strip())[0]


def _check_source(source: str) -> None:
    if is_trace_file(source) or source.endswith(YAML) or source in list_workloads():
        return
    if is_offline_dataset(source):
        raise UserError(f"workload '{source}' is an offline dataset, which has no arrivals of its own: it is for "
                        f"simulations, as offline={dataset_name(source)} or as a part of their workload")
    if "/" in source or os.path.splitext(source)[1]:
        from ooco_gym.workload.table_reader import unreadable

        raise UserError(f"{unreadable(source, FileNotFoundError())}; expected a file, or one of: "
                        f"{', '.join(list_workloads())}")
    raise unknown("workload", source, list_workloads())


def is_trace_file(source: str) -> bool:
    """Returns whether a part of a mix names a trace file, by its extension or because the file exists."""
    if source.lower().endswith(YAML):
        return False
    return source.lower().endswith(ENDINGS) or (("/" in source or "." in source) and is_file(source))


def is_file(text: str) -> bool:
    try:
        return Path(text).is_file()
    except OSError:  # for example a name too long for the file system
        return False
