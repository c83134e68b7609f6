"""`range` in compiled code, so that a compiler sees how often a loop turns.

Numba's own keeps the number of turns that are left beside the value, and takes one off where there is one. Of that a GPU's
compiler makes selects of 64 bits, and it does not see that what counts from 0 is never negative, so that each index is looked
at for its sign (design/0024).
"""

from __future__ import annotations

from functools import cache
from typing import Any

COUNTED = "<range>"  # its name in functions to be compiled; Numba does not let a builtin's mean anything else


def counted(*bounds: int) -> range:
    """Stands for `range` in functions to be compiled."""
    return range(*bounds)


counted.__name__ = "range"  # which an author reads in Numba's errors


@cache
def on_cpu() -> Any:
    """`counted`, which Numba knows now."""
    from numba import extending
    from numba.core import cgutils, imputils, types

    register(extending, types, cgutils, imputils)
    return counted


def register(extending: Any, types: Any, cgutils: Any, imputils: Any) -> None:
    """Makes `counted` known to a Numba: its extension interface, types, code generation and `imputils` module.

    By steps of one it is a type of range with a loop of its own, otherwise Numba's.
    """

    class Turns(types.RangeType):  # type: ignore[misc]  # a module given as Any
        def __init__(self, dtype: Any) -> None:
            super().__init__(dtype)
            self.name, self._iterator_type = f"turns_{dtype}", TurnsIterator(dtype)

    class TurnsIterator(types.RangeIteratorType):  # type: ignore[misc]  # likewise
        def __init__(self, dtype: Any) -> None:
            super().__init__(dtype)
            self.name = f"turns_iterator_{dtype}"

    @extending.register_model(Turns)
    class _TurnsModel(extending.models.StructModel):  # type: ignore[misc]  # likewise
        def __init__(self, manager: Any, kind: Any) -> None:
            super().__init__(manager, kind, [(name, kind.dtype) for name in ("start", "stop", "step")])

    @extending.register_model(TurnsIterator)
    class _TurnsIteratorModel(extending.models.StructModel):  # type: ignore[misc]  # likewise
        def __init__(self, manager: Any, kind: Any) -> None:
            dtype = kind.yield_type
            super().__init__(manager, kind, [("value", types.EphemeralPointer(dtype)), ("stop", dtype)])

    @extending.type_callable(counted)
    def typed(context: Any) -> Any:
        def typer(first: Any, second: Any = None, step: Any = None) -> Any:
            bounds = tuple(bound for bound in (first, second, step) if bound is not None)
            if not all(isinstance(bound, types.Integer) for bound in bounds):
                return None  # as in Python; Numba rounds
            found = context.resolve_function_type(context.resolve_value_type(range), bounds, {}).return_type
            return Turns(found.dtype) if step is None else found

        return typer

    @extending.lower_builtin(counted, types.VarArg(types.Any))
    def made(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        dtype = sig.return_type.dtype
        bounds = [context.cast(builder, value, kind, dtype) for value, kind in zip(args, sig.args, strict=True)]
        made = cgutils.create_struct_proxy(sig.return_type)(context, builder)
        made.start = bounds[0] if len(bounds) > 1 else context.get_constant(dtype, 0)
        made.stop = bounds[1] if len(bounds) > 1 else bounds[0]
        made.step = bounds[2] if len(bounds) > 2 else context.get_constant(dtype, 1)
        return made._getvalue()

    @extending.lower_builtin("getiter", Turns)
    def begun(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        turns = cgutils.create_struct_proxy(sig.args[0])(context, builder, args[0])
        begun = cgutils.create_struct_proxy(sig.return_type)(context, builder)
        begun.value, begun.stop = cgutils.alloca_once_value(builder, turns.start), turns.stop
        return begun._getvalue()

    @extending.lower_builtin("iternext", TurnsIterator)
    @imputils.iternext_impl(imputils.RefType.UNTRACKED)
    def turned(context: Any, builder: Any, sig: Any, args: Any, result: Any) -> None:
        iterator = cgutils.create_struct_proxy(sig.args[0])(context, builder, args[0])
        value = builder.load(iterator.value)
        signed = sig.args[0].yield_type.signed
        result.set_valid((builder.icmp_signed if signed else builder.icmp_unsigned)("<", value, iterator.stop))
        result.yield_(value)
        # Past the last turn it may wrap, but then nobody reads it.
        one = value.type(1)
        builder.store(builder.add(value, one, flags=["nsw" if signed else "nuw"]), iterator.value)

    @extending.lower_builtin(len, Turns)
    def length(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        turns = cgutils.create_struct_proxy(sig.args[0])(context, builder, args[0])
        signed = sig.args[0].dtype.signed
        some = (builder.icmp_signed if signed else builder.icmp_unsigned)("<", turns.start, turns.stop)
        count = builder.select(some, builder.sub(turns.stop, turns.start), turns.stop.type(0))
        return context.cast(builder, count, sig.args[0].dtype, sig.return_type)
