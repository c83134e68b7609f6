"""Memory: too much is refused before it is taken, nothing grows, and a fork is noticed. To be run alone on the device."""

from __future__ import annotations

import gc
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

cupy = pytest.importorskip("cupy")
torch = pytest.importorskip("torch")

pytestmark = pytest.mark.gpu
MIB = 1 << 20


def on_device() -> int:
    """Bytes in use on the device, CuPy's and torch's idle blocks given back first."""
    gc.collect()
    torch.cuda.synchronize()
    cupy.get_default_memory_pool().free_all_blocks()
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info()
    return int(total - free)


def on_host() -> int:
    """Bytes of the process's resident memory."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_more_than_the_device_holds_is_refused_and_harms_nothing(make: Callable[..., Any], actions: Callable[..., Any]) -> None:
    from gpuvec.errors import OutOfMemoryError

    _, total = torch.cuda.mem_get_info()
    make(num_envs=64)
    before = on_device()
    with pytest.raises(OutOfMemoryError) as raised:
        make(num_envs=10 * total // 60)
    needed, named_free = (
        int(number.replace(",", "")) for number in re.findall(r"([\d,]+) (?:bytes|are free)", str(raised.value))
    )
    assert needed > 5 * total
    assert 0 < named_free <= total
    assert on_device() - before <= 8 * MIB
    env = make(num_envs=1000)
    assert bool((env.step(actions(env, 1)[0])[1] == 1.0).all())


FORKS = """
import os, signal, sys
import gymnasium, torch
import gpuvec
from gpuvec.errors import ForkError, GpuvecError

env = gymnasium.make_vec("gpuvec/CartPole-v1", num_envs=64, device="cuda")
env.reset(seed=0)
actions = torch.zeros(64, dtype=torch.int64, device="cuda")
env.step(actions)
torch.cuda.synchronize()
uses = {
    "step": lambda: env.step(actions),
    "reset": lambda: env.reset(seed=1),
    "get_state": lambda: env.get_state(),
    "make_vec": lambda: gymnasium.make_vec("gpuvec/CartPole-v1", num_envs=4, device="cuda"),
}
child = os.fork()
if child == 0:
    signal.alarm(10)
    try:
        uses[sys.argv[1]]()
    except ForkError as error:
        print(error, flush=True)
        os._exit(0)
    except BaseException as error:
        print(f"{type(error).__name__}: {error}", flush=True)
        os._exit(3)
    os._exit(4)
_, status = os.waitpid(child, 0)
assert os.waitstatus_to_exitcode(status) == 0, f"child ended with {os.waitstatus_to_exitcode(status)} (-14: it hung)"
env.step(actions)
torch.cuda.synchronize()
"""


@pytest.mark.parametrize("use", ["step", "reset", "get_state", "make_vec"])
def test_use_in_a_forked_process_is_a_typed_error(use: str) -> None:
    start = time.monotonic()
    # The warning that a process with threads was forked is Python's own, and beside the point here.
    command = [sys.executable, "-W", "ignore", "-c", FORKS, use]
    found = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)
    assert found.returncode == 0, found.stdout + found.stderr
    assert "spawn" in found.stdout
    assert time.monotonic() - start < 100


def test_a_hundred_thousand_steps_and_ten_thousand_resets_leave_memory_flat(
    make: Callable[..., Any], actions: Callable[..., Any]
) -> None:
    env = make(num_envs=256, autoreset_mode="SameStep")
    ring = actions(env, 8)
    mask = torch.zeros(256, dtype=torch.bool, device="cuda")
    mask[::3] = True

    def steps(count: int) -> None:
        for k in range(count):
            env.step(ring[k % 8])

    def resets(count: int) -> None:
        for k in range(count):
            env.reset(seed=k if k % 3 == 0 else None, options={"reset_mask": mask} if k % 3 == 1 else None)

    steps(5000)
    resets(500)
    device, host = on_device(), on_host()
    steps(100_000)
    resets(10_000)
    assert on_device() - device <= MIB
    assert on_host() - host <= 16 * MIB


def test_fifty_environments_made_and_closed_leave_nothing(make: Callable[..., Any], actions: Callable[..., Any]) -> None:
    import gymnasium

    def use(k: int) -> None:
        env = gymnasium.make_vec("gpuvec/CartPole-v1", num_envs=1 << 20, device="cuda", buffers=2)
        if k % 10 == 0:  # compiling takes seconds; buffers and outputs are allocated by all
            env.reset(seed=0)
            env.step(actions(env, 1)[0])
        env.close()

    use(0)
    before = on_device()
    for k in range(50):
        use(k)
    assert on_device() - before <= 8 * MIB


def test_outputs_outlive_their_environment(make: Callable[..., Any], actions: Callable[..., Any]) -> None:
    env = make(num_envs=1000)
    obs, reward, *_ = env.step(actions(env, 1)[0])
    copy = obs.clone()
    env.close()
    del env
    gc.collect()
    scratch = [cupy.full((1000, 4), -1, "float32") for _ in range(64)]
    torch.cuda.synchronize()
    assert torch.equal(obs, copy)
    assert bool((reward == 1.0).all())
    assert len(scratch) == 64
