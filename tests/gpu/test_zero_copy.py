"""Outputs are the memory into which the kernel wrote; a step copies nothing, allocates only slabs, and does not synchronize."""

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

from gpuvec.vector.outputs import SLAB_BYTES, SLAB_STEPS  # needs torch

pytestmark = pytest.mark.gpu
MODES = ("SameStep", "NextStep", "Disabled")


class Allocations(cupy.cuda.MemoryHook):  # type: ignore[misc]  # CuPy has no types
    """The (address, bytes) of all allocations of CuPy's memory pool."""

    name = "Allocations"

    def __init__(self) -> None:
        self.blocks: list[tuple[int, int]] = []

    def malloc_postprocess(self, **event: Any) -> None:
        self.blocks.append((event["mem_ptr"], event["mem_size"]))

    def contains(self, address: int, size: int) -> bool:
        """Whether one allocation contains these bytes."""
        return any(first <= address and address + size <= first + length for first, length in self.blocks)


def address_and_size(array: Any) -> tuple[int, int]:
    """(address, bytes) of an array of any library."""
    if isinstance(array, torch.Tensor):
        return array.data_ptr(), array.nbytes
    if hasattr(array, "unsafe_buffer_pointer"):
        return array.unsafe_buffer_pointer(), array.nbytes
    view = array if isinstance(array, cupy.ndarray) else cupy.from_dlpack(array)
    return view.data.ptr, view.nbytes


@pytest.mark.parametrize("num_envs", [1024, 1000])
@pytest.mark.parametrize("output", ["torch", "cupy", "jax", "dlpack"])
def test_every_output_is_memory_that_cupy_allocated(
    make_env: Callable[..., Any], random_actions: Callable[..., Any], output: str, num_envs: int
) -> None:
    if output == "jax":
        pytest.importorskip("jax")
    with Allocations() as allocations:
        env = make_env(num_envs=num_envs, output=output, autoreset_mode="SameStep")
        obs, _ = env.reset(seed=0)
        arrays = {"reset": obs}
        for t, action in enumerate(random_actions(env, 3)):
            *outputs, info = env.step(action)
            arrays |= {f"{t}.{k}": x for k, x in enumerate((*outputs, info["final_obs"], info["_final_obs"]))}
    assert len({address_and_size(x)[0] for x in arrays.values()}) == len(arrays)  # No two outputs share memory.
    for name, array in arrays.items():
        assert allocations.contains(*address_and_size(array)), f"{name} was copied elsewhere"
        assert cupy.cuda.runtime.pointerGetAttributes(address_and_size(array)[0]).device == 0


def trace(tmp_path: Path, run: Callable[[], None]) -> tuple[Counter[str], Counter[str]]:
    """(number of events by category, number of kernels by name) of the device during `run`."""
    from torch.profiler import ProfilerActivity, profile

    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        run()
        torch.cuda.synchronize()
    profiler.export_chrome_trace(str(tmp_path / "trace.json"))
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    kernels = Counter(event["name"] for event in events if event.get("cat") == "kernel")
    return Counter(event.get("cat", "") for event in events), kernels


@pytest.mark.filterwarnings("default")  # the profiler warns
@pytest.mark.parametrize("buffers", [None, 2])
@pytest.mark.parametrize("mode", MODES)
def test_step_launches_one_kernel_and_copies_nothing(
    make_env: Callable[..., Any], random_actions: Callable[..., Any], tmp_path: Path, mode: str, buffers: int | None
) -> None:
    env = make_env(num_envs=4096, autoreset_mode=mode, buffers=buffers)
    (action,) = random_actions(env, 1)
    env.step(action)
    gc.collect()  # frees garbage of earlier tests
    reserved = torch.cuda.memory_allocated()
    with Allocations() as allocations:

        def run() -> None:
            for _ in range(1000):
                env.step(action)

        categories, kernels = trace(tmp_path, run)
    assert kernels.most_common(1)[0][1] == 1000, kernels
    assert categories["gpu_memcpy"] == 0
    arrays = len(env.simulation.layout.outputs)
    steps = min(SLAB_STEPS, SLAB_BYTES // env._outputs._bytes)
    slabs = 0 if buffers else -(-1000 // steps)
    assert len(allocations.blocks) <= slabs * arrays
    assert sum(kernels.values()) - 1000 + categories["gpu_memset"] <= slabs * arrays  # final_obs starts as zeros
    assert torch.cuda.memory_allocated() == reserved


@pytest.mark.filterwarnings("default")
def test_trace_detects_a_copy(tmp_path: Path) -> None:
    x = torch.ones(1 << 20, device="cuda")
    categories, _ = trace(tmp_path, lambda: print(x.clone().sum().cpu()))
    assert categories["gpu_memcpy"] >= 1


@pytest.mark.parametrize("mode", MODES)
def test_steps_do_not_synchronize(
    make_env: Callable[..., Any], random_actions: Callable[..., Any], forbid_sync: Callable[[], None], mode: str
) -> None:
    env = make_env(autoreset_mode=mode)
    actions = random_actions(env, 8)
    env.step(actions[0])
    forbid_sync()
    with pytest.raises(RuntimeError, match="synchronizing"):
        torch.ones(1, device="cuda").item()  # A synchronization raises this error.
    for action in actions * 20:
        *_, info = env.step(action)
        assert isinstance(info, dict)


def test_wrappers_do_not_synchronize(
    make_env: Callable[..., Any], random_actions: Callable[..., Any], forbid_sync: Callable[[], None]
) -> None:
    from gpuvec.vector import wrappers as w

    for mode in MODES:
        env = make_env("Pendulum-v1", autoreset_mode=mode, max_episode_steps=5)
        env = w.ClipAction(w.RescaleAction(env, -0.5, 0.5))
        env = w.ClipReward(w.NormalizeReward(w.NormalizeObservation(w.RecordEpisodeStatistics(env))), -1.0, 1.0)
        env.reset(seed=0)
        actions = random_actions(env, 8)
        env.step(actions[0])
        forbid_sync()
        for action in actions * 3:
            env.step(action)
        torch.cuda.set_sync_debug_mode("default")


def test_steps_are_enqueued_while_the_device_is_busy(make_env: Callable[..., Any], random_actions: Callable[..., Any]) -> None:
    """This also detects synchronization outside of torch: the steps return before the stream has reached them."""
    env = make_env(autoreset_mode="SameStep")
    actions = random_actions(env, 8)
    for action in actions:
        env.step(action)
    torch.cuda.synchronize()
    torch.cuda._sleep(4_000_000_000)  # clock cycles: about two seconds
    for action in actions * 12:
        env.step(action)
    still_busy = not torch.cuda.current_stream().query()
    torch.cuda.synchronize()
    assert still_busy
