"""Compiled functions read the attributes of objects of functions as they are written."""

import dataclasses
import re
from typing import Any, NamedTuple

import numpy as np
import pytest

from gpuvec.engine.backends.cpu.loops import compile_native
from gpuvec.engine.backends.cpu.object_code import load_object
from gpuvec.engine.backends.cuda import numba_cuda
from gpuvec.engine.compiler.function_objects import is_function_object
from gpuvec.engine.compiler.functions import inline_function
from gpuvec.engine.compiler.memory_ops import MemoryOps, cpu_memory_ops
from gpuvec.random import Key


class Rules(NamedTuple):
    first: Any
    step: Any
    scale: float
    ops: MemoryOps
    sizes: dict[str, int]  # which Numba has no type for

    @property
    def num_sizes(self):
        return len(self.sizes)


@dataclasses.dataclass(frozen=True, eq=False)
class World:
    rules: Rules


class AuthorRules(NamedTuple):
    step: Any


for own_class in (Rules, World):
    own_class.__module__ = "gpuvec.engine.rules"  # Classes of the engine alone are treated so.


@inline_function
def first(x):
    return x + np.float32(1)


@inline_function
def step(x, k):
    return x * np.float32(k)


def make_world(ops):
    return World(Rules(first, step, 3.0, ops, {"a": 1, "b": 2}))


def test_functions_numbers_and_properties_of_nested_objects():
    world, memory, f32 = make_world(cpu_memory_ops()), np.array([2], np.float32), np.float32

    def run(address, scratch):
        x = world.rules.step(world.rules.first(world.rules.ops.load(address, 0, f32)), world.rules.scale)
        world.rules.ops.store(address, 0, x + f32(world.rules.num_sizes), f32)

    load_object(compile_native(run, 0))(memory.ctypes.data, 0)
    assert memory[0] == (2 + 1) * 3 + 2


@pytest.mark.compile
@pytest.mark.skipif(numba_cuda.SIMULATED, reason="the simulator compiles no kernels")
def test_a_gpu_gets_the_code_that_closure_variables_give():
    from numba.cuda import types

    f32 = np.float32
    rules = make_world(numba_cuda.cuda_memory_ops()).rules
    load, store, scale = rules.ops.load, rules.ops.store, rules.scale

    def with_objects(address):
        rules.ops.store(address, 0, rules.step(rules.first(rules.ops.load(address, 0, f32)), rules.scale), f32)

    def with_variables(address):
        store(address, 0, step(first(load(address, 0, f32)), scale), f32)

    signature = types.void(types.uint64)
    codes = [numba_cuda.compile_kernel(kernel, signature, (9, 0), "ptx") for kernel in (with_objects, with_variables)]
    instructions = [re.findall(r"^\t[a-z][\w.]*", code, re.MULTILINE) for code in codes]
    assert instructions[0] == instructions[1]
    assert {"\tld.global.f32", "\tst.global.f32"} <= set(instructions[0])


def test_numbers_and_keys_are_no_objects_of_functions():
    assert is_function_object(make_world(cpu_memory_ops()))
    assert is_function_object(cpu_memory_ops())
    assert not is_function_object(Key(0, 0, 0, 0, 0))
    assert not is_function_object((first, step))
    assert not is_function_object(Rules)
    assert not is_function_object(AuthorRules(step))
