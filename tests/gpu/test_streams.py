"""Kernels run in order on the stream that is the current one of torch at the call, and on no other stream."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

cupy = pytest.importorskip("cupy")
torch = pytest.importorskip("torch")

pytestmark = pytest.mark.gpu
CYCLES = 1_000_000_000  # about half a second on the device
SENTINEL = -7.0


def test_step_waits_for_its_stream_only(make_env: Callable[..., Any], random_actions: Callable[..., Any]) -> None:
    env = make_env()
    action, first_action = random_actions(env, 2)
    env.step(first_action)
    reward = torch.full((env.num_envs,), SENTINEL, device="cuda")
    torch.cuda.synchronize()
    busy, other = torch.cuda.Stream(), torch.cuda.Stream()
    with torch.cuda.stream(busy):
        torch.cuda._sleep(CYCLES)
        env.step(action, out={"reward": reward})
    with torch.cuda.stream(other):
        reward_before_step = reward.clone()
    other.synchronize()
    assert not busy.query(), "the step waited on the host"
    assert (reward_before_step == SENTINEL).all(), "the step ran before its stream reached it"
    busy.synchronize()
    assert (reward == 1.0).all()


def test_outputs_are_independent_of_the_stream(make_env: Callable[..., Any], random_actions: Callable[..., Any]) -> None:
    reference_env, stream_env = make_env(num_envs=1000), make_env(num_envs=1000)
    actions = random_actions(reference_env, 40)
    cuda_streams = [torch.cuda.Stream() for _ in range(3)]
    torch.cuda.synchronize()
    for t, action in enumerate(actions):
        expected = reference_env.step(action)[0]
        stream = cuda_streams[t % 3]
        stream.wait_stream(cuda_streams[(t - 1) % 3])
        with torch.cuda.stream(stream):
            obs = stream_env.step(action)[0]
        stream.synchronize()
        torch.cuda.synchronize()
        assert torch.equal(obs, expected), f"step {t}"


def test_actions_of_another_torch_stream_need_wait_stream(
    make_env: Callable[..., Any], random_actions: Callable[..., Any]
) -> None:
    reference_env, stream_env = make_env(num_envs=1000), make_env(num_envs=1000)
    first, action = random_actions(reference_env, 2)
    for env in (reference_env, stream_env):
        env.step(first)
    expected = reference_env.step(action)[0]
    delayed_action = torch.zeros_like(action)
    torch.cuda.synchronize()
    producer, consumer = torch.cuda.Stream(), torch.cuda.Stream()
    with torch.cuda.stream(producer):
        torch.cuda._sleep(CYCLES)
        delayed_action.copy_(action)
    with torch.cuda.stream(consumer):
        consumer.wait_stream(producer)
        obs = stream_env.step(delayed_action)[0]
    torch.cuda.synchronize()
    assert torch.equal(obs, expected)


def test_step_waits_for_cupy_actions_through_dlpack(make_env: Callable[..., Any], random_actions: Callable[..., Any]) -> None:
    reference_env, stream_env = make_env(num_envs=1000), make_env(num_envs=1000)
    first, action = random_actions(reference_env, 2)
    for env in (reference_env, stream_env):
        env.step(cupy.from_dlpack(first))
    expected = reference_env.step(action)[0]
    delayed_action, source = cupy.zeros(1000, "int64"), cupy.from_dlpack(action)
    stream = cupy.cuda.Stream(non_blocking=True)
    torch.cuda.synchronize()
    with stream:
        with torch.cuda.stream(torch.cuda.ExternalStream(stream.ptr)):
            torch.cuda._sleep(CYCLES)
        delayed_action[:] = source
        obs = stream_env.step(delayed_action)[0]
    torch.cuda.synchronize()
    assert torch.equal(obs, expected)


@pytest.mark.filterwarnings("default")  # JAX warns
def test_step_waits_for_jax_actions_through_dlpack(make_env: Callable[..., Any], random_actions: Callable[..., Any]) -> None:
    jax = pytest.importorskip("jax")
    reference_env, stream_env = make_env(num_envs=1000), make_env(num_envs=1000)
    first, action = random_actions(reference_env, 2)
    for env in (reference_env, stream_env):
        env.step(first)
    expected = reference_env.step(action)[0]

    @jax.jit
    def delayed_copy(a: Any, x: Any) -> Any:
        for _ in range(40):
            x = x @ x / 8192.0
        return a + (x.sum() > 1e30).astype("int32")

    jax_action = jax.numpy.asarray(action.cpu().numpy(), "int32")
    x = jax.numpy.ones((8192, 8192))
    delayed_copy(jax_action, x).block_until_ready()
    obs = stream_env.step(delayed_copy(jax_action, x))[0]
    torch.cuda.synchronize()
    assert torch.equal(obs, expected)
