"""A captured step is the same step: same kernels, same bits."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import pytest

torch = pytest.importorskip("torch")

from gpuvec.vector.outputs import SLAB_STEPS  # after the package that the tests cannot do without

pytestmark = pytest.mark.gpu
NAMES = ("obs", "reward", "terminated", "truncated", "final_obs", "_final_obs")


def named(outputs: tuple[Any, ...]) -> dict[str, Any]:
    """The outputs of a step by the names that `out=` has for them."""
    *arrays, info = outputs
    arrays += [info[name] for name in NAMES[4:] if name in info]
    return dict(zip(NAMES, arrays, strict=False))


def assert_same(found: dict[str, Any], expected: dict[str, Any], where: str) -> None:
    """Bit for bit, `final_obs` where an episode ended."""
    assert found.keys() == expected.keys()
    rows = expected.get("_final_obs")
    for name, array in expected.items():
        a, b = (x[rows] if name == "final_obs" else x for x in (found[name], array))
        assert torch.equal(a, b), f"{name} is the first to differ, {where}: {int((a != b).sum())} of {a.numel()} elements"


def capture(run: Callable[[], Any]) -> tuple[Any, Any]:
    """(graph, what `run` returned while it was captured)."""
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):  # other libraries in the process have threads
        result = run()
    return graph, result


@pytest.mark.parametrize("mode", ["SameStep", "NextStep"])
def test_a_captured_rollout_equals_an_eager_one(
    make: Callable[..., Any], actions: Callable[..., Any], name: str, mode: str
) -> None:
    eager, captured = (make(name, 1000, autoreset_mode=mode, max_episode_steps=20) for _ in range(2))
    ring = actions(eager, 50)
    shown = named(eager.step(ring[0]))
    captured.step(ring[0])
    storage = {key: torch.zeros((len(ring), *x.shape), dtype=x.dtype, device="cuda") for key, x in shown.items()}
    graph, _ = capture(lambda: [captured.step(a, out={key: x[t] for key, x in storage.items()}) for t, a in enumerate(ring)])
    for replay in range(2):
        graph.replay()
        for t, action in enumerate(ring):
            assert_same({key: x[t] for key, x in storage.items()}, named(eager.step(action)), f"replay {replay}, step {t}")
    assert bool(storage["truncated"].any())
    saved, expected = captured.state_dict()["buffers"], eager.state_dict()["buffers"]
    assert all(torch.equal(saved[key], x) for key, x in expected.items())


@pytest.mark.parametrize("buffers", [1, 2])
def test_a_captured_ring_equals_an_eager_one(make: Callable[..., Any], actions: Callable[..., Any], buffers: int) -> None:
    eager = make(num_envs=1000, autoreset_mode="SameStep")
    captured = make(num_envs=1000, autoreset_mode="SameStep", buffers=buffers)
    ring = actions(eager, 50)
    graph, outputs = capture_after_warm_up(captured, ring)
    eager.step(ring[0])
    for replay in range(3):
        graph.replay()
        for action in ring:
            expected = named(eager.step(action))
        assert_same(named(outputs[-1]), expected, f"replay {replay}")


def capture_after_warm_up(env: Any, ring: list[Any]) -> tuple[Any, list[Any]]:
    """A graph that steps with each action in turn, and the outputs of its steps."""
    env.step(ring[0])
    graph, outputs = capture(lambda: [env.step(action) for action in ring])
    return graph, outputs


def test_a_wrapped_step_is_captured_too(make: Callable[..., Any], actions: Callable[..., Any]) -> None:
    from gpuvec.vector import wrappers as w

    def build() -> Any:
        env = make("Pendulum-v1", autoreset_mode="SameStep", max_episode_steps=20)
        env = w.ClipAction(w.RescaleAction(env, -0.5, 0.5))
        env = w.ClipReward(w.NormalizeReward(w.NormalizeObservation(w.RecordEpisodeStatistics(env))), -1.0, 1.0)
        env.reset(seed=0)
        return env

    eager, captured = build(), build()
    ring = actions(eager, 30)
    graph, outputs = capture_after_warm_up(captured, ring)
    eager.step(ring[0])
    for replay in range(2):
        graph.replay()
        for t, action in enumerate(ring):
            assert_same(named(outputs[t]), named(eager.step(action)), f"replay {replay}, step {t}")
    assert captured.statistics().episodes == eager.statistics().episodes > 0


def test_fresh_outputs_of_a_graph_are_given_to_nobody_else(make: Callable[..., Any], actions: Callable[..., Any]) -> None:
    env = make(autoreset_mode="SameStep")
    ring = actions(env, 5)
    graph, outputs = capture_after_warm_up(env, ring)
    pinned = {x.data_ptr() for step in outputs for x in named(step).values()}
    del outputs
    gc.collect()
    kept = [named(env.step(ring[k % 5])) for k in range(SLAB_STEPS + 50)]
    assert pinned.isdisjoint(x.data_ptr() for step in kept for x in step.values())
    copies = [{key: x.clone() for key, x in step.items()} for step in kept]
    graph.replay()
    torch.cuda.synchronize()
    for t, (step, copy) in enumerate(zip(kept, copies, strict=True)):
        assert_same(step, copy, f"eager step {t}, after a replay")


def test_a_graph_that_needs_more_fresh_outputs_than_there_are_says_what_to_do(
    make: Callable[..., Any], actions: Callable[..., Any]
) -> None:
    env = make()
    (action,) = actions(env, 1)
    env.step(action)
    with pytest.raises(RuntimeError, match="buffers=K"):
        capture(lambda: [env.step(action) for _ in range(2 * SLAB_STEPS)])
    *_, info = env.step(action)
    torch.cuda.synchronize()
    assert info == {}


def test_garbage_does_not_spoil_a_capture() -> None:
    """The driver forbids to free a graph or a kernel within a capture, and garbage that holds some may be collected in it."""
    from gpuvec.learners.ppo import PPOArgs, train

    class Itself:
        def __init__(self, *held: Any) -> None:
            self.held, self.cycle = held, self

    def spent() -> None:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):  # other libraries in the process have threads
            torch.zeros(1, device="cuda")
        env = gym.make_vec("gpuvec/CartPole-v1", 8, device="cuda", output="torch")
        env.reset(seed=0)
        env.step(torch.zeros(8, dtype=torch.int64, device="cuda"))
        Itself(graph, env)

    before = gc.get_threshold()
    gc.disable()
    try:
        for _ in range(4):
            spent()
        gc.set_threshold(1)
        gc.enable()
        train(PPOArgs(device="cuda", num_envs=64, num_steps=8, num_minibatches=2, total_steps=1024))
        assert gc.isenabled()
    finally:
        gc.set_threshold(*before)
        gc.enable()
