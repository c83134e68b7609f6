"""Outputs lie where CuPy allocated and the kernel wrote; a step copies nothing, allocates slabs only, and never waits."""

from __future__ import annotations

import gc
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

cupy = pytest.importorskip("cupy")
torch = pytest.importorskip("torch")

from gpuvec.vector.outputs import SLAB_BYTES, SLAB_STEPS  # after the packages that it cannot do without

pytestmark = pytest.mark.gpu
MODES = ("SameStep", "NextStep", "Disabled")


class Allocations(cupy.cuda.MemoryHook):  # type: ignore[misc]  # CuPy has no types
    """What CuPy's pool hands out, as (address, bytes)."""

    name = "Allocations"

    def __init__(self) -> None:
        self.found: list[tuple[int, int]] = []

    def malloc_postprocess(self, **given: Any) -> None:
        self.found.append((given["mem_ptr"], given["mem_size"]))

    def hold(self, address: int, size: int) -> bool:
        return any(first <= address and address + size <= first + length for first, length in self.found)


def place(array: Any) -> tuple[int, int]:
    """(address, bytes) of an array of any framework."""
    if isinstance(array, torch.Tensor):
        return array.data_ptr(), array.nbytes
    if hasattr(array, "unsafe_buffer_pointer"):
        return array.unsafe_buffer_pointer(), array.nbytes
    view = array if isinstance(array, cupy.ndarray) else cupy.from_dlpack(array)
    return view.data.ptr, view.nbytes


@pytest.mark.parametrize("num_envs", [1024, 1000])
@pytest.mark.parametrize("output", ["torch", "cupy", "jax", "dlpack"])
def test_every_output_lies_in_memory_that_cupy_allocated(
    make: Callable[..., Any], actions: Callable[..., Any], output: str, num_envs: int
) -> None:
    if output == "jax":
        pytest.importorskip("jax")
    with Allocations() as allocated:
        env = make(num_envs=num_envs, output=output, autoreset_mode="SameStep")
        obs, _ = env.reset(seed=0)
        arrays = {"reset": obs}
        for t, action in enumerate(actions(env, 3)):
            *outputs, info = env.step(action)
            arrays |= {f"{t}.{k}": x for k, x in enumerate((*outputs, info["final_obs"], info["_final_obs"]))}
    assert len({place(x)[0] for x in arrays.values()}) == len(arrays)  # and no two share their memory
    for name, array in arrays.items():
        assert allocated.hold(*place(array)), f"{name} was copied elsewhere"
        assert cupy.cuda.runtime.pointerGetAttributes(place(array)[0]).device == 0


def traced(tmp_path: Path, run: Callable[[], None]) -> tuple[Counter[str], Counter[str]]:
    """What the device did during `run`: (events by category, kernels by name)."""
    from torch.profiler import ProfilerActivity, profile

    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        run()
        torch.cuda.synchronize()
    profiler.export_chrome_trace(str(tmp_path / "trace.json"))
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    kernels = Counter(event["name"] for event in events if event.get("cat") == "kernel")
    return Counter(event.get("cat", "") for event in events), kernels


@pytest.mark.filterwarnings("default")  # the profiler's own
@pytest.mark.parametrize("buffers", [None, 2])
@pytest.mark.parametrize("mode", MODES)
def test_a_thousand_steps_launch_a_thousand_kernels_and_copy_nothing(
    make: Callable[..., Any], actions: Callable[..., Any], tmp_path: Path, mode: str, buffers: int | None
) -> None:
    env = make(num_envs=4096, autoreset_mode=mode, buffers=buffers)
    (action,) = actions(env, 1)
    env.step(action)
    gc.collect()  # what earlier tests left behind
    reserved = torch.cuda.memory_allocated()
    with Allocations() as allocated:

        def run() -> None:
            for _ in range(1000):
                env.step(action)

        categories, kernels = traced(tmp_path, run)
    assert kernels.most_common(1)[0][1] == 1000, kernels
    assert categories["gpu_memcpy"] == 0
    arrays = len(env.simulation.layout.outputs)
    steps = min(SLAB_STEPS, SLAB_BYTES // env._outputs._bytes)
    slabs = 0 if buffers else -(-1000 // steps)
    assert len(allocated.found) <= slabs * arrays
    assert sum(kernels.values()) - 1000 + categories["gpu_memset"] <= slabs * arrays  # final_obs starts as zeros
    assert torch.cuda.memory_allocated() == reserved


@pytest.mark.filterwarnings("default")
def test_the_trace_would_show_a_copy(tmp_path: Path) -> None:
    x = torch.ones(1 << 20, device="cuda")
    categories, _ = traced(tmp_path, lambda: print(x.clone().sum().cpu()))
    assert categories["gpu_memcpy"] >= 1


@pytest.mark.parametrize("mode", MODES)
def test_steps_do_not_wait_for_the_device(
    make: Callable[..., Any], actions: Callable[..., Any], silent_sync: Callable[[], None], mode: str
) -> None:
    env = make(autoreset_mode=mode)
    ring = actions(env, 8)
    env.step(ring[0])
    silent_sync()
    with pytest.raises(RuntimeError, match="synchronizing"):
        torch.ones(1, device="cuda").item()  # what it looks like when something waits
    for action in ring * 20:
        *_, info = env.step(action)
        assert isinstance(info, dict)


def test_wrappers_do_not_wait_for_the_device(
    make: Callable[..., Any], actions: Callable[..., Any], silent_sync: Callable[[], None]
) -> None:
    from gpuvec.vector import wrappers as w

    for mode in MODES:
        env = make("Pendulum-v1", autoreset_mode=mode, max_episode_steps=5)
        env = w.ClipAction(w.RescaleAction(env, -0.5, 0.5))
        env = w.ClipReward(w.NormalizeReward(w.NormalizeObservation(w.RecordEpisodeStatistics(env))), -1.0, 1.0)
        env.reset(seed=0)
        ring = actions(env, 8)
        env.step(ring[0])
        silent_sync()
        for action in ring * 3:
            env.step(action)
        torch.cuda.set_sync_debug_mode("default")


def test_steps_are_enqueued_while_the_device_is_busy(make: Callable[..., Any], actions: Callable[..., Any]) -> None:
    """Waits that are not torch's own show up here: the steps return although the stream has not reached them."""
    env = make(autoreset_mode="SameStep")
    ring = actions(env, 8)
    for action in ring:
        env.step(action)
    torch.cuda.synchronize()
    torch.cuda._sleep(4_000_000_000)  # clock cycles: about two seconds
    for action in ring * 12:
        env.step(action)
    still_busy = not torch.cuda.current_stream().query()
    torch.cuda.synchronize()
    assert still_busy
