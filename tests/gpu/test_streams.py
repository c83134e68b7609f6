"""Kernels run on the stream that is torch's current one at the call, in its order, and on no other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

cupy = pytest.importorskip("cupy")
torch = pytest.importorskip("torch")

pytestmark = pytest.mark.gpu
CYCLES = 1_000_000_000  # about half a second of waiting on the device
UNWRITTEN = -7.0


def test_a_step_waits_for_its_stream_and_for_no_other(make: Callable[..., Any], actions: Callable[..., Any]) -> None:
    env = make()
    action, again = actions(env, 2)
    env.step(again)
    reward = torch.full((env.num_envs,), UNWRITTEN, device="cuda")
    torch.cuda.synchronize()
    busy, other = torch.cuda.Stream(), torch.cuda.Stream()
    with torch.cuda.stream(busy):
        torch.cuda._sleep(CYCLES)
        env.step(action, out={"reward": reward})
    with torch.cuda.stream(other):
        early = reward.clone()
    other.synchronize()
    assert not busy.query(), "the step waited on the host"
    assert (early == UNWRITTEN).all(), "the step ran before its stream reached it"
    busy.synchronize()
    assert (reward == 1.0).all()


def test_results_do_not_depend_on_the_stream(make: Callable[..., Any], actions: Callable[..., Any]) -> None:
    ours, theirs = make(num_envs=1000), make(num_envs=1000)
    ring = actions(ours, 40)
    side = [torch.cuda.Stream() for _ in range(3)]
    torch.cuda.synchronize()
    for t, action in enumerate(ring):
        expected = ours.step(action)[0]
        stream = side[t % 3]
        stream.wait_stream(side[(t - 1) % 3])
        with torch.cuda.stream(stream):
            found = theirs.step(action)[0]
        stream.synchronize()
        torch.cuda.synchronize()
        assert torch.equal(found, expected), f"step {t}"


def test_actions_made_on_another_stream_of_torch_are_waited_for_as_usual(
    make: Callable[..., Any], actions: Callable[..., Any]
) -> None:
    ours, theirs = make(num_envs=1000), make(num_envs=1000)
    first, action = actions(ours, 2)
    for env in (ours, theirs):
        env.step(first)
    expected = ours.step(action)[0]
    late = torch.zeros_like(action)
    torch.cuda.synchronize()
    producer, consumer = torch.cuda.Stream(), torch.cuda.Stream()
    with torch.cuda.stream(producer):
        torch.cuda._sleep(CYCLES)
        late.copy_(action)
    with torch.cuda.stream(consumer):
        consumer.wait_stream(producer)
        found = theirs.step(late)[0]
    torch.cuda.synchronize()
    assert torch.equal(found, expected)


def test_actions_of_cupy_are_waited_for_through_dlpack(make: Callable[..., Any], actions: Callable[..., Any]) -> None:
    ours, theirs = make(num_envs=1000), make(num_envs=1000)
    first, action = actions(ours, 2)
    for env in (ours, theirs):
        env.step(cupy.from_dlpack(first))
    expected = ours.step(action)[0]
    late, source = cupy.zeros(1000, "int64"), cupy.from_dlpack(action)
    stream = cupy.cuda.Stream(non_blocking=True)
    torch.cuda.synchronize()
    with stream:
        with torch.cuda.stream(torch.cuda.ExternalStream(stream.ptr)):
            torch.cuda._sleep(CYCLES)
        late[:] = source
        found = theirs.step(late)[0]
    torch.cuda.synchronize()
    assert torch.equal(found, expected)


@pytest.mark.filterwarnings("default")  # JAX's own
def test_actions_of_jax_are_waited_for_through_dlpack(make: Callable[..., Any], actions: Callable[..., Any]) -> None:
    jax = pytest.importorskip("jax")
    ours, theirs = make(num_envs=1000), make(num_envs=1000)
    first, action = actions(ours, 2)
    for env in (ours, theirs):
        env.step(first)
    expected = ours.step(action)[0]

    @jax.jit
    def slow(a: Any, x: Any) -> Any:
        for _ in range(40):
            x = x @ x / 8192.0
        return a + (x.sum() > 1e30).astype("int32")

    made = jax.numpy.asarray(action.cpu().numpy(), "int32")
    x = jax.numpy.ones((8192, 8192))
    slow(made, x).block_until_ready()
    found = theirs.step(slow(made, x))[0]
    torch.cuda.synchronize()
    assert torch.equal(found, expected)
