"""Records and references: how the state reaches compiled code.

Numba passes a NamedTuple by value, a word for each field of each array: every call would copy some two hundred, and to
unpack one that comes from Python takes microseconds. So the state is laid down once (`Handle`), and only its
address is passed. Attributes of a reference are read where they are used, and never change.
"""

from __future__ import annotations

from typing import Any, NamedTuple, NoReturn

import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.core.datamodel import models
from numba.core.imputils import lower_getattr_generic
from numba.core.typing.templates import AttributeTemplate
from numba.extending import NativeValue, infer_getattr, register_model, unbox

from ooco_gym.compile import intrinsic, jit


class RecordType(types.Record):
    """Numba's type of a `Record`: a pointer to its numbers."""


register_model(RecordType)(models.RecordModel)


@unbox(RecordType)
def _unbox_record(kind, value, c):
    array = c.context.make_array(types.Array(types.int64, 1, "C"))(c.context, c.builder)
    failed = c.pyapi.numba_array_adaptor(value, c.builder.bitcast(array._getpointer(), c.pyapi.voidptr))
    pointer = c.builder.bitcast(array.data, c.context.get_value_type(kind))
    return NativeValue(pointer, is_error=cgutils.is_not_null(c.builder, failed))


class Reference(types.Type):
    """Address of a compiled NamedTuple that outlives the call."""

    def __init__(self, target: Any) -> None:
        self.target = target
        super().__init__(name=f"Reference({target.instance_class.__name__})")


register_model(Reference)(models.OpaqueModel)


@infer_getattr
class ReferenceAttributes(AttributeTemplate):
    """A reference has the attributes of what it points to."""

    key = Reference

    def generic_resolve(self, value: Reference, attr: str) -> Any:
        """Type of an attribute."""
        if attr in value.target.fields:
            return value.target.types[value.target.fields.index(attr)]
        return None


@lower_getattr_generic(Reference)
def _load(context: Any, builder: Any, kind: Reference, value: Any, attr: str) -> Any:
    place = kind.target.fields.index(attr)
    whole = builder.bitcast(value, context.get_value_type(kind.target).as_pointer())
    return _load_parts(context, builder, kind.target.types[place], cgutils.gep_inbounds(builder, whole, 0, place))


def _load_parts(context: Any, builder: Any, kind: Any, pointer: Any) -> Any:
    """Loads word by word, so that only what is used is loaded, and, as it is the same at any time, once. What is known
    of every array in one piece, such as its last stride, is not loaded at all."""
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


@intrinsic
def refer(typing_context, value):
    """Reference to a NamedTuple that a compiled function was given, for the time of its call."""

    def build(context, builder, signature, arguments):
        place = cgutils.alloca_once_value(builder, arguments[0])
        address = builder.bitcast(place, cgutils.voidptr_t)
        # What is read through it must not be taken for what stood there before: the address comes out of nowhere.
        kind = ir.FunctionType(cgutils.voidptr_t, [cgutils.voidptr_t])
        return builder.asm(kind, "", "=r,0,~{memory}", [address], True)

    return Reference(value)(value), build


@intrinsic
def write_at(typing_context, value, address):
    """Writes a NamedTuple to where a `Handle` keeps it."""

    def build(context, builder, signature, arguments):
        kind = context.get_value_type(signature.args[0]).as_pointer()
        builder.store(arguments[0], builder.inttoptr(arguments[1], kind))
        return context.get_dummy_value()

    return types.void(value, types.int64), build


def layer(target: Any) -> Any:
    """Compiles what lays a NamedTuple of this type down, for `Handle`."""

    @jit(types.void(target, types.int64))
    def lay(value, address):
        write_at(value, address)

    return lay


class Handle:
    """A NamedTuple of arrays laid down for compiled code: `address` stays valid as long as the handle lives."""

    def __init__(self, value: NamedTuple, lay: Any) -> None:
        self.value = value  # its arrays must live as long as the address is used
        words = sum(5 + 2 * array.ndim for array in value)  # more than enough where it is a record: that is a pointer
        self._memory = np.zeros(words, np.int64)
        self.address = int(self._memory.ctypes.data)
        lay(value, self.address)

    def __reduce__(self) -> NoReturn:
        raise TypeError("a handle is an address in this process: copy or pickle what it was made of")


def reference_at(target: Any) -> Any:
    """Builds a compiled helper that turns the address of a `Handle` (int64) into a reference to its NamedTuple."""

    @intrinsic
    def value(typing_context, address):
        def build(context, builder, signature, arguments):
            return builder.inttoptr(arguments[0], cgutils.voidptr_t)

        return Reference(target)(types.int64), build

    return value
