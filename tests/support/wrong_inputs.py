"""Inputs that a careless user passes, of all kinds, and the check that what refuses one says so by itself."""

from __future__ import annotations

import importlib
import inspect
import linecache
import os
import re
import reprlib
import traceback
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any

import gymnasium as gym
import numpy as np

import gpuvec
import gpuvec_envs
from gpuvec.errors import GpuvecError

PACKAGES = tuple(f"{Path(package.__file__).parent}{os.sep}" for package in (gpuvec, gpuvec_envs, gym))
CLEAR_TYPES = (ValueError, TypeError, gym.error.Error, GpuvecError, AttributeError, IndexError, NotImplementedError)
SCALARS: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 2**31 - 1, 2**31, -(2**31), 2**32, 2**63, 2**64, 10**30, 10**400,
    0.0, 1.5, -1.5, 1e38, 1e39, -1e39, float("nan"), float("inf"), -float("inf"), 1j,
    "", "x", "1", "view", "reset_mask", "cpu", b"x",
    (), [], {}, set(), (1,), [1, 2], (None,), {"x": 1}, {1: 2}, {None: None}, {1: 2, "x": 3}, {1, 2}, range(3),
    [[1], [1, 2]], ["a", 1],
    slice(2), ..., object(), object, len, lambda: 0, iter(()), NotImplemented,
    np.int64(3), np.uint8(3), np.float32("nan"), np.float64(1e300), np.bool_(True), np.array(5), np.array(True), np.array("x"),
    np.datetime64(1, "s"),
)  # fmt: skip
DTYPES = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint64", "float16", "float32", "float64", "bool", "complex64")
NUMPY_DTYPES = (*DTYPES, ">i4", ">f4", "U3", "S3", "O", "M8[s]", "f4,i4", "float128")
NUMBERS = (0, 1, -1, 7, 127, 255, 1e30, float("nan"), float("inf"), -1e38)


class OnlyDLPack:
    """An array with DLPack's protocol and nothing else."""

    def __init__(self, array: Any) -> None:
        self._array = array

    def __dlpack__(self, **options: Any) -> Any:
        return self._array.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self._array.__dlpack_device__()


class Broken:
    """An object that claims to be an array, whose attributes raise what they like."""

    shape = (3,)
    dtype = np.dtype("float32")

    def __array__(self, *arguments: Any, **options: Any) -> Any:
        raise KeyError("broken")

    def __len__(self) -> int:
        raise IndexError("broken")

    def __index__(self) -> int:
        raise OverflowError("broken")

    def __float__(self) -> float:
        raise ZeroDivisionError("broken")


def wrong_array(rng: np.random.Generator, shape: tuple[int, ...]) -> Any:
    """Returns an array of about this shape, of any dtype, layout and library that is installed."""
    kind = rng.integers(8)
    shape = {
        0: (*shape, 1), 1: shape[1:], 2: (shape[0] + 1, *shape[1:]) if shape else (1,), 3: (0, *shape[1:]), 4: shape[::-1],
    }.get(int(kind), shape)  # fmt: skip
    library = rng.choice(["numpy", "numpy", "torch", "jax", "dlpack"])
    value = NUMBERS[rng.integers(len(NUMBERS))]
    with np.errstate(all="ignore"):
        if library in ("numpy", "dlpack"):
            dtype = str(rng.choice(NUMPY_DTYPES if library == "numpy" else DTYPES))
            array = np.zeros(shape, dtype)
            if array.dtype.kind in "iufbc":
                array = np.full(shape, value).astype(dtype)
            layout = rng.integers(4)
            if layout == 0:
                array = np.asfortranarray(array)
            elif layout == 1:
                array = np.repeat(array, 2, axis=0)[::2] if array.ndim else array
            elif layout == 2:
                array.flags.writeable = False
            elif library == "numpy":
                array = np.ma.masked_array(array)
            return array if library == "numpy" else OnlyDLPack(array)
        host = np.full(shape, value).astype(str(rng.choice(DTYPES[:-1])))
    if library == "jax":
        jax = _import("jax")
        if jax is None or host.dtype.itemsize == 8:
            return host
        return jax.numpy.asarray(host)
    torch = _import("torch")
    if torch is None:
        return host
    tensor = torch.from_numpy(host)
    changes: tuple[Callable[[Any], Any], ...] = (
        lambda x: x,
        lambda x: x.to("meta"),
        lambda x: x.to_sparse(),
        lambda x: x.bfloat16(),
        lambda x: x.to(torch.complex64).conj(),
        lambda x: x.float().requires_grad_(),
        lambda x: x.expand(2, *x.shape),
        lambda x: torch.nn.Parameter(x.float()),
        lambda x: torch._neg_view(x.float()),
        lambda x: x.transpose(0, -1) if x.ndim else x,
    )
    try:
        return changes[rng.integers(len(changes))](tensor)
    except (RuntimeError, NotImplementedError):  # an operation that torch does not have for a dtype
        return tensor


