"""Checks a document against a JSON Schema: the part of the language that the schema of bundles is written in.

The library `jsonschema` needs longer to import than a whole engine's policy may take; a test compares both on manifests
that were damaged at random.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

from ooco_gym.errors import is_number

_KINDS: dict[str, Any] = {"object": dict, "array": list, "string": str, "boolean": bool}
_WORDS = {"object": "a mapping", "array": "a list", "string": "text", "number": "a number", "integer": "a whole number"}
KNOWN = frozenset({  # what a schema may say; the words after $schema mean nothing to a check
    "type", "required", "properties", "additionalProperties", "propertyNames", "items", "minItems", "maxItems", "enum",
    "pattern", "minimum", "maximum", "exclusiveMinimum", "$ref", "$defs", "$schema", "$id", "title", "description"})


def problems(value: Any, schema: Mapping[str, Any], root: Mapping[str, Any] | None = None, place: str = ""
             ) -> Iterator[str]:
    """What is wrong with a document, one phrase after another: `inputs.cluster.shape is 3; expected a list`."""
    root = schema if root is None else root
    if "$ref" in schema:
        schema = {**root["$defs"][schema["$ref"].rsplit("/", 1)[1]], **schema}
    kind = schema.get("type")
    if kind is not None and not _is(value, kind):
        yield f"{_named(place)} is {_shown(value)}; expected {_WORDS[kind]}"
        return
    yield from _plain(value, schema, place)
    if isinstance(value, dict):
        yield from _mapping(value, schema, root, place)
    elif isinstance(value, list):
        if not schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", math.inf):
            yield (f"{_named(place)} has {len(value)} entries; expected {schema.get('minItems', 0)} to "
                   f"{schema.get('maxItems', 'any number')}")
        for index, one in enumerate(value):
            yield from problems(one, schema.get("items", {}), root, f"{place}[{index}]")


def _plain(value: Any, schema: Mapping[str, Any], place: str) -> Iterator[str]:
    if "enum" in schema and value not in schema["enum"]:
        yield f"{_named(place)} is {_shown(value)}; expected one of: {', '.join(map(str, schema['enum']))}"
    if "pattern" in schema and isinstance(value, str) and not re.search(schema["pattern"], value):
        yield f"{_named(place)} is {_shown(value)}; expected the form {schema['pattern']}"
    if _is(value, "number"):
        low, high, above = (schema.get(key) for key in ("minimum", "maximum", "exclusiveMinimum"))
        if low is not None and value < low:
            yield f"{_named(place)} is {_shown(value)}; expected at least {low}"
        if high is not None and value > high:
            yield f"{_named(place)} is {_shown(value)}; expected at most {high}"
        if above is not None and value <= above:
            yield f"{_named(place)} is {_shown(value)}; expected more than {above}"


def _mapping(value: Mapping[str, Any], schema: Mapping[str, Any], root: Mapping[str, Any], place: str
             ) -> Iterator[str]:
    inside = f"{place}." if place else ""
    for key in schema.get("required", ()):
        if key not in value:
            yield f"lacks the key '{inside}{key}'"
    others = schema.get("additionalProperties", {})
    for key, one in value.items():
        yield from problems(key, schema.get("propertyNames", {}), root, f"{_named(place)}, a name in it,")
        yield from problems(one, schema.get("properties", {}).get(key, others), root, f"{inside}{key}")


def _is(value: Any, kind: str) -> bool:
    if kind in _KINDS:
        return isinstance(value, _KINDS[kind])
    return is_number(value) and (kind == "number" or isinstance(value, int) or float(value).is_integer())


def _named(place: str) -> str:
    return place or "the document"


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}…"
