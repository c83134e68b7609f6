"""Fixtures of the tests that need a GPU: the device, environments that are closed after the test, and actions."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.support.bundled_envs import SINGLE_AGENT

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # By default JAX allocates three quarters of the memory.


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Runs a test that takes `name` for every bundled environment with one agent."""
    if "name" in metafunc.fixturenames:
        metafunc.parametrize("name", SINGLE_AGENT)


@pytest.fixture(autouse=True)
def _on_gpu(gpu: str) -> None:
    """Each test here needs a CUDA device."""


@pytest.fixture
def make_env() -> Iterator[Callable[..., Any]]:
    """`make_env(name, num_envs, seed=0, **options)`: an environment on the GPU, reset, and closed after the test."""
    import gymnasium

    import gpuvec  # noqa: F401  # registers the environments

    envs = []

    def build(name: str = "CartPole-v1", num_envs: int = 64, seed: int = 0, **options: Any) -> Any:
        env = gymnasium.make_vec(f"gpuvec/{name}", num_envs=num_envs, **{"device": "cuda", "output": "torch", **options})
        envs.append(env)
        env.reset(seed=seed)
        return env

    yield build
    for env in envs:
        env.close()


@pytest.fixture
def random_actions() -> Callable[..., list[Any]]:
    """`random_actions(env, steps)`: random torch tensors on the env's device, int64 or float32; the same on every device."""
    torch = pytest.importorskip("torch")

    def draw(env: Any, steps: int, seed: int = 0) -> list[Any]:
        generator, space, n = torch.Generator().manual_seed(seed), env.single_action_space, env.num_envs
        if hasattr(space, "n"):
            return [torch.randint(0, int(space.n), (n,), generator=generator).to(env.device) for _ in range(steps)]
        low, high = torch.from_numpy(space.low), torch.from_numpy(space.high)
        return [(low + (high - low) * torch.rand(n, *space.shape, generator=generator)).to(env.device) for _ in range(steps)]

    return draw


@pytest.fixture
def forbid_sync() -> Iterator[Callable[[], None]]:
    """`forbid_sync()`: after this call, operations of torch that synchronize with the device raise an error."""
    torch = pytest.importorskip("torch")

    def enable_errors() -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns that it does not detect synchronization of other libraries
            torch.cuda.set_sync_debug_mode("error")

    yield enable_errors
    torch.cuda.set_sync_debug_mode("default")
