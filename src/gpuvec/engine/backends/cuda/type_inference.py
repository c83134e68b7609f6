"""Changes of numba-cuda's inference of types, by which a function of this package is read once.

`numba_cuda`, which alone imports numba-cuda, applies them.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import wraps
from types import BuiltinFunctionType
from typing import Any

from gpuvec.engine.compiler.functions import has_plain_values
from gpuvec.engine.compiler.pass_pipeline import has_loops
from gpuvec.engine.compiler.types import NumbaModule, NumbaType


def infer_functions_without_loops_once(inferer_class: Any) -> None:
    """Makes numba-cuda infer the types of a function of this package in one pass, if all types are known after it.

    Numba infers the types of all statements again until no type changes. Without loops each statement follows all statements
    that define its variables, so that a second pass changes no type.

    Args:
        inferer_class: numba-cuda's class `TypeInferer`.
    """
    propagate, refine = inferer_class.propagate, inferer_class.propagate_refined_type

    @wraps(propagate)
    def propagate_once(self: Any, raise_errors: bool = True) -> Any:
        self._has_refined_types = False
        if has_plain_values(self.func_ir.func_id.func) and not has_loops(self.func_ir.blocks):
            errors = self.constraints.propagate(self)
            are_known = all(v.type is not None and v.type.is_precise() for v in self.typevars.values())
            if are_known and not errors and not self._has_refined_types:
                return None
        return propagate(self, raise_errors)

    @wraps(refine)
    def note_and_refine(self: Any, variable: str, kind: NumbaType) -> None:
        # A variable gets a type from a later statement, as an empty list gets that of its items.
        if variable in self.refine_map:
            self._has_refined_types = True
        refine(self, variable, kind)

    inferer_class.propagate, inferer_class.propagate_refined_type = propagate_once, note_and_refine


class StatementWarnings(AbstractContextManager[None]):
    """A context of the statements of a function, which stores the line of each warning in place of Numba's `WarningsFixer`.

    Args:
        recorded: the warnings of all statements so far, to which Python appends.
    """

    def __init__(self, recorded: list[warnings.WarningMessage]) -> None:
        self._recorded, self._line = recorded, ("", 0)
        self.lines: list[tuple[str, int]] = []

    def catch_warnings(self, filename: str, lineno: int) -> StatementWarnings:
        """Returns the context of a statement.

        Args:
            filename: the file of the statement.
            lineno: its line.
        """
        self._line = filename, lineno
        return self

    def __exit__(self, *error: object) -> None:
        """Stores the line for each warning of the statement."""
        self.lines += [self._line] * (len(self._recorded) - len(self.lines))


def record_warnings_once(network_class: Any) -> None:
    """Makes numba-cuda set the filters of warnings once for all statements of a function, and not for each.

    Args:
        network_class: numba-cuda's class `ConstraintNetwork`.
    """
    propagate = network_class.propagate

    @wraps(propagate)
    def propagate_and_record(self: Any, inferer: Any) -> Any:
        fixer = inferer.warnings
        with warnings.catch_warnings(record=True) as recorded:
            warnings.simplefilter("always", fixer._category)
            inferer.warnings = statements = StatementWarnings(recorded)
            try:
                errors = propagate(self, inferer)
            finally:
                inferer.warnings = fixer
        for warning, line in zip(recorded, statements.lines, strict=True):
            with fixer.catch_warnings(*line):
                warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
        return errors

    network_class.propagate = propagate_and_record


def look_up_functions_first(context_class: Any, intrinsic_class: type) -> None:
    """Makes numba-cuda look up built-in functions and intrinsics before it asks what data they are.

    Each operator in a function is a built-in function. numba-cuda, and then Numba, search for an interface of arrays and for a
    function of a C library in it, and raise an error.

    Args:
        context_class: numba-cuda's class of typing contexts.
        intrinsic_class: numba-cuda's class of intrinsics.
    """
    resolve: Callable[[Any, Any], NumbaType] = context_class.resolve_value_type

    @wraps(resolve)
    def resolve_value_type(self: Any, value: Any) -> NumbaType:
        if isinstance(value, BuiltinFunctionType | intrinsic_class):
            kind = self._get_global_type(value)
            if kind is not None:
                return kind
        return resolve(self, value)

    context_class.resolve_value_type = resolve_value_type


def omit_texts_of_statements(lowering: NumbaModule) -> None:
    """Makes numba-cuda omit the text of each statement, which it makes for a message that it prints on request alone.

    Args:
        lowering: numba-cuda's module `lowering`, in which nothing else is converted to a text.
    """
    lowering.str = lambda statement: str(statement) if lowering.config.DEBUG_JIT else ""


def compute_sizes_once(context_class: Any) -> None:
    """Makes numba-cuda compute the size of each LLVM type once.

    It requests the size of each variable with a name, even without debug information, and LLVM parses a module for each.

    Args:
        context_class: numba-cuda's class of contexts that generate code.
    """
    compute_size: Callable[[Any, Any], int] = context_class.get_abi_sizeof
    sizes: dict[str, int] = {}

    @wraps(compute_size)
    def get_abi_sizeof(self: Any, kind: Any) -> int:
        text = str(kind)
        if text not in sizes:
            sizes[text] = compute_size(self, kind)
        return sizes[text]

    context_class.get_abi_sizeof = get_abi_sizeof
