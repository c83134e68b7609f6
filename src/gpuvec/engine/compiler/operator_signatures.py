"""The signatures of operators, built-in functions and intrinsics, which Numba infers once for each combination of types.

For each operator in a function, Numba tries some thirty implementations, most of them for strings, dates and sets, and computes
the hash of all compiler options for each. It does so when it infers types, and again when it generates code. That was up to a
third of the time to compile a kernel.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import cache, lru_cache
from typing import Any

from gpuvec.engine.compiler.numba_api import DECLARED_INTRINSICS, NumbaApi
from gpuvec.engine.compiler.static_arrays import is_static
from gpuvec.engine.compiler.types import NumbaType, Signature

NUM_TYPES = 4096  # some hundred for an environment

LookUpGlobal = Callable[[Any, Any], NumbaType | None]


def infer_operators_once(numba: NumbaApi, look_up_global: LookUpGlobal) -> LookUpGlobal:
    """Wraps the method `_lookup_global` of a class of typing contexts.

    The wrapped method returns functions that store the signatures that depend on the types of the arguments alone: those of
    operators, built-in functions and intrinsics, for numbers, arrays, and tuples of them. A function to which an implementation
    is added gets another Numba type, whose signatures are inferred again.

    Args:
        numba: the modules of the target.
        look_up_global: takes the context and a Python value, and returns the Numba type that is registered for the value.
    """
    types, function_class = numba.types, _storing_function_class(numba)

    @cache
    def with_stored_signatures(function: NumbaType) -> NumbaType:
        """The type itself, unless the signatures of its Python function do not depend on the options of the compiler."""
        python_function = function.typing_key
        is_operator = getattr(python_function, "__module__", None) == "_operator" or python_function in (bool, len)
        return function_class(function.templates) if is_operator or python_function in DECLARED_INTRINSICS else function

    def look_up(context: Any, value: Any) -> NumbaType | None:
        kind = look_up_global(context, value)
        return with_stored_signatures(kind) if type(kind) is types.Function else kind

    return look_up


def _storing_function_class(numba: NumbaApi) -> Any:
    """Declares the class of the Numba types of functions that store their signatures."""
    from numba.core.errors import TypingError

    types = numba.types

    @lru_cache(NUM_TYPES)
    def is_plain(kind: NumbaType) -> bool:
        """Whether an argument of this type adds nothing to the signature but its type."""
        if isinstance(kind, types.BaseTuple):
            return all(map(is_plain, kind.types))
        if isinstance(kind, types.Array):
            return bool(kind.is_precise())
        return isinstance(kind, types.Number | types.Boolean | types.NumberClass) or is_static(kind)

    class Function(types.Function):  # type: ignore[misc, name-defined]  # Numba has no types
        """A function that stores its signatures. Messages show the name of the class, which is that of Numba's own."""

        def __init__(self, templates: tuple[Any, ...]) -> None:
            super().__init__(templates)
            self._signatures: dict[Any, Signature | None] = {}
            # Numba compiles a power by the value of its exponent, and intrinsics may depend on literals. It compiles all other
            # operators by the types that literals share.
            is_power = self.typing_key in (operator.pow, operator.ipow)
            self._shares_literals = not is_power and self.typing_key not in DECLARED_INTRINSICS

        def augment(self, other: NumbaType) -> NumbaType | None:
            return types.Function(self.templates).augment(other)

        def get_call_type(self, context: Any, args: tuple[NumbaType, ...], kws: dict[str, NumbaType]) -> Signature | None:
            if kws or not all(map(is_plain, args)):
                return super().get_call_type(context, args, kws)
            key = context, *(map(types.unliteral, args) if self._shares_literals else args)
            if key not in self._signatures:
                try:
                    self._signatures[key] = super().get_call_type(context, key[1:], kws)
                except TypingError:
                    # The error has the literals of the source in its message.
                    return super().get_call_type(context, args, kws)
            return self._signatures[key]

    numba.extending.register_model(Function)(numba.data_models.OpaqueModel)
    return Function
