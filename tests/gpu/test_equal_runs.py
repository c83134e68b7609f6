"""The outputs of an env do not depend on the number of envs, on other work of the GPU, or on the device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.gpu
SIZES = (1, 31, 32, 33, 127, 128, 129, 255, 256, 257, 1023, 1024, 1025, 65_536, 1_000_000)
REFERENCE_ENVS = 2048  # of the run with which all others are compared


def step_outputs(env: Any, actions: list[Any], num_envs: int) -> list[Any]:
    """The outputs of the first `num_envs` envs in each step, on the host."""
    steps = []
    for action in actions:
        *arrays, info = env.step(action)
        episode_end = info.get("_final_obs")
        if episode_end is not None:
            final_obs = info["final_obs"]
            arrays += [episode_end, torch.where(episode_end.reshape(-1, *[1] * (final_obs.ndim - 1)), final_obs, 0.0)]
        steps.append([x[:num_envs].cpu() for x in arrays])
    return steps


TAG = {
    "TagGridWorld-v0": {"num_taggers": 4, "grid_length": 6},
    "TagContinuous-v0": {"num_taggers": 2, "num_runners": 5, "tagging_distance": 0.2},
}


def tag_actions(env: Any, steps: int) -> list[Any]:
    """(E, A) or (E, A, 2) random integers on the device of the env for each step; those of an env do not depend on E."""
    levels = torch.as_tensor(env.single_action_space.nvec)
    random = torch.rand(steps, REFERENCE_ENVS, *levels.shape, generator=torch.Generator().manual_seed(2))
    repeated = (random * levels).long().repeat(1, -(-env.num_envs // REFERENCE_ENVS), *[1] * levels.ndim)[:, : env.num_envs]
    return [step.contiguous().to(env.device) for step in repeated]


@pytest.fixture(scope="module")
def reference() -> dict[str, Any]:
    """The outputs of the reference run, which the first test stores."""
    return {}


@pytest.mark.parametrize("num_envs", SIZES)
def test_env_is_independent_of_num_envs(make_env: Callable[..., Any], reference: dict[str, Any], num_envs: int) -> None:
    options = {"autoreset_mode": "SameStep", "max_episode_steps": 12, "seed": 5}
    choices = torch.randint(0, 2, (20, 1_000_000), generator=torch.Generator().manual_seed(1)).cuda()
    if not reference:
        env = make_env("CartPole-v1", REFERENCE_ENVS, **options)
        reference["start"] = env.reset(seed=5)[0].cpu()
        reference["steps"] = step_outputs(env, list(choices[:, :REFERENCE_ENVS].contiguous()), REFERENCE_ENVS)
    env = make_env("CartPole-v1", num_envs, **options)
    num_compared = min(num_envs, REFERENCE_ENVS)
    assert torch.equal(env.reset(seed=5)[0][:num_compared].cpu(), reference["start"][:num_compared])
    steps = step_outputs(env, list(choices[:, :num_envs].contiguous()), num_compared)
    for t, (outputs, expected) in enumerate(zip(steps, reference["steps"], strict=True)):
        for k, (a, b) in enumerate(zip(outputs, expected, strict=True)):
            assert torch.equal(a, b[:num_compared]), f"step {t}, output {k}"


def check_repetition(env: Any, actions: list[Any]) -> None:
    """Compares five runs of 1025 envs bit for bit with the first one, while another stream keeps the GPU busy."""
    env.reset(seed=25)
    expected = step_outputs(env, actions, 1025)
    other, x = torch.cuda.Stream(), torch.rand(2048, 2048, device="cuda")
    for run in range(5):
        with torch.cuda.stream(other):
            for _ in range(200):
                x = (x @ x).clamp(0.0, 1.0)
        env.reset(seed=25)
        for t, (a, b) in enumerate(zip(step_outputs(env, actions, 1025), expected, strict=True)):
            assert all(torch.equal(p, q) for p, q in zip(a, b, strict=True)), f"run {run}, step {t}"
    torch.cuda.synchronize()


def test_runs_repeat_bit_for_bit_during_other_work(
    make_env: Callable[..., Any], random_actions: Callable[..., Any], name: str
) -> None:
    env = make_env(name, 1025, autoreset_mode="SameStep", max_episode_steps=15)
    check_repetition(env, random_actions(env, 40))


@pytest.mark.parametrize("mode", ["SameStep", "NextStep"])
def test_ten_steps_agree_with_the_cpu(
    make_env: Callable[..., Any], random_actions: Callable[..., Any], name: str, mode: str
) -> None:
    envs = [make_env(name, 4096, autoreset_mode=mode, max_episode_steps=8, device=device) for device in ("cuda", "cpu")]
    actions = random_actions(envs[1], 10)
    if name == "CartPole-v1":
        for action in actions:
            action[:1000] = 1  # These poles fall within ten steps.
    starts = [env.reset(seed=3)[0].cpu() for env in envs]
    torch.testing.assert_close(*starts, rtol=0.0, atol=1e-6)
    on_gpu, on_cpu = (step_outputs(env, [a.to(env.device) for a in actions], 4096) for env in envs)
    assert any(bool(step[3].any()) for step in on_cpu)
    for t, (a, b) in enumerate(zip(on_gpu, on_cpu, strict=True)):
        for k, (x, y) in enumerate(zip(a, b, strict=True)):
            if x.dtype == torch.bool:
                assert torch.equal(x, y), f"step {t}, output {k}: {int((x != y).sum())} rows differ"
            else:
                assert float((x - y).abs().max()) <= 1e-5, f"step {t}, output {k}"


@pytest.mark.parametrize("env_name", TAG)
def test_tag_env_is_independent_of_num_envs(make_env: Callable[..., Any], env_name: str) -> None:
    runs = []
    for num_envs in (REFERENCE_ENVS, 1, 33, 1025, 20_000):
        env = make_env(env_name, num_envs, autoreset_mode="SameStep", max_episode_steps=12, seed=5, **TAG[env_name])
        runs.append([[env.reset(seed=5)[0][:REFERENCE_ENVS].cpu()], *step_outputs(env, tag_actions(env, 20), REFERENCE_ENVS)])
        for t, (outputs, expected) in enumerate(zip(runs[-1], runs[0], strict=True)):
            for k, (a, b) in enumerate(zip(outputs, expected, strict=True)):
                assert torch.equal(a, b[: len(a)]), f"{num_envs} envs, output {k} before step {t}"
    assert any(bool(step[3].any()) for step in runs[0][1:])


@pytest.mark.parametrize("env_name", TAG)
def test_tag_runs_repeat_bit_for_bit_during_other_work(make_env: Callable[..., Any], env_name: str) -> None:
    env = make_env(env_name, 1025, autoreset_mode="SameStep", max_episode_steps=15, **TAG[env_name])
    check_repetition(env, tag_actions(env, 40))


def test_tag_grid_world_equals_the_cpu_bit_for_bit(make_env: Callable[..., Any]) -> None:
    name = "TagGridWorld-v0"
    options = {"autoreset_mode": "SameStep", "max_episode_steps": 12, **TAG[name]}
    envs = [make_env(name, REFERENCE_ENVS, device=device, **options) for device in ("cuda", "cpu")]
    starts = [env.reset(seed=3)[0].cpu() for env in envs]
    assert torch.equal(*starts)
    on_gpu, on_cpu = (step_outputs(env, tag_actions(env, 30), REFERENCE_ENVS) for env in envs)
    for t, (a, b) in enumerate(zip(on_gpu, on_cpu, strict=True)):
        assert all(torch.equal(p, q) for p, q in zip(a, b, strict=True)), f"step {t}"
