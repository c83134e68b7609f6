"""Memory: too much is refused before it is taken, and nothing grows. To be run alone on the device."""

from __future__ import annotations

import gc
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

cupy = pytest.importorskip("cupy")
torch = pytest.importorskip("torch")

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif("PYTEST_XDIST_WORKER" in os.environ, reason="reads the device's free memory: run this file alone"),
]
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


def test_a_learner_that_does_not_fit_is_refused_and_takes_nothing() -> None:
    """The rollout of the first is larger than the device, the ring of transitions that of the second."""
    from gpuvec.errors import OutOfMemoryError
    from gpuvec.learners import ddpg, ppo
    from gpuvec.learners.training import train

    _, total = torch.cuda.mem_get_info()
    train(ppo.PPOArgs(device="cuda", num_envs=64, num_steps=4, total_steps=256))
    before = on_device()
    steps = total // (64 * 35) * 2  # of 35 bytes and more
    for args, what in (
        (ppo.PPOArgs(device="cuda", num_envs=64, num_steps=steps, total_steps=1), "a rollout of"),
        (ddpg.DDPGArgs(env="gpuvec/Pendulum-v1", device="cuda", num_envs=64, buffer_size=total // 8), "a ring of"),
    ):
        with pytest.raises(OutOfMemoryError, match=what) as raised:
            train(args)
        needed, named_free = (
            int(number.replace(",", "")) for number in re.findall(r"([\d,]+) (?:bytes|are free)", str(raised.value))
        )
        assert 0 < named_free < needed
        del raised
        assert on_device() - before <= 64 * MIB
    train(ppo.PPOArgs(device="cuda", num_envs=64, num_steps=4, total_steps=256))


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
