"""A row of a batch does what it does whatever stands beside it, whenever it runs, and on a CPU too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.gpu
SIZES = (1, 31, 32, 33, 127, 128, 129, 255, 256, 257, 1023, 1024, 1025, 65_536, 1_000_000)
ROWS = 2048  # of the run that the others are compared with


def history(env: Any, ring: list[Any], rows: int) -> list[Any]:
    """Outputs of the first `rows` rows, step by step, on the host."""
    steps = []
    for action in ring:
        *arrays, info = env.step(action)
        ended = info.get("_final_obs")
        if ended is not None:
            final_obs = info["final_obs"]
            arrays += [ended, torch.where(ended.reshape(-1, *[1] * (final_obs.ndim - 1)), final_obs, 0.0)]
        steps.append([x[:rows].cpu() for x in arrays])
    return steps


TAG = {
    "TagGridWorld-v0": {"num_taggers": 4, "grid_length": 6},
    "TagContinuous-v0": {"num_taggers": 2, "num_runners": 5, "tagging_distance": 0.2},
}


def tag_actions(env: Any, steps: int) -> list[Any]:
    """(E, A) or (E, A, 2) random integers on the env's device for each step; those of a row do not depend on their number."""
    levels = torch.as_tensor(env.single_action_space.nvec)
    drawn = torch.rand(steps, ROWS, *levels.shape, generator=torch.Generator().manual_seed(2))
    repeated = (drawn * levels).long().repeat(1, -(-env.num_envs // ROWS), *[1] * levels.ndim)[:, : env.num_envs]
    return [step.contiguous().to(env.device) for step in repeated]


@pytest.fixture(scope="module")
def reference() -> dict[str, Any]:
    return {}


@pytest.mark.parametrize("num_envs", SIZES)
def test_a_row_does_not_depend_on_the_number_of_envs(
    make: Callable[..., Any], reference: dict[str, Any], num_envs: int
) -> None:
    options = {"autoreset_mode": "SameStep", "max_episode_steps": 12, "seed": 5}
    choices = torch.randint(0, 2, (20, 1_000_000), generator=torch.Generator().manual_seed(1)).cuda()
    if not reference:
        env = make("CartPole-v1", ROWS, **options)
        reference["start"] = env.reset(seed=5)[0].cpu()
        reference["steps"] = history(env, list(choices[:, :ROWS].contiguous()), ROWS)
    env = make("CartPole-v1", num_envs, **options)
    rows = min(num_envs, ROWS)
    assert torch.equal(env.reset(seed=5)[0][:rows].cpu(), reference["start"][:rows])
    found = history(env, list(choices[:, :num_envs].contiguous()), rows)
    for t, (ours, theirs) in enumerate(zip(found, reference["steps"], strict=True)):
        for k, (a, b) in enumerate(zip(ours, theirs, strict=True)):
            assert torch.equal(a, b[:rows]), f"step {t}, output {k}"


def check_repetition(env: Any, ring: Any) -> None:
    """Five runs of 1025 environments repeat the first bit for bit, while another stream keeps the GPU busy."""
    env.reset(seed=25)
    expected = history(env, ring, 1025)
    other, x = torch.cuda.Stream(), torch.rand(2048, 2048, device="cuda")
    for run in range(5):
        with torch.cuda.stream(other):
            for _ in range(200):
                x = (x @ x).clamp(0.0, 1.0)
        env.reset(seed=25)
        for t, (a, b) in enumerate(zip(history(env, ring, 1025), expected, strict=True)):
            assert all(torch.equal(p, q) for p, q in zip(a, b, strict=True)), f"run {run}, step {t}"
    torch.cuda.synchronize()


def test_runs_repeat_bit_for_bit_beside_other_work(make: Callable[..., Any], actions: Callable[..., Any], name: str) -> None:
    env = make(name, 1025, autoreset_mode="SameStep", max_episode_steps=15)
    check_repetition(env, actions(env, 40))


@pytest.mark.parametrize("mode", ["SameStep", "NextStep"])
def test_ten_steps_agree_with_the_cpu(make: Callable[..., Any], actions: Callable[..., Any], name: str, mode: str) -> None:
    envs = [make(name, 4096, autoreset_mode=mode, max_episode_steps=8, device=device) for device in ("cuda", "cpu")]
    ring = actions(envs[1], 10)
    if name == "CartPole-v1":
        for action in ring:
            action[:1000] = 1  # these fall within ten steps
    starts = [env.reset(seed=3)[0].cpu() for env in envs]
    torch.testing.assert_close(*starts, rtol=0.0, atol=1e-6)
    on_gpu, on_cpu = (history(env, [a.to(env.device) for a in ring], 4096) for env in envs)
    assert any(bool(step[3].any()) for step in on_cpu)
    for t, (a, b) in enumerate(zip(on_gpu, on_cpu, strict=True)):
        for k, (x, y) in enumerate(zip(a, b, strict=True)):
            if x.dtype == torch.bool:
                assert torch.equal(x, y), f"step {t}, output {k}: {int((x != y).sum())} rows differ"
            else:
                assert float((x - y).abs().max()) <= 1e-5, f"step {t}, output {k}"


@pytest.mark.parametrize("game", TAG)
def test_a_game_of_tag_does_not_depend_on_the_number_of_envs(make: Callable[..., Any], game: str) -> None:
    runs = []
    for num_envs in (ROWS, 1, 33, 1025, 20_000):
        env = make(game, num_envs, autoreset_mode="SameStep", max_episode_steps=12, seed=5, **TAG[game])
        runs.append([[env.reset(seed=5)[0][:ROWS].cpu()], *history(env, tag_actions(env, 20), ROWS)])
        for t, (ours, theirs) in enumerate(zip(runs[-1], runs[0], strict=True)):
            for k, (a, b) in enumerate(zip(ours, theirs, strict=True)):
                assert torch.equal(a, b[: len(a)]), f"{num_envs} envs, output {k} before step {t}"
    assert any(bool(step[3].any()) for step in runs[0][1:])


@pytest.mark.parametrize("game", TAG)
def test_games_of_tag_repeat_bit_for_bit_beside_other_work(make: Callable[..., Any], game: str) -> None:
    env = make(game, 1025, autoreset_mode="SameStep", max_episode_steps=15, **TAG[game])
    check_repetition(env, tag_actions(env, 40))


def test_a_grid_of_tag_is_the_cpu_s_bit_for_bit(make: Callable[..., Any]) -> None:
    game = "TagGridWorld-v0"
    options = {"autoreset_mode": "SameStep", "max_episode_steps": 12, **TAG[game]}
    envs = [make(game, ROWS, device=device, **options) for device in ("cuda", "cpu")]
    starts = [env.reset(seed=3)[0].cpu() for env in envs]
    assert torch.equal(*starts)
    on_gpu, on_cpu = (history(env, tag_actions(env, 30), ROWS) for env in envs)
    for t, (a, b) in enumerate(zip(on_gpu, on_cpu, strict=True)):
        assert all(torch.equal(p, q) for p, q in zip(a, b, strict=True)), f"step {t}"
