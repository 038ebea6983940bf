"""Single processor instructions for which numba has no function."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.cpython.unsafe import numbers
from numba.np.arrayobj import make_array

from ooco_gym.compile import intrinsic

LANES = 8  # numbers in a vector register of the widest processors

leading_zeros: Any = numbers.leading_zeros
trailing_zeros: Any = numbers.trailing_zeros


@intrinsic
def prefetch(typing_context, place, offset):
    """Prefetches what is at `offset` bytes in a record, an array or an address."""

    def build(context, builder, signature, arguments):
        pointer, flag = cgutils.voidptr_t, ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [pointer, flag, flag, flag])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        write, keep, data = flag(1), flag(3), flag(1)
        begin = arguments[0]
        if isinstance(signature.args[0], types.Array):
            begin = make_array(signature.args[0])(context, builder, begin).data
        elif isinstance(signature.args[0], types.Integer):
            begin = builder.inttoptr(begin, pointer)
        address = cgutils.pointer_add(builder, begin, arguments[1])
        builder.call(function, [builder.bitcast(address, pointer), write, keep, data])
        return context.get_dummy_value()

    return types.void(place, offset), build


@intrinsic
def bits_of(typing_context, value):
    """Bits of a float64, as int64."""

    def build(context, builder, signature, arguments):
        return builder.bitcast(arguments[0], ir.IntType(64))

    return types.int64(types.float64), build


@intrinsic
def float_of(typing_context, bits):
    """The float64 with these bits."""

    def build(context, builder, signature, arguments):
        return builder.bitcast(arguments[0], ir.DoubleType())

    return types.float64(types.int64), build


@intrinsic
def quotient(typing_context, value, divisor):
    """value / divisor without a check for zero, which would prevent vector code."""

    def build(context, builder, signature, arguments):
        return builder.fdiv(*arguments)

    return types.float64(types.float64, types.float64), build


def stack_floats(size: int) -> Any:
    """Builds a compiled helper that returns float64[size] on its caller's stack, uninitialised.

    The caller must inline functions that it passes them to, or keep them alive until these return.
    """

    def floats(typing_context):
        kind = types.Array(types.float64, 1, "C")

        def build(context, builder, signature, arguments):
            with builder.goto_entry_block():
                memory = builder.alloca(ir.DoubleType(), size=ir.IntType(64)(size))
                memory.align = 64
            array = make_array(kind)(context, builder)
            word = context.get_constant(types.intp, 8)
            context.populate_array(array, data=memory, shape=[context.get_constant(types.intp, size)], strides=[word],
                                   itemsize=word, meminfo=None)
            return getattr(array, "_getvalue")()  # noqa: B009 (llvmlite's name)

        return kind(), build

    return intrinsic(floats)


@intrinsic
def count_below(typing_context, values, first, limit):
    """Number of the LANES numbers of float64[n] from `first` on that are below a limit."""

    def build(context, builder, signature, arguments):
        lanes = ir.VectorType(ir.DoubleType(), LANES)
        data = builder.gep(make_array(values)(context, builder, arguments[0]).data, [arguments[1]])
        loaded = builder.load(builder.bitcast(data, lanes.as_pointer()), align=8)
        one = builder.insert_element(ir.Constant(lanes, ir.Undefined), arguments[2], ir.IntType(32)(0))
        every = ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES)
        limits = builder.shuffle_vector(one, ir.Constant(lanes, ir.Undefined), every)
        bits = builder.bitcast(builder.fcmp_ordered("<", loaded, limits), ir.IntType(LANES))
        return builder.zext(builder.ctpop(bits), ir.IntType(64))

    return types.int64(values, types.int64, types.float64), build


