"""A reset compiles the kernels of a step first, so that they are linked while those of the reset are compiled."""

from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from gpuvec.engine.backends.cpu import threads
from gpuvec.engine.backends.cuda import kernels, launch
from gpuvec.engine.backends.cuda.binary import Cubin
from gpuvec.engine.backends.cuda.launch_config import make_launch_config
from gpuvec.engine.layout.buffer_layout import make_kernel_spec
from gpuvec.engine.layout.buffers import KernelOptions
from gpuvec.registration import registered_envs

OPTIONS = KernelOptions(AutoresetMode.NEXT_STEP, 50)
CUBIN = Cubin(b"", "kernel", 32, 1, 1)


@pytest.fixture
def load_kernels(monkeypatch):
    """Loads the kernels of 64 envs for a GPU that need not be there: returns the names of those that were loaded."""
    loaded = list[str]()

    def load_on_device(device, code, name):
        loaded.append(name)
        return None, None

    monkeypatch.setattr(launch, "load_on_device", load_on_device)

    def make(name):
        env = registered_envs("gpuvec")[name]
        kernels = object.__new__(launch.CudaKernels)
        spec = make_kernel_spec(env, OPTIONS)
        kernels._cc, kernels._device = (9, 0), SimpleNamespace(current=nullcontext)
        kernels._launch_config, kernels.num_envs = make_launch_config(spec.schema, 64), 64

        def load(kind):
            loaded.clear()
            kernels.load(kind, spec, np.zeros(0, np.uint64))
            return loaded

        return load

    return make


@pytest.mark.parametrize(
    ("name", "kinds"),
    [("TagContinuous-v0", ["step", "reset"]), ("ConnectFour-v0", ["step", "reset"]), ("CartPole-v1", ["reset"])],
)
def test_reset_starts_the_step_of_environments_without_rollouts(monkeypatch, load_kernels, name, kinds):
    started = []

    def record(kind, spec, **arguments):
        started.append(kind)
        assert spec.options == OPTIONS

        def wait():
            assert started == kinds, "a reset waits for a linker before all kernels are compiled"
            assert kind == "reset", "a reset waits for the linker of the step"
            return [CUBIN]

        return launch.Compilation(wait)

    monkeypatch.setattr(launch, "start_compilation", record)
    assert load_kernels(name)("reset") == [CUBIN.name]


def test_errors_of_the_step_are_left_to_the_step(monkeypatch, load_kernels):
    def fail_in_step(kind, **arguments):
        if kind == "step":
            raise ValueError("does not compile")
        return launch.Compilation(lambda: [CUBIN])

    monkeypatch.setattr(launch, "start_compilation", fail_in_step)
    load = load_kernels("TagContinuous-v0")
    assert load("reset") == [CUBIN.name]
    with pytest.raises(ValueError, match="does not compile"):
        load("step")


@pytest.mark.parametrize(
    "load",
    [
        lambda spec, config: threads.CpuKernels(spec, 64).load("steps", spec, np.zeros(0, np.uint64)),
        lambda spec, config: launch.start_compilation("steps", spec, config, (9, 0), ""),
        lambda spec, config: kernels.make_kernels(spec, config, "steps"),
    ],
    ids=["cpu", "cuda", "simulator"],
)
def test_an_unknown_kind_of_kernel_is_refused(load):
    spec = make_kernel_spec(registered_envs("gpuvec")["CartPole-v1"], OPTIONS)
    with pytest.raises(KeyError, match="steps"):
        load(spec, make_launch_config(spec.schema, 64))


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
