"""The kernels of a step are compiled in a second thread while those of a reset are."""

import threading
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
from gymnasium.vector import AutoresetMode

from gpuvec.engine.backends.cuda import launch
from gpuvec.engine.backends.cuda.launch_config import make_launch_config
from gpuvec.engine.layout.buffers import KernelOptions
from gpuvec.registration import registered_envs


def make_kernels(name):
    """The kernels of 64 envs for a GPU that need not be there."""
    env = registered_envs("gpuvec")[name]
    kernels = object.__new__(launch.CudaKernels)
    kernels._env, kernels._cc, kernels._device = env, (9, 0), SimpleNamespace(current=nullcontext)
    kernels._launch_config = make_launch_config(env, 64)
    return kernels


@pytest.mark.parametrize(("name", "kinds"), [("TagContinuous-v0", ["step"]), ("ConnectFour-v0", ["step"]), ("CartPole-v1", [])])
def test_step_without_rollouts_is_compiled_in_another_thread(monkeypatch, name, kinds):
    compiled = []

    def record(kind, env, options, *args):
        compiled.append((kind, threading.current_thread() is threading.main_thread(), options))

    monkeypatch.setattr(launch, "load_or_compile_kernels", record)
    options = KernelOptions(AutoresetMode.NEXT_STEP, 50)
    with make_kernels(name)._step_compilation(options):
        pass
    assert compiled == [(kind, False, options) for kind in kinds]


def test_errors_of_the_thread_are_left_to_the_step(monkeypatch):
    reached = threading.Event()

    def fail(*args):
        reached.set()
        raise ValueError("does not compile")

    monkeypatch.setattr(launch, "load_or_compile_kernels", fail)
    with make_kernels("TagContinuous-v0")._step_compilation(KernelOptions(AutoresetMode.NEXT_STEP, 50)):
        pass
    assert reached.is_set()
