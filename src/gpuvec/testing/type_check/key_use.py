"""Checks that compiled code only draws with its key, so that no result depends on the row, the episode or the seed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba import types
from numba.core import ir

from gpuvec.random import Key
from gpuvec.testing.reference.checked_draws import KEY_RULE, OWN_KEY

READABLE = "step"  # the field of a key that author code may read


def key_fault(value: ir.Inst, kind: types.Type, kind_of: Callable[[ir.Var], types.Type]) -> str | None:
    """Returns what is wrong with the key in an assigned value; None if nothing is.

    The types of compiled code show every use of a key, even in a branch that no run enters.

    Args:
        value: the value of an assignment in Numba's intermediate representation.
        kind: the type of the value.
        kind_of: returns the type of a variable.
    """
    if not isinstance(value, ir.Expr):
        return None
    if value.op == "call":
        callee = kind_of(value.func)
        if _is_key(kind) and not isinstance(callee, types.Dispatcher):
            return OWN_KEY
        passes_key = any(_is_key(kind_of(argument)) for argument in value.args)
        return f"passes the key to {callee}, {KEY_RULE}" if passes_key and not isinstance(callee, types.Dispatcher) else None
    if value.op in ("build_tuple", "cast", "phi") or not any(_is_key(kind_of(v)) for v in value.list_vars()):
        return None
    if value.op == "getattr":
        return None if value.attr == READABLE else f"reads {value.attr} of the key, {KEY_RULE}"
    if value.op == "static_getitem":
        return f"reads element {value.index} of the key, {KEY_RULE}"
    return f"{'compares' if value.op == 'binop' else 'reads all elements of'} the key, {KEY_RULE}"


def _is_key(kind: Any) -> bool:
    return isinstance(kind, types.BaseNamedTuple) and kind.instance_class is Key
