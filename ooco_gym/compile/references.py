"""Records and references: how the state reaches compiled code.

Numba passes a NamedTuple by value, a word per field of each array: every call would copy some two
hundred words, and unpacking one from Python takes microseconds. So the state is laid out once
(`Handle`), and only its address is passed. A reference's attributes are read where they are used,
and never change.
"""

from __future__ import annotations

from typing import Any, NamedTuple, NoReturn

import numpy as np
from llvmlite import ir
from numba import typeof
from numba.core import cgutils, types
from numba.core.datamodel import models
from numba.core.imputils import lower_getattr_generic
from numba.core.typing.templates import AttributeTemplate
from numba.extending import infer_getattr, register_model

from ooco_gym.compile import intrinsic


class RecordType(types.Record):
    """Numba's type of a `Record`: a pointer to its numbers."""


register_model(RecordType)(models.RecordModel)


class Reference(types.Type):
    """Address of a compiled NamedTuple that outlives the call."""

    def __init__(self, target: Any) -> None:
        self.target = target
        super().__init__(name=f"Reference({target.instance_class.__name__})")


register_model(Reference)(models.OpaqueModel)


@infer_getattr
class ReferenceAttributes(AttributeTemplate):
    """A reference has the attributes of its target."""

    key = Reference

    def generic_resolve(self, value: Reference, attr: str) -> Any:
        if attr in value.target.fields:
            return value.target.types[value.target.fields.index(attr)]
        return None


@lower_getattr_generic(Reference)
def _load(context: Any, builder: Any, kind: Reference, value: Any, attr: str) -> Any:
    place = kind.target.fields.index(attr)
    whole = builder.bitcast(value, context.get_value_type(kind.target).as_pointer())
    return _load_parts(context, builder, kind.target.types[place], cgutils.gep_inbounds(builder, whole, 0, place))


def _load_parts(context: Any, builder: Any, kind: Any, pointer: Any) -> Any:
    """Loads word by word, so that only used words are loaded, and once, as they never change.
    Values known of every contiguous array, such as its last stride, are not loaded."""
    if not isinstance(kind, types.Array):
        return _load_word(builder, pointer)
    assert kind.layout == "C"
    words, last = pointer.type.pointee.elements, kind.ndim - 1  # of meminfo, parent, nitems, itemsize, data, …
    size = context.get_constant(types.intp, _bytes_of(context, kind.dtype))
    shape = [_load_word(builder, cgutils.gep_inbounds(builder, pointer, 0, 5, i)) for i in range(kind.ndim)]
    items = shape[0] if last == 0 else _load_word(builder, cgutils.gep_inbounds(builder, pointer, 0, 2))
    known = [*(ir.Constant(word, None) for word in words[:6]), ir.Constant(words[6], [size] * kind.ndim)]
    known[3] = size
    whole = builder.insert_value(ir.Constant(ir.LiteralStructType(words), known), items, 2)
    whole = builder.insert_value(whole, _load_word(builder, cgutils.gep_inbounds(builder, pointer, 0, 4)), 4)
    for i, word in enumerate(shape):
        whole = builder.insert_value(whole, word, (5, i))
    for i in range(last):
        stride = _load_word(builder, cgutils.gep_inbounds(builder, pointer, 0, 6, i))
        whole = builder.insert_value(whole, stride, (6, i))
    return whole


def _bytes_of(context: Any, kind: Any) -> int:
    return kind.size if isinstance(kind, types.Record) else context.get_abi_sizeof(context.get_data_type(kind))


def _load_word(builder: Any, pointer: Any) -> Any:
    loaded = builder.load(pointer)
    loaded.set_metadata("invariant.load", builder.module.add_metadata([]))
    return loaded


def layout(example: NamedTuple) -> list[tuple[np.dtype, int]]:
    """Returns dtype and dimensions of each array of a `Handle`; 0 dimensions for a record, passed
    by address."""
    return [(array.dtype, 0 if isinstance(typeof(array), RecordType) else array.ndim) for array in example]


class Handle:
    """A NamedTuple of arrays laid out for compiled code; `address` is valid as long as the handle
    lives.

    Raises:
        TypeError: an array differs from the `layout`.
    """

    def __init__(self, value: NamedTuple, kinds: list[tuple[np.dtype, int]]) -> None:
        self.value = value  # its arrays must live as long as the address is used
        words: list[int] = []
        for array, (dtype, dimensions) in zip(value, kinds, strict=True):
            if array.dtype != dtype or array.ndim != max(1, dimensions) or not array.flags.c_contiguous:
                raise TypeError(f"an array of {array.dtype} with {array.ndim} dimensions stands for one of {dtype}")
            data = array.ctypes.data
            # Numba's fields of an array: meminfo, parent, nitems, itemsize, data, shape, strides.
            words += (0, 0, array.size, array.itemsize, data, *array.shape, *array.strides) if dimensions else (data,)
        self._memory = np.array(words, np.int64)
        self.nbytes = self._memory.nbytes
        self.address = int(self._memory.ctypes.data)

    def __reduce__(self) -> NoReturn:
        raise TypeError("a handle is an address in this process: copy or pickle what it was made of")


def reference_at(target: Any) -> Any:
    """Builds a compiled helper that converts the address of a `Handle` (int64) to a reference."""

    @intrinsic
    def value(typing_context, address):
        def build(context, builder, signature, arguments):
            return builder.inttoptr(arguments[0], cgutils.voidptr_t)

        return Reference(target)(types.int64), build

    return value
