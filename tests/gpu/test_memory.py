"""Memory: too large requests are refused before allocation, and nothing grows. No other process may use the device."""

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


def device_bytes() -> int:
    """Bytes in use on the device, after CuPy and torch have freed their unused blocks."""
    gc.collect()
    torch.cuda.synchronize()
    cupy.get_default_memory_pool().free_all_blocks()
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info()
    return int(total - free)


def host_bytes() -> int:
    """Resident memory of the process in bytes."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_too_many_envs_are_refused_without_effect(make_env: Callable[..., Any], random_actions: Callable[..., Any]) -> None:
    from gpuvec.errors import OutOfMemoryError

    _, total = torch.cuda.mem_get_info()
    make_env(num_envs=64)
    before = device_bytes()
    with pytest.raises(OutOfMemoryError) as error:
        make_env(num_envs=10 * total // 60)
    required_bytes, reported_free = (
        int(number.replace(",", "")) for number in re.findall(r"([\d,]+) (?:bytes|are free)", str(error.value))
    )
    assert required_bytes > 5 * total
    assert 0 < reported_free <= total
    assert device_bytes() - before <= 8 * MIB
    env = make_env(num_envs=1000)
    assert bool((env.step(random_actions(env, 1)[0])[1] == 1.0).all())


def test_too_large_learner_is_refused_without_allocation() -> None:
    """The rollout of PPO and the replay buffer of DDPG are larger than the memory of the device."""
    from gpuvec.errors import OutOfMemoryError
    from gpuvec.learners import ddpg, ppo
    from gpuvec.learners.training import train

    _, total = torch.cuda.mem_get_info()
    train(ppo.PPOArgs(device="cuda", num_envs=64, num_steps=4, total_steps=256))
    before = device_bytes()
    steps = total // (64 * 35) * 2  # of at least 35 bytes
    for args, what in (
        (ppo.PPOArgs(device="cuda", num_envs=64, num_steps=steps, total_steps=1), "a rollout of"),
        (ddpg.DDPGArgs(env="gpuvec/Pendulum-v1", device="cuda", num_envs=64, buffer_size=total // 8), "a replay buffer of"),
    ):
        with pytest.raises(OutOfMemoryError, match=what) as error:
            train(args)
        required_bytes, reported_free = (
            int(number.replace(",", "")) for number in re.findall(r"([\d,]+) (?:bytes|are free)", str(error.value))
        )
        assert 0 < reported_free < required_bytes
        del error
        assert device_bytes() - before <= 64 * MIB
    train(ppo.PPOArgs(device="cuda", num_envs=64, num_steps=4, total_steps=256))


def test_steps_and_resets_do_not_increase_memory(make_env: Callable[..., Any], random_actions: Callable[..., Any]) -> None:
    env = make_env(num_envs=256, autoreset_mode="SameStep")
    actions = random_actions(env, 8)
    mask = torch.zeros(256, dtype=torch.bool, device="cuda")
    mask[::3] = True

    def steps(count: int) -> None:
        for k in range(count):
            env.step(actions[k % 8])

    def resets(count: int) -> None:
        for k in range(count):
            env.reset(seed=k if k % 3 == 0 else None, options={"reset_mask": mask} if k % 3 == 1 else None)

    steps(5000)
    resets(500)
    device, host = device_bytes(), host_bytes()
    steps(100_000)
    resets(10_000)
    assert device_bytes() - device <= MIB
    assert host_bytes() - host <= 16 * MIB


def test_closed_environments_free_their_memory(make_env: Callable[..., Any], random_actions: Callable[..., Any]) -> None:
    import gymnasium

    def create_and_close(k: int) -> None:
        env = gymnasium.make_vec("gpuvec/CartPole-v1", num_envs=1 << 20, device="cuda", buffers=2)
        if k % 10 == 0:  # Compilation takes seconds, so only some environments step.
            env.reset(seed=0)
            env.step(random_actions(env, 1)[0])
        env.close()

    create_and_close(0)
    before = device_bytes()
    for k in range(50):
        create_and_close(k)
    assert device_bytes() - before <= 8 * MIB


def test_outputs_remain_valid_after_close(make_env: Callable[..., Any], random_actions: Callable[..., Any]) -> None:
    env = make_env(num_envs=1000)
    obs, reward, *_ = env.step(random_actions(env, 1)[0])
    copy = obs.clone()
    env.close()
    del env
    gc.collect()
    other_arrays = [cupy.full((1000, 4), -1, "float32") for _ in range(64)]
    torch.cuda.synchronize()
    assert torch.equal(obs, copy)
    assert bool((reward == 1.0).all())
    assert len(other_arrays) == 64


def test_a_hundred_million_environments_step_as_few_do(make_env: Callable[..., Any]) -> None:
    """Their arrays have more than 2^31 bytes. Rows at the end have the results of a small batch from the same state."""
    num_envs, rows, steps = 100_000_000, 1000, 3
    if torch.cuda.mem_get_info()[0] < 24 << 30:
        pytest.skip("needs 24 GiB of free memory on the GPU")
    large, small = make_env(num_envs=num_envs, buffers=1), make_env(num_envs=rows, buffers=1)
    generator = torch.Generator(large.device).manual_seed(0)
    for _ in range(steps):
        small.unwrapped.set_state({name: x[-rows:].clone() for name, x in large.unwrapped.get_state().items()})
        actions = torch.randint(0, 2, (num_envs,), generator=generator, device=large.device)
        obs, reward, terminated, *_ = large.step(actions)
        few_obs, few_reward, few_terminated, *_ = small.step(actions[-rows:].clone())
        going_on = ~few_terminated
        assert int(going_on.sum()) > rows // 2
        assert torch.equal(obs[-rows:][going_on], few_obs[going_on])
        assert torch.equal(reward[-rows:], few_reward)
        assert torch.equal(terminated[-rows:], few_terminated)
    assert len(torch.unique(obs[:, 0])) > num_envs // 100  # rows start from states of their own
