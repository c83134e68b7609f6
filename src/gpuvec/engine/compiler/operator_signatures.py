"""The signatures of operators, which Numba infers once for each combination of types.

For each operator in a function, Numba tries some thirty implementations, most of them for strings, dates and sets, and computes
the hash of all compiler options for each. That was up to a third of the time to compile a kernel.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from gpuvec.engine.compiler.static_arrays import is_static
from gpuvec.engine.compiler.types import NumbaType, Signature

NUM_SIGNATURES = 4096  # some hundred for an environment

Resolve = Callable[[Any, Any, tuple[NumbaType, ...], dict[str, NumbaType]], Signature | None]


def infer_operators_once(resolve_function_type: Resolve) -> Resolve:
    """Wraps the method `resolve_function_type` of a class of typing contexts.

    A signature is stored if it depends on the types alone: that of a function of the module `operator` for numbers, and of an
    access to an array of constant shape. A function to which an implementation is added gets another Numba type.

    Args:
        resolve_function_type: takes the context, the Numba type of a function, and the types of its arguments.
    """
    from numba.core import types
    from numba.core.errors import TypingError

    def is_number(kind: NumbaType) -> bool:
        return isinstance(kind, types.Number | types.Boolean)

    def is_index(kind: NumbaType) -> bool:
        return all(map(is_number, kind.types)) if isinstance(kind, types.BaseTuple) else is_number(kind)

    def depends_on_types_alone(function: Any, args: tuple[NumbaType, ...], kws: dict[str, NumbaType]) -> bool:
        if kws or not args or not isinstance(function, types.Function):
            return False
        if getattr(function.typing_key, "__module__", None) != "_operator":
            return False
        return (is_number(args[0]) or is_static(args[0])) and all(map(is_index, args[1:]))

    @lru_cache(NUM_SIGNATURES)
    def infer(context: Any, function: Any, args: tuple[NumbaType, ...]) -> Signature | None:
        return resolve_function_type(context, function, args, {})

    def resolve(context: Any, function: Any, args: Any, kws: dict[str, NumbaType]) -> Signature | None:
        if depends_on_types_alone(function, args, kws):
            # Numba compiles a power by the value of its exponent, all other operators by the types that literals share.
            is_power = function.typing_key in (operator.pow, operator.ipow)
            try:
                return infer(context, function, tuple(args) if is_power else tuple(map(types.unliteral, args)))
            except TypingError:
                pass  # The same error follows, with the literals of the source in its message.
        return resolve_function_type(context, function, args, kws)

    return resolve
