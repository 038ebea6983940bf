"""The state by reference: compiled functions get its address rather than a copy of all its arrays' descriptors.

Numba passes a NamedTuple by value, a word for each field of each array: every call would copy some two hundred, and to
unpack one that comes from Python takes microseconds. So what crosses the border often is laid down once (`Handle`), and
only its address crosses. Attributes of a reference are read where they are used, and never change.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Self

import numpy as np
from llvmlite import ir
from numba import from_dtype
from numba.core import cgutils, types
from numba.core.datamodel import models
from numba.core.imputils import lower_getattr_generic
from numba.core.typing.templates import AttributeTemplate
from numba.extending import NativeValue, infer_getattr, intrinsic, register_model, typeof_impl, unbox

from ooco_gym.compile import jit

CACHE_LINE = 64


class RecordType(types.Record):
    """Numba's type of a `Record`: a pointer to its numbers."""


register_model(RecordType)(models.RecordModel)


class Record(np.ndarray):
    """Numbers of one type with a name each: `record.name` reads and writes one, also in compiled code.

    A subclass declares the names: `class Clock(Record): now_ps: int`. In Python it is an array of as many numbers, to
    copy and to compare; compiled code has a numba record of it, a pointer, and finds each at a constant offset.
    """

    fields: tuple[str, ...]
    compiled: Any  # numba's type

    def __init_subclass__(cls, number: type = np.int64) -> None:
        cls.fields = tuple(cls.__annotations__)
        size, kind = np.dtype(number).itemsize, from_dtype(np.dtype(number))
        fields = [(name, {"type": kind, "offset": size * index}) for index, name in enumerate(cls.fields)]
        cls.compiled = RecordType(fields, size * len(fields), True)
        cls.number = number
        for index, name in enumerate(cls.fields):
            setattr(cls, name, _field(index))

    @classmethod
    def zeros(cls) -> Self:
        """A record of zeros."""
        return aligned_zeros(len(cls.fields), np.dtype(cls.number)).view(cls)

    def as_dict(self) -> dict[str, Any]:
        """The numbers by name."""
        return dict(zip(self.fields, self.tolist(), strict=True))


def _field(index: int) -> property:
    return property(lambda record: record[index], lambda record, value: record.__setitem__(index, value))


@typeof_impl.register(Record)
def _typeof_record(value, context):
    return type(value).compiled


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
    return _load_parts(builder, cgutils.gep_inbounds(builder, whole, 0, place))


def _load_parts(builder: Any, pointer: Any) -> Any:
    """Loads word by word: so that only what is used is loaded, and, as it is the same at any time, once."""
    kind = pointer.type.pointee
    if not isinstance(kind, (ir.BaseStructType, ir.ArrayType)):
        loaded = builder.load(pointer)
        loaded.set_metadata("invariant.load", builder.module.add_metadata([]))
        return loaded
    whole = cgutils.get_null_value(kind)
    for part in range(len(getattr(kind, "elements"))):  # noqa: B009 (of structs and arrays, in llvmlite's own words)
        whole = builder.insert_value(whole, _load_parts(builder, cgutils.gep_inbounds(builder, pointer, 0, part)), part)
    return whole


def _refer(typing_context, value):
    """Reference to a NamedTuple that a compiled function was given, for the time of its call."""

    def build(context, builder, signature, arguments):
        place = cgutils.alloca_once_value(builder, arguments[0])
        address = builder.bitcast(place, cgutils.voidptr_t)
        # What is read through it must not be taken for what stood there before: the address comes out of nowhere.
        kind = ir.FunctionType(cgutils.voidptr_t, [cgutils.voidptr_t])
        return builder.asm(kind, "", "=r,0,~{memory}", [address], True)

    return Reference(value)(value), build


refer: Any = intrinsic(_refer)


def _bring(typing_context, record, offset):
    """Tells the processor that what is at so many bytes of a record is about to be used: it is on the way by then."""

    def build(context, builder, signature, arguments):
        place, flag = cgutils.voidptr_t, ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [place, flag, flag, flag])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        write, keep, data = flag(1), flag(3), flag(1)
        address = cgutils.pointer_add(builder, arguments[0], arguments[1])
        builder.call(function, [builder.bitcast(address, place), write, keep, data])
        return context.get_dummy_value()

    return types.void(record, offset), build


bring: Any = intrinsic(_bring)


def _lay_down(typing_context, value, address):
    """Writes a NamedTuple to where a Handle keeps it."""

    def build(context, builder, signature, arguments):
        kind = context.get_value_type(signature.args[0]).as_pointer()
        builder.store(arguments[0], builder.inttoptr(arguments[1], kind))
        return context.get_dummy_value()

    return types.void(value, types.int64), build


_write: Any = intrinsic(_lay_down)


def reference_at(target: Any) -> Any:
    """Builds a compiled helper that turns the address of a `Handle` (int64) into a reference to its NamedTuple."""

    @intrinsic
    def value(typing_context, address):
        def build(context, builder, signature, arguments):
            return builder.inttoptr(arguments[0], cgutils.voidptr_t)

        return Reference(target)(types.int64), build

    return value


def layer(target: Any) -> Any:
    """Compiles what lays a NamedTuple of this type down, for `Handle`."""

    @jit(types.void(target, types.int64))
    def lay(value, address):
        _write(value, address)

    return lay


class Handle:
    """A NamedTuple of arrays laid down for compiled code: `address` stays valid as long as the handle lives."""

    def __init__(self, value: NamedTuple, lay: Any) -> None:
        self.value = value  # its arrays must live as long as the address is used
        words = sum(5 + 2 * array.ndim for array in value)  # more than enough where it is a record: that is a pointer
        self._room = np.zeros(words, np.int64)
        self.address = int(self._room.ctypes.data)
        lay(value, self.address)

    def __reduce__(self) -> Any:
        raise TypeError("a handle is an address in this process: copy or pickle what it was made of")


def aligned_zeros(shape: int | tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Zeros that begin with a line of the processor's cache."""
    size = int(np.prod(shape)) * dtype.itemsize
    room = np.zeros(size + CACHE_LINE, np.uint8)
    start = -room.ctypes.data % CACHE_LINE
    return room[start : start + size].view(dtype).reshape(shape)


def bytes_of(array: np.ndarray) -> np.ndarray:
    """A contiguous array as it lies in memory: uint8 (n,)."""
    return array.reshape(-1).view(np.uint8)


def copy_of(array: np.ndarray) -> np.ndarray:
    """Copies a contiguous array as bytes: NumPy copies records field by field, some thirty times slower."""
    copy = np.empty_like(array)
    bytes_of(copy)[:] = bytes_of(array)
    return copy
