"""Reads the bytes of `policy.onnx` before ONNX Runtime does, distrusting each: no claim of a size is believed.

A graph is protocol buffers: numbered fields, one after another. Here they are walked without the package onnx. Refused
are tensors whose shape is not what they bring, numbers that are not finite, lengths from which an operator would make
arrays far larger than any policy's, operators that draw at random, and operators from elsewhere. Source of the numbers:
`onnx/onnx.proto` of ONNX 1.17.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ooco_gym.errors import UserError

LARGEST_BYTES = 64 * 1024 * 1024  # of one tensor, as of a file
LARGEST_LENGTH = 100_000  # of an axis, a place, a number of repeats; and of what is made of one number for each
_ENDS = (1 << 63) - 2  # beyond any length: the end of a slice that takes all
_DEEPEST, _MOST_AXES = 4, 16  # graphs within graphs; axes of a tensor
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_KINDS = {1: "<f4", 2: "|u1", 3: "|i1", 6: "<i4", 7: "<i8", 9: "|b1", 11: "<f8"}  # of a tensor's numbers
_LISTS = {4: "<f4", 10: "<f8"}  # a tensor's fields with numbers of a fixed length
_KNOWN = {"model": {1, 2, 3, 4, 5, 6, 7, 8, 14}, "graph": {1, 2, 5, 10, 11, 12, 13, 14, 16},
          "node": {1, 2, 3, 4, 5, 6, 7, 8, 9}, "attribute": {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 13, 20, 21},
          "tensor": {1, 2, 4, 5, 7, 8, 9, 10, 12, 13, 14, 16}, "entry": {1, 2}, "value": {1, 2, 3, 4}}
_GROWING = {b"Tile": 1, b"Expand": 1, b"ConstantOfShape": 0, b"Pad": 1}  # and which input says how large
_RANDOM = {b"RandomNormal", b"RandomNormalLike", b"RandomUniform", b"RandomUniformLike", b"Multinomial", b"Bernoulli"}


def check_graph(path: Path) -> list[str]:
    """Checks the bytes of a graph; returns the files beside it in which it says that it keeps weights.

    Raises:
        UserError: it cannot be read, is damaged, or is not one that is run here.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UserError(f"'{path}' cannot be read: {error.strerror or error}") from error
    walk = _Walk()
    try:
        walk.model(memoryview(content))
    except _DamagedError as error:
        raise UserError(f"'{path}' {error}; export the policy again") from None
    return sorted(set(walk.files))


class _DamagedError(Exception):
    """What is wrong with a graph."""


class _Walk:
    """One walk through a graph; `files` are those that it names."""

    def __init__(self) -> None:
        self.files: list[str] = []
        self._growing: set[bytes] = set()  # inputs that say how large an array is made
        self._lengths: dict[bytes, list[int]] = {}  # whole numbers that the graph brings

    def model(self, content: memoryview) -> None:
        graphs = [value for number, value in _fields(content, "model") if number == 7]
        if len(graphs) != 1:
            raise _DamagedError(f"is damaged: it holds {len(graphs)} graphs; expected one")
        self._graph(_message(graphs[0]), 0)

    def _graph(self, content: memoryview, depth: int) -> None:
        if depth > _DEEPEST:
            raise _DamagedError("has graphs within graphs, deeper than is run here")
        for number, value in _fields(content, "graph"):
            if number in (11, 12, 13):
                self._described(_message(value))
            elif number == 1:
                self._node(_message(value), depth)
            elif number == 5:
                name, lengths = self._tensor(_message(value))
                if lengths is not None:
                    self._lengths[name] = lengths
        for name in self._growing:
            lengths = [abs(length) for length in self._lengths.get(name, ()) if length]
            if math.prod(lengths[:_MOST_AXES]) > LARGEST_LENGTH:
                raise _DamagedError(f"makes an array of {lengths[:8]} times what it has, more than any policy does")

    def _node(self, content: memoryview, depth: int) -> None:
        operator, inputs, outputs, lengths = b"", [], [], None
        for number, value in _fields(content, "node"):
            if number in (1, 2):
                (inputs if number == 1 else outputs).append(_name(value))
            elif number in (3, 4):
                operator = _name(value) if number == 4 else operator
            elif number == 5:
                lengths = self._attribute(_message(value), depth) or lengths
            elif number == 7 and bytes(_message(value)) not in (b"", b"ai.onnx"):
                raise _DamagedError(f"has an operator of the domain {_shown(value)}; expected ONNX's own alone")
        if operator in _RANDOM:
            raise _DamagedError(f"has the operator {_shown(memoryview(operator))}, which draws at random")
        if operator in _GROWING and len(inputs) > _GROWING[operator]:
            self._growing.add(inputs[_GROWING[operator]])
        if lengths is not None:
            self._lengths |= dict.fromkeys(outputs, lengths)

    def _attribute(self, content: memoryview, depth: int) -> list[int] | None:
        """Checks an attribute; the whole numbers of a tensor in it, which its node gives on."""
        lengths: list[int] | None = None
        for number, value in _fields(content, "attribute"):
            if number == 1:
                _name(value)
            elif number in (2, 7):
                _check_finite(_numbers(value, "<f4"), "an attribute")
            elif number in (3, 8):
                lengths = _checked_lengths(_varints(value), "an attribute")
            elif number in (5, 10):
                lengths = self._tensor(_message(value))[1]
            elif number in (6, 11):
                self._graph(_message(value), depth + 1)
        return lengths

    def _tensor(self, content: memoryview) -> tuple[bytes, list[int] | None]:
        """Checks a tensor; its name, and the numbers of one of whole numbers."""
        shape, kinds, name, held, beside = [], [], b"", [], False
        for number, value in _fields(content, "tensor"):
            if number == 1:
                shape += _varints(value)
            elif number == 2:
                kinds += _varints(value)
            elif number == 8:
                name = _name(value)
            elif number in (4, 5, 7, 9, 10):
                held.append((number, value))
            elif number == 13:
                beside = True
                self._entry(_message(value))
            elif number == 14:
                beside = beside or _varints(value) != [0]
        where = f"a tensor {_shown(memoryview(name))}"
        if not kinds or kinds[-1] not in _KINDS:
            raise _DamagedError(f"has {where} of a kind of numbers that no policy has")
        kind, count = np.dtype(_KINDS[kinds[-1]]), math.prod(shape[:_MOST_AXES])
        if len(shape) > _MOST_AXES or min(shape, default=0) < 0 or count * kind.itemsize > LARGEST_BYTES:
            raise _DamagedError(f"has {where} that claims shape {shape[:8]}, more than the {LARGEST_BYTES:,} bytes "
                                "that it may have")
        if beside:
            return name, None
        found = _content(held, kind)
        if found.size != count:
            raise _DamagedError(f"has {where} that claims shape {shape[:8]}, {count:,} numbers, and brings "
                                f"{found.size:,}")
        if found.dtype.kind == "f":
            # One number of minus infinity is how attention hides what is not there.
            _check_finite(found[found != -np.inf] if found.size == 1 else found, where)
            return name, None
        return name, _checked_lengths(found.tolist(), where)

    def _described(self, content: memoryview) -> None:
        """An input, an output, or a value: what it claims of its shape, ONNX Runtime holds against what there is."""
        for number, value in _fields(content, "value"):
            if number == 1:
                _name(value)

    def _entry(self, content: memoryview) -> None:
        found = {number: bytes(_message(value)) for number, value in _fields(content, "entry")}
        if found.get(1) == b"location":
            self.files.append(found.get(2, b"").decode("utf-8", "replace"))


