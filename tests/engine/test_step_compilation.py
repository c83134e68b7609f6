"""A reset compiles the kernels of a step first, so that they are linked while those of the reset are compiled."""

import dataclasses
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
from gymnasium.vector import AutoresetMode

from gpuvec.engine.backends.cuda import launch
from gpuvec.engine.backends.cuda.binary import Cubin
from gpuvec.engine.backends.cuda.launch_config import make_launch_config
from gpuvec.engine.layout.buffer_layout import make_kernel_spec
from gpuvec.engine.layout.buffers import KernelOptions
from gpuvec.registration import registered_envs

OPTIONS = KernelOptions(AutoresetMode.NEXT_STEP, 50)
CUBIN = Cubin(b"", "kernel", 32, 1, 1)


@pytest.fixture
def make_kernels(monkeypatch):
    """Makes the kernels of 64 envs for a GPU that need not be there, and which loads nothing."""
    monkeypatch.setattr(launch.CudaKernels, "_launcher", lambda self, cubins, arguments: cubins)
    monkeypatch.setattr(launch, "make_reset_launcher", lambda arguments, dtypes, launch: launch)
    monkeypatch.setattr(launch, "make_step_launcher", lambda arguments, addresses, num_envs, launch: launch)

    def make(name):
        env = registered_envs("gpuvec")[name]
        kernels = object.__new__(launch.CudaKernels)
        spec = make_kernel_spec(env, OPTIONS)
        kernels._num_envs, kernels._cc = 64, (9, 0)
        kernels._device = SimpleNamespace(current=nullcontext)
        kernels._launch_config = make_launch_config(spec.schema, 64)
        kernels.spec = dataclasses.replace(spec, split=kernels._launch_config.split)
        return kernels

    return make


@pytest.mark.parametrize(
    ("name", "kinds"),
    [("TagContinuous-v0", ["step", "reset"]), ("ConnectFour-v0", ["step", "reset"]), ("CartPole-v1", ["reset"])],
)
def test_reset_starts_the_step_of_environments_without_rollouts(monkeypatch, make_kernels, name, kinds):
    started = []

    def record(kind, spec, *args):
        started.append(kind)
        assert spec.options == OPTIONS

        def wait():
            assert started == kinds, "a reset waits for a linker before all kernels are compiled"
            assert kind == "reset", "a reset waits for the linker of the step"
            return [CUBIN]

        return launch.Compilation(wait)

    monkeypatch.setattr(launch, "start_compilation", record)
    assert make_kernels(name).reset(OPTIONS) == [CUBIN]


def test_errors_of_the_step_are_left_to_the_step(monkeypatch, make_kernels):
    def fail_in_step(kind, *args):
        if kind == "step":
            raise ValueError("does not compile")
        return launch.Compilation(lambda: [CUBIN])

    monkeypatch.setattr(launch, "start_compilation", fail_in_step)
    kernels = make_kernels("TagContinuous-v0")
    assert kernels.reset(OPTIONS) == [CUBIN]
    with pytest.raises(ValueError, match="does not compile"):
        kernels.step(OPTIONS, ())


def test_compilation_waits_once_and_repeats_errors():
    results = iter([ValueError("the linker failed"), [CUBIN]])

    def wait():
        result = next(results)
        if isinstance(result, Exception):
            raise result
        return result

    compilation = launch.Compilation(wait)
    with pytest.raises(ValueError, match="the linker failed"):
        compilation.result()
    assert compilation.result() is compilation.result()
