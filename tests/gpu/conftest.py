"""What the tests that only a GPU can run share: the device, environments that are closed, and actions."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.support.bundled_envs import SINGLE_AGENT

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # JAX would take three quarters of the card


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Runs a test that takes `name` for every bundled environment with one agent."""
    if "name" in metafunc.fixturenames:
        metafunc.parametrize("name", SINGLE_AGENT)


@pytest.fixture(autouse=True)
def _on_gpu(gpu: str) -> None:
    """Each test here needs a CUDA device."""


@pytest.fixture
def make() -> Iterator[Callable[..., Any]]:
    """`make(name, num_envs, seed=0, **options)`: an environment on the GPU, reset, and closed after the test."""
    import gymnasium

    import gpuvec  # noqa: F401  # registers the environments

    made = []

    def build(name: str = "CartPole-v1", num_envs: int = 64, seed: int = 0, **options: Any) -> Any:
        env = gymnasium.make_vec(f"gpuvec/{name}", num_envs=num_envs, **{"device": "cuda", "output": "torch", **options})
        made.append(env)
        env.reset(seed=seed)
        return env

    yield build
    for env in made:
        env.close()


@pytest.fixture
def actions() -> Callable[..., list[Any]]:
    """`actions(env, steps)`: random torch tensors on the env's device, int64 or float32; the same on every device."""
    torch = pytest.importorskip("torch")

    def draw(env: Any, steps: int, seed: int = 0) -> list[Any]:
        random, space, n = torch.Generator().manual_seed(seed), env.single_action_space, env.num_envs
        if hasattr(space, "n"):
            return [torch.randint(0, int(space.n), (n,), generator=random).to(env.device) for _ in range(steps)]
        low, high = torch.from_numpy(space.low), torch.from_numpy(space.high)
        return [(low + (high - low) * torch.rand(n, *space.shape, generator=random)).to(env.device) for _ in range(steps)]

    return draw


@pytest.fixture
def silent_sync() -> Iterator[Callable[[], None]]:
    """`silent_sync()`: from now on, an operation of torch's that waits for the device raises."""
    torch = pytest.importorskip("torch")

    def error() -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch says that it does not see the waits of others
            torch.cuda.set_sync_debug_mode("error")

    yield error
    torch.cuda.set_sync_debug_mode("default")
