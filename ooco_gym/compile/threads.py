"""What compiled threads share numbers and wait with: atomic words of memory, a lock and a condition of the system.

Words are int64, named by the address of a block and their place in it. Every access is in one order for all threads.
"""

from __future__ import annotations

import platform
from typing import Any

from llvmlite import ir
from numba.core import cgutils, types

from ooco_gym.compile import intrinsic

_WORD = ir.IntType(64)
_ORDER = "seq_cst"
# The instruction that says so: its name in LLVM, and the number that it takes.
_PAUSE = ("llvm.x86.sse2.pause", ()) if platform.machine() == "x86_64" else ("llvm.aarch64.hint", (1,))


def _place(builder: Any, block: Any, word: Any) -> Any:
    return builder.gep(builder.inttoptr(block, _WORD.as_pointer()), [word])


@intrinsic
def load_word(typing_context, block, word):
    """The word as it stands."""

    def build(context, builder, signature, arguments):
        return builder.load_atomic(_place(builder, *arguments), _ORDER, 8)

    return types.int64(types.int64, types.int64), build


@intrinsic
def store_word(typing_context, block, word, value):
    """Writes a word."""

    def build(context, builder, signature, arguments):
        builder.store_atomic(arguments[2], _place(builder, *arguments[:2]), _ORDER, 8)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), build


@intrinsic
def add_word(typing_context, block, word, value):
    """Adds to a word. Returns what stood there before: no two threads find the same."""

    def build(context, builder, signature, arguments):
        return builder.atomic_rmw("add", _place(builder, *arguments[:2]), arguments[2], _ORDER)

    return types.int64(types.int64, types.int64, types.int64), build


@intrinsic
def pause(typing_context):
    """Tells the processor that a loop waits for another thread."""

    def build(context, builder, signature, arguments):
        name, numbers = _PAUSE
        word = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [word for _ in numbers])
        builder.call(cgutils.get_or_insert_function(builder.module, kind, name), [word(number) for number in numbers])
        return context.get_dummy_value()

    return types.void(), build


def _of_the_system(name: str, arguments: int) -> Any:
    """A function of the C library: it takes addresses and returns a number that says whether it failed."""
    return types.ExternalFunction(name, types.int32(*[types.int64] * arguments))


MUTEX_WORDS, CONDITION_WORDS = 16, 16  # at most, on the systems that there are
begin_mutex, begin_condition = _of_the_system("pthread_mutex_init", 2), _of_the_system("pthread_cond_init", 2)
lock, unlock = _of_the_system("pthread_mutex_lock", 1), _of_the_system("pthread_mutex_unlock", 1)
sleep, wake_all = _of_the_system("pthread_cond_wait", 2), _of_the_system("pthread_cond_broadcast", 1)
give_way = _of_the_system("sched_yield", 0)
