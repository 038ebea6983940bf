"""Writes the JSON schemas by which editors complete and check YAML files, from the models (`ooco_gym/schema.py`).

`python -m docs.generators.schemas` writes `conf/schema`; a test compares. What holds between several values only a
command checks. A file may extend another one, so that no key is required.
"""

from __future__ import annotations

import ast
import inspect
import json
import math
import os
import re
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union

from agents.learning.algorithms import Agent, DqnAgent
from agents.search.command import CmaAgent
from agents.search.linear import LinearAgent
from docs.generators.pages import ROOT
from ooco_gym.cluster import Cluster
from ooco_gym.envs.config import NOT_ARGUMENTS, EnvironmentKeys
from ooco_gym.perf.chip import ChipSpec
from ooco_gym.perf.engine_clock import EngineClock
from ooco_gym.perf.model import ModelSpec
from ooco_gym.protocol import Slo
from ooco_gym.scenario import Scenario
from ooco_gym.schema import Either, Model, Range, kinds, parts_of
from ooco_gym.workload.classes import RequestClass
from ooco_gym.workload.generate import NOTES, SPEC_KEYS, GeneratorKeys
from ooco_gym.workload.offline import OfflineKeys

NULL = {"type": "null"}
NAMES = {bool: "boolean", str: "string", int: "integer", float: "number", Mapping: "object", dict: "object",
         os.PathLike: "string", type(None): "null", list: "array", tuple: "array"}


def of_kind(kind: Any) -> dict[str, Any]:
    """The schema of an annotation (`ooco_gym.schema.check`)."""
    base, args, rule = parts_of(kind)
    if base in (Union, UnionType):
        return {"anyOf": [of_kind(one) for one in args]}
    if base is tuple:
        return {"type": "array", "items": of_kind(args[0])}
    if isinstance(rule, Either):
        return {"type": sorted({NAMES[one] for one in rule.types}), "description": rule.words}
    if base is Literal:
        return {"enum": [*args]}
    if isinstance(base, type) and issubclass(base, Model):
        return of_model(base)
    schema: dict[str, Any] = {"type": NAMES[base]} if base in NAMES else {}
    if isinstance(rule, Range):
        ends = {"exclusiveMinimum" if rule.above else "minimum": rule.low, "maximum": rule.high}
        schema |= {key: end for key, end in ends.items() if not math.isinf(end)}
        schema |= {"type": [schema["type"], "null"]} if rule.null else {}
        schema["description"] = rule.words(base is int)
    return schema


def of_model(model: type[Model]) -> dict[str, Any]:
    """The schema of a model: its keys with their docstrings."""
    texts, keys = _texts(model), {}
    for key, kind in kinds(model).items():
        keys[key] = of_kind(kind)
        said = [text for text in (texts.get(key), keys[key].pop("description", None)) if text]
        keys[key] |= {"description": "\n\n".join(said)} if said else {}
    return {"type": "object", "properties": keys, "additionalProperties": False}


def _texts(model: type[Model]) -> dict[str, str]:
    """What is said of each field, under `Attributes:` or below it."""
    listed = re.findall(r"^    (\w[\w, ]*): (.+(?:\n        .+)*)", inspect.getdoc(model) or "", re.MULTILINE)
    texts = {name: text for names, text in listed for name in names.split(", ")}
    (node,) = ast.parse(inspect.getsource(model)).body
    for field, below in pairwise(node.body):  # type: ignore[attr-defined]
        if isinstance(field, ast.AnnAssign) and isinstance(below, ast.Expr):
            texts[ast.unparse(field.target)] = ast.literal_eval(below.value)
    return {name: " ".join(text.split()) for name, text in texts.items()}


def group(model: type[Model], *others: str, nulls: bool = False, **further: dict[str, Any]) -> dict[str, Any]:
    """The schema of a group's files: a model's keys, `others` that are read elsewhere, `further` with their schemas;
    with `nulls` null leaves any key to its default."""
    schema = of_model(model)
    keys = {key: {"anyOf": [one, NULL]} if nulls and NULL not in one.get("anyOf", ()) else one
            for key, one in schema["properties"].items()}
    known = {"extends": {"type": "string"}, "name": {"type": "string"}, **{key: {} for key in others}, **further}
    return {**schema, "properties": {**known, **keys}}


def schemas() -> dict[str, dict[str, Any]]:
    """The schema of each group of `conf` that has a model."""
    return {
        "agent": {"anyOf": [group(one) for one in (Agent, DqnAgent, CmaAgent, LinearAgent)]},
        "chip": group(ChipSpec), "cluster": group(Cluster), "engine_clock": group(EngineClock),
        "classes": {"type": "object", "additionalProperties": of_model(RequestClass)},
        "env": group(EnvironmentKeys, *NOT_ARGUMENTS, scenario=of_model(Scenario)), "model": group(ModelSpec),
        "offline": group(OfflineKeys, *NOTES, "class", "dataset", nulls=True), "slo": group(Slo, nulls=True),
        "workload": group(GeneratorKeys, *SPEC_KEYS, nulls=True)}


def documents() -> dict[Path, str]:
    """Every file of `conf/schema` with its text."""
    about = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
    return {ROOT / "conf" / "schema" / f"{name}.json": json.dumps(about | schema, indent=1, ensure_ascii=False) + "\n"
            for name, schema in schemas().items()}


if __name__ == "__main__":
    for path, text in documents().items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