def _import(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


def wrong_value(rng: np.random.Generator, shape: tuple[int, ...] = (3,)) -> Any:
    """Returns a scalar, a container, an array or an object."""
    if rng.random() < 0.5:
        return wrong_array(rng, shape)
    return Broken() if rng.random() < 0.05 else SCALARS[rng.integers(len(SCALARS))]


def describe_unclear(error: BaseException) -> str | None:
    """Returns what is wrong with an error that a user got; None if it is clear.

    A clear error is raised by gpuvec or Gymnasium. What it says without the messages of other packages that it quotes names the
    argument, or what was given. It may not only say where another package raised: a message of three words says no more.
    """
    frames = list(traceback.walk_tb(error.__traceback__))
    message, quoted = str(error), error.__cause__ or error.__context__
    while quoted is not None:
        if not _is_own(quoted):
            message = message.replace(str(quoted), "")
        quoted = quoted.__cause__ or quoted.__context__
    if not isinstance(error, CLEAR_TYPES) or not _is_own(error):
        problem = "is not raised by gpuvec or Gymnasium"
    elif len(re.findall(r"\w+", message)) < 4:
        problem = "says nothing beyond another message"
    elif not any(re.search(rf"(?<!\w){re.escape(text)}(?!\w)", message, re.IGNORECASE) for text in _texts_of_call(frames)):
        problem = "names neither the argument nor what was given"
    else:
        return None
    places = " < ".join(f"{Path(frame.f_code.co_filename).name}:{line}" for frame, line in reversed(frames[-4:]))
    return f"{problem}: {type(error).__name__}: {str(error)[:150]} [{places}]"


def _is_own(error: BaseException) -> bool:
    """Whether a statement of gpuvec or Gymnasium creates and raises this error."""
    *_, (frame, line) = traceback.walk_tb(error.__traceback__)
    file = frame.f_code.co_filename
    return file.startswith(PACKAGES) and re.match(r"raise \w", linecache.getline(file, line).strip()) is not None


def _texts_of_call(frames: list[tuple[FrameType, int]]) -> set[str]:
    """Names of the arguments of the call that the test made, and texts that describe what it passed."""
    tests = str(Path(__file__).parents[1])
    _, called = next((a, b) for (a, _), (b, _) in pairwise(frames) if not b.f_code.co_filename.startswith(tests))
    texts: set[str] = set()
    arguments = inspect.getargvalues(called)
    names = [*arguments.args, *(name for name in (arguments.varargs, arguments.keywords) if name)]
    for name in names:
        if name in ("self", "cls"):
            continue
        _add_texts(texts, name, called.f_locals.get(name))
    return texts | {called.f_code.co_name}  # for calls that an environment does not support with any argument


def _add_texts(texts: set[str], name: str, value: Any, depth: int = 0) -> None:
    """Adds texts that say what a value is: its name, representation, type, dtype, shape, length and elements."""
    texts |= {name, name.removesuffix("s"), f"{name}s", reprlib.repr(value), type(value).__name__}
    for attribute in ("dtype", "shape", "device", "__name__"):
        texts.add(str(getattr(value, attribute, name)))
    if isinstance(value, str):
        texts.add(value)
    elif is_dataclass(value):
        texts |= {field.name for field in fields(value)}
    elif isinstance(value, Mapping) and depth < 3:
        for key, element in value.items():
            _add_texts(texts, str(key), element, depth + 1)
    elif isinstance(value, list | tuple | set) and depth < 3:
        for element in value:
            _add_texts(texts, name, element, depth + 1)
