"""The state by reference: compiled functions get its address rather than a copy of all its arrays' descriptors.

Numba passes a NamedTuple by value, a word for each field of each array: every call would copy some two hundred.
Attributes of a reference are read where they are used, and never change.
"""

from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.core.datamodel import models
from numba.core.imputils import lower_getattr_generic
from numba.core.typing.templates import AttributeTemplate
from numba.extending import infer_getattr, intrinsic, register_model


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
    for part in range(len(kind.elements)):
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