# --- Tensors --------------------------------------------------------------------------------------------------------
def _content(held: list[tuple[int, Any]], kind: np.dtype) -> np.ndarray:
    """The numbers that a tensor brings, however they are written."""
    parts: list[np.ndarray] = []
    for number, value in held:
        if number == 9:
            parts.append(_numbers(_message(value), kind))
        elif number in _LISTS:
            parts.append(_numbers(value, _LISTS[number]))
        else:
            parts.append(np.array(_varints(value), np.int64))
    if len({number for number, _ in held}) > 1:
        raise _DamagedError("is damaged: a tensor's numbers are there in two forms")
    return np.concatenate(parts) if parts else np.zeros(0, kind)


def _check_finite(values: np.ndarray, where: str) -> None:
    if not np.isfinite(values).all():
        raise _DamagedError(f"has weights that are not finite, in {where}")


def _checked_lengths(values: list[int], where: str) -> list[int]:
    if any(LARGEST_LENGTH < abs(value) < _ENDS for value in values):
        raise _DamagedError(f"has whole numbers {values[:8]} in {where}, beyond the lengths of any policy")
    return values


# --- Protocol buffers -----------------------------------------------------------------------------------------------
def _fields(content: memoryview, kind: str) -> Iterator[tuple[int, Any]]:
    """The fields of a message: numbers, or parts of the content."""
    place, known = 0, _KNOWN[kind]
    while place < len(content):
        tag, place = _varint(content, place)
        number, wire = tag >> 3, tag & 7
        if number not in known:
            raise _DamagedError(f"is damaged, or not a graph that is run here: its {kind} has a field {number}")
        if wire == _VARINT:
            value, place = _varint(content, place)
            yield number, value
            continue
        length = {_FIXED64: 8, _FIXED32: 4}.get(wire)
        if wire == _BYTES:
            length, place = _varint(content, place)
        if length is None or place + length > len(content):
            raise _DamagedError(f"is damaged: it ends within a {kind}")
        yield number, content[place : place + length]
        place += length


def _varint(content: memoryview, place: int) -> tuple[int, int]:
    """The whole number at a place, and the place after it."""
    value = 0
    for index in range(10):
        if place + index >= len(content):
            break
        byte = content[place + index]
        value |= (byte & 127) << 7 * index
        if byte < 128:
            return value, place + index + 1
    raise _DamagedError("is damaged: a number in it does not end")


def _varints(value: int | memoryview) -> list[int]:
    """Signed whole numbers: one, or as many as are packed."""
    found, place = [value] if isinstance(value, int) else [], 0
    while not isinstance(value, int) and place < len(value):
        one, place = _varint(value, place)
        found.append(one)
    return [one - (1 << 64) if one >= 1 << 63 else one for one in found]


def _numbers(value: int | memoryview, kind: Any) -> np.ndarray:
    """Numbers of a fixed length: one, or as many as are packed."""
    content, size = _message(value), np.dtype(kind).itemsize
    if len(content) % size:
        raise _DamagedError("is damaged: numbers in it are not whole")
    return np.frombuffer(content, kind)


def _message(value: int | memoryview) -> memoryview:
    if isinstance(value, int):
        raise _DamagedError("is damaged: a number stands where a part should be")
    return value


def _name(value: int | memoryview) -> bytes:
    name = bytes(_message(value))
    try:
        name.decode("utf-8")
    except UnicodeDecodeError:
        raise _DamagedError(f"is damaged: a name in it is {name[:60]!r}, which is no text") from None
    return name


def _shown(value: int | memoryview) -> str:
    return repr(bytes(_message(value))[:60].decode("utf-8", "replace"))
