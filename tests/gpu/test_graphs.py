"""A step in a CUDA graph gives the outputs of an eager step, bit for bit."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import pytest

torch = pytest.importorskip("torch")

from gpuvec.vector.outputs import SLAB_STEPS  # needs torch

pytestmark = pytest.mark.gpu
NAMES = ("obs", "reward", "terminated", "truncated", "final_obs", "final_mask")


def outputs_by_name(outputs: tuple[Any, ...]) -> dict[str, Any]:
    """The outputs of a step by the names of `out=`."""
    *arrays, info = outputs
    arrays += [info[name] for name in ("final_obs", "_final_obs") if name in info]
    return dict(zip(NAMES, arrays, strict=False))


def assert_same(outputs: dict[str, Any], expected: dict[str, Any], where: str) -> None:
    """Asserts equality bit for bit, of `final_obs` where an episode ended."""
    assert outputs.keys() == expected.keys()
    rows = expected.get("final_mask")
    for name, array in expected.items():
        a, b = (x[rows] if name == "final_obs" else x for x in (outputs[name], array))
        assert torch.equal(a, b), f"{name} is the first to differ, {where}: {int((a != b).sum())} of {a.numel()} elements"


def capture(run: Callable[[], Any]) -> tuple[Any, Any]:
    """(graph, result of `run` during the capture)."""
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):  # Threads of other libraries may call CUDA.
        result = run()
    return graph, result


@pytest.mark.parametrize("mode", ["SameStep", "NextStep"])
def test_captured_rollout_equals_eager_steps(
    make_env: Callable[..., Any], random_actions: Callable[..., Any], name: str, mode: str
) -> None:
    eager, captured = (make_env(name, 1000, autoreset_mode=mode, max_episode_steps=20) for _ in range(2))
    actions = random_actions(eager, 50)
    first_outputs = outputs_by_name(eager.step(actions[0]))
    captured.step(actions[0])
    storage = {key: torch.zeros((len(actions), *x.shape), dtype=x.dtype, device="cuda") for key, x in first_outputs.items()}
    graph, _ = capture(lambda: [captured.step(a, out={key: x[t] for key, x in storage.items()}) for t, a in enumerate(actions)])
    for replay in range(2):
        graph.replay()
        for t, action in enumerate(actions):
            assert_same(
                {key: x[t] for key, x in storage.items()}, outputs_by_name(eager.step(action)), f"replay {replay}, step {t}"
            )
    assert bool(storage["truncated"].any())
    saved, expected = captured.state_dict()["buffers"], eager.state_dict()["buffers"]
    assert all(torch.equal(saved[key], x) for key, x in expected.items())


@pytest.mark.parametrize("buffers", [1, 2])
def test_captured_output_buffers_equal_eager_steps(
    make_env: Callable[..., Any], random_actions: Callable[..., Any], buffers: int
) -> None:
    eager = make_env(num_envs=1000, autoreset_mode="SameStep")
    captured = make_env(num_envs=1000, autoreset_mode="SameStep", buffers=buffers)
    actions = random_actions(eager, 50)
    graph, outputs = capture_after_warm_up(captured, actions)
    eager.step(actions[0])
    for replay in range(3):
        graph.replay()
        for action in actions:
            expected = outputs_by_name(eager.step(action))
        assert_same(outputs_by_name(outputs[-1]), expected, f"replay {replay}")


def capture_after_warm_up(env: Any, actions: list[Any]) -> tuple[Any, list[Any]]:
    """(graph that steps with each action in turn, outputs of its steps)."""
    env.step(actions[0])
    graph, outputs = capture(lambda: [env.step(action) for action in actions])
    return graph, outputs


def test_captured_wrappers_equal_eager_steps(make_env: Callable[..., Any], random_actions: Callable[..., Any]) -> None:
    from gpuvec.vector import wrappers as w

    def build() -> Any:
        env = make_env("Pendulum-v1", autoreset_mode="SameStep", max_episode_steps=20)
        env = w.ClipAction(w.RescaleAction(env, -0.5, 0.5))
        env = w.ClipReward(w.NormalizeReward(w.NormalizeObservation(w.RecordEpisodeStatistics(env))), -1.0, 1.0)
        env.reset(seed=0)
        return env

    eager, captured = build(), build()
    actions = random_actions(eager, 30)
    graph, outputs = capture_after_warm_up(captured, actions)
    eager.step(actions[0])
    for replay in range(2):
        graph.replay()
        for t, action in enumerate(actions):
            assert_same(outputs_by_name(outputs[t]), outputs_by_name(eager.step(action)), f"replay {replay}, step {t}")
    assert captured.statistics().episodes == eager.statistics().episodes > 0


def test_output_memory_of_a_graph_is_not_reused(make_env: Callable[..., Any], random_actions: Callable[..., Any]) -> None:
    env = make_env(autoreset_mode="SameStep")
    actions = random_actions(env, 5)
    graph, outputs = capture_after_warm_up(env, actions)
    graph_addresses = {x.data_ptr() for step in outputs for x in outputs_by_name(step).values()}
    del outputs
    gc.collect()
    eager_outputs = [outputs_by_name(env.step(actions[k % 5])) for k in range(SLAB_STEPS + 50)]
    assert graph_addresses.isdisjoint(x.data_ptr() for step in eager_outputs for x in step.values())
    copies = [{key: x.clone() for key, x in step.items()} for step in eager_outputs]
    graph.replay()
    torch.cuda.synchronize()
    for t, (step, copy) in enumerate(zip(eager_outputs, copies, strict=True)):
        assert_same(step, copy, f"eager step {t}, after a replay")


def test_capture_of_too_many_steps_names_the_buffers_option(
    make_env: Callable[..., Any], random_actions: Callable[..., Any]
) -> None:
    env = make_env()
    (action,) = random_actions(env, 1)
    env.step(action)
    with pytest.raises(RuntimeError, match="buffers=K"):
        capture(lambda: [env.step(action) for _ in range(2 * SLAB_STEPS)])
    *_, info = env.step(action)
    torch.cuda.synchronize()
    assert info == {}


def test_garbage_collection_does_not_break_a_capture() -> None:
    """The driver forbids to free a graph or a kernel during a capture, when Python may collect garbage that owns some."""
    from gpuvec.learners.ppo import PPOArgs, train

    class Cycle:
        def __init__(self, *objects: Any) -> None:
            self.objects, self.cycle = objects, self

    def create_garbage() -> None:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):  # Threads of other libraries may call CUDA.
            torch.zeros(1, device="cuda")
        env = gym.make_vec("gpuvec/CartPole-v1", 8, device="cuda", output="torch")
        env.reset(seed=0)
        env.step(torch.zeros(8, dtype=torch.int64, device="cuda"))
        Cycle(graph, env)

    before = gc.get_threshold()
    gc.disable()
    try:
        for _ in range(4):
            create_garbage()
        gc.set_threshold(1)
        gc.enable()
        train(PPOArgs(device="cuda", num_envs=64, num_steps=8, num_minibatches=2, total_steps=1024))
        assert gc.isenabled()
    finally:
        gc.set_threshold(*before)
        gc.enable()
