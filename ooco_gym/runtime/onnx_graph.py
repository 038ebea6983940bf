"""Runs a policy's `policy.onnx`, which may come from anybody, with onnxruntime.

Before it is loaded, the graph is read without the package onnx: it may have only the operators that
`onnx_source` writes, none on constants alone. So it has no loop, and its time does not depend on
the values of inputs. Memory of all graphs in a process is limited by onnxruntime.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from ooco_gym.errors import UserError

OPERATORS = ("Add", "ArgMax", "Cast", "Concat", "Div", "Exp", "Gather", "Identity", "MatMul", "Max", "Min", "Mul",
             "ReduceSum", "Reshape", "Slice", "Sub", "Tanh", "Unsqueeze", "Where")
MOST_NODES, MOST_MEMORY, MOST_BYTES = 1000, 1 << 30, 64 << 20
# Numbers of the fields that are read, in onnx.proto.
_GRAPH, _FUNCTIONS, _NODE, _INITIALIZER, _SPARSE = 7, 25, 1, 5, 15  # of a model; of a graph
_INPUT, _OUTPUT, _OPERATOR, _ATTRIBUTE, _DOMAIN = 1, 2, 4, 5, 7  # of a node
_PLAIN = (1, 2, 3, 4, 7, 8, 13, 20)  # of an attribute: name, numbers, texts, description, type
_NAME, _EXTERNAL, _LOCATION = 8, 13, 14  # of a tensor


class Graph:
    """A loaded graph: a network (`bundle.Network`) whose run another thread may stop."""

    def __init__(self, path: Path, inputs: Sequence[str], outputs: Sequence[str], threads: int) -> None:
        """Loads the graph in a file.

        Raises:
            UserError: onnxruntime is not installed, or the graph has what no exported policy has.
        """
        try:
            import onnxruntime
        except ImportError as error:
            raise UserError("onnxruntime is not installed, which running an exported policy needs; install with: "
                            "pip install 'ooco-gym[export]' (or only: pip install onnxruntime)") from error
        with open(path, "rb") as file:
            content = file.read(MOST_BYTES + 1)
        check_graph(content)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = threads
        options.log_severity_level = 4  # errors are raised, so need no print
        _limit_memory()
        options.add_session_config_entry("session.use_env_allocators", "1")
        self._inputs, self._outputs = inputs, outputs
        self._session: Any = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
        self._options: Any = onnxruntime.RunOptions()
        self._options.log_severity_level = 4

    def __call__(self, *parts: np.ndarray) -> list[np.ndarray]:
        return self._session.run(self._outputs, dict(zip(self._inputs, parts, strict=True)), self._options)

    def stop(self) -> None:
        """Ends a run in another thread at its next operator, with an error."""
        self._options.terminate = True


@cache
def _limit_memory() -> None:
    """Limits the memory of all graphs of this process."""
    import onnxruntime

    ort: Any = onnxruntime  # its stubs lack these
    place = ort.OrtMemoryInfo("Cpu", ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, ort.OrtMemType.DEFAULT)
    ort.create_and_register_allocator(place, ort.OrtArenaCfg({"max_mem": MOST_MEMORY, "arena_extend_strategy": 1}))


def check_graph(content: bytes) -> None:
    """Checks the bytes of an ONNX model.

    Raises:
        UserError: it has another operator than `OPERATORS`, a graph within the graph, a function,
            an operator on constants alone, data in another file, or is too large.
    """
    if len(content) > MOST_BYTES:
        raise UserError(f"the graph has more than {MOST_BYTES >> 20} MiB")
    try:
        model = list(_fields(content))
        if any(number == _FUNCTIONS for number, _ in model):
            raise UserError("the graph has functions of its own, which no exported policy has")
        for number, graph in model:
            if number == _GRAPH:
                _check_nodes(list(_fields(graph)))
    except (IndexError, TypeError, UnicodeDecodeError) as error:
        raise UserError("the graph is no ONNX model") from error


def _check_nodes(graph: Sequence[tuple[int, Any]]) -> None:
    constants, nodes = set(), [list(_fields(value)) for number, value in graph if number == _NODE]
    for number, value in graph:
        tensor = list(_fields(value)) if number == _INITIALIZER else []
        if number == _SPARSE or any(one == _EXTERNAL or (one == _LOCATION and said) for one, said in tensor):
            raise UserError("the graph has constants that are sparse or in another file, which no exported policy has")
        constants |= {name for one, name in tensor if one == _NAME}
    if len(nodes) > MOST_NODES:
        raise UserError(f"the graph has {len(nodes):,} operators; expected at most {MOST_NODES:,}")
    for node in nodes:
        operator = "".join(text.decode() for number, text in node if number == _OPERATOR)
        attributes = [field for number, value in node if number == _ATTRIBUTE for field, _ in _fields(value)]
        other = any(number == _DOMAIN and text for number, text in node)
        if operator not in OPERATORS or other or not set(attributes) <= set(_PLAIN):
            raise UserError(f"the graph has the operator {operator!r}{' of another domain' * other}, or one with a "
                            f"graph or tensor in it; an exported policy has only {', '.join(OPERATORS)}")
        inputs = {name for number, name in node if number == _INPUT}
        if inputs <= constants:
            raise UserError(f"the graph computes {operator} of constants alone, which no exported policy does")


def _fields(message: bytes) -> Iterator[tuple[int, Any]]:
    """Yields the fields of a protobuf message: number, and integer or bytes."""
    place = 0
    while place < len(message):
        key, place = _varint(message, place)
        number, kind = key >> 3, key & 7
        if kind == 0:
            value, place = _varint(message, place)
        else:
            size, place = _varint(message, place) if kind == 2 else ({1: 8, 5: 4}[kind], place)
            value, place = message[place : place + size], place + size
        yield number, value
    if place > len(message):
        raise IndexError


def _varint(message: bytes, place: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[place]
        value, shift, place = value | (byte & 127) << shift, shift + 7, place + 1
        if byte < 128:
            return value, place
        if shift > 63:
            raise IndexError
