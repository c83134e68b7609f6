"""Fields of sets of all sizes and dtypes keep their values when blocks of envs copy them to shared memory and back."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Annotated, Any, NamedTuple

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from numpy.typing import NDArray
from tests.support.arrays import host, on_device

from gpuvec import Bools, Floats, Int8s, Ints, Key, SingleAgentEnv, UInt8s
from gpuvec.engine.compiler.array_ops import cpu_array_ops
from gpuvec.engine.compiler.block_copies import BlockCopy
from gpuvec.engine.multi_agent.launch_mapping import MultiAgentLaunch
from gpuvec.engine.multi_agent.state_access import WORDS, copy_segments
from gpuvec.vector.env import VectorEnv


class Shelf(NamedTuple):
    """A field of each dtype, and sizes of an env from 3 to 630 bytes, so that words of 1 to 16 bytes are copied.

    Threads copy the large field of several envs in more than one iteration.
    """

    three: Annotated[UInt8s, "world", 3]
    five: Annotated[Bools, "world", 5]
    seven: Annotated[Int8s, "world", 7]
    hundred: Annotated[UInt8s, "world", 10, 10]
    large: Annotated[Int8s, "world", 30, 21]
    ints: Annotated[Ints, "world", 3]
    floats: Annotated[Floats, "world", 2]


class Params(NamedTuple):
    """The parameters of a shelf."""

    reward: float = 0.0


def reset(s: Shelf, key: Key, p: Params) -> Shelf:
    # The test sets all fields.
    return s


def step(s: Shelf, action: int, key: Key, p: Params) -> tuple[Shelf, float, bool]:
    s.three[0] += 1
    s.five[0] = not s.five[0]
    s.seven[0] += 1
    s.hundred[5, 0] = s.hundred[9, 9]
    s.large[29, 20] = s.large[0, 0]
    s.ints[0] += 1
    s.floats[0] += 0.5
    return s, p.reward, False


def observe(s: Shelf, p: Params) -> tuple[float]:
    return (float(s.ints[2]),)


def spaces(p: Params) -> tuple[Box, Discrete]:
    return Box(-np.inf, np.inf, (1,)), Discrete(2)


SHELF = SingleAgentEnv(Shelf, Params(), reset, step, observe, spaces, max_episode_steps=100)


def numbered(state: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """A state in which neighboring elements differ, also those of two envs and of two fields."""
    numbers = {name: np.arange(1, values.size + 1).reshape(values.shape) * len(name) % 101 for name, values in state.items()}
    return {
        name: (values % 3 == 0 if state[name].dtype == bool else values).astype(state[name].dtype)
        for name, values in numbers.items()
    }


def after_step(state: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """The state one step later."""
    state = {name: values.copy() for name, values in state.items()}
    for name in ("three", "seven", "ints"):
        state[name][:, 0] += 1
    state["five"][:, 0] ^= True
    state["hundred"][:, 5, 0] = state["hundred"][:, 9, 9]
    state["large"][:, 29, 20] = state["large"][:, 0, 0]
    state["floats"][:, 0] += 0.5
    return state


@pytest.mark.first_variants(1)
@pytest.mark.parametrize(("num_envs", "envs_per_block"), [(9, 4), (7, 3), (19, 16)])
def test_a_step_changes_the_elements_that_it_writes_alone(backend, monkeypatch, num_envs, envs_per_block):
    """The last of several blocks has fewer envs: an odd number of them, so that it ends within a word.

    Blocks of 16 envs copy words of 16 bytes in loops, the others all words of a thread at once.
    """
    monkeypatch.setattr(
        "gpuvec.engine.backends.cuda.launch_config.make_multi_agent_launch",
        lambda schema, num_envs: MultiAgentLaunch(envs_per_block, 32, split=False, stage_state=True),
    )
    output = "numpy" if backend in ("cpu", "simulator") else "cupy"
    env = VectorEnv(SHELF, num_envs, device=backend, output=output, autoreset_mode="SameStep")
    env.reset(seed=0)
    expected = numbered(host(env.get_state()))
    env.set_state(expected)
    for _ in range(2):
        obs = host(env.step(on_device(env, np.zeros(num_envs, int)))[0])
        expected = after_step(expected)
        for name, values in host(env.get_state()).items():
            np.testing.assert_array_equal(values, expected[name], err_msg=name, strict=True)
        np.testing.assert_array_equal(obs[:, 0], expected["ints"][:, 2])
    env.close()


@pytest.mark.parametrize(
    ("word_bytes", "words_of_block", "num_segments"),
    [(16, 256, 2), (16, 800, 2), (4, 200, 2), (1, 729, 1), (2, 4096, 1), (2, 4097, 2)],
)
def test_only_copies_of_several_small_words_share_a_segment(word_bytes, words_of_block, num_segments):
    """Loops over words of 16 bytes are as fast, and registers hold 32 words of two bytes."""
    ctx = SimpleNamespace(launch=MultiAgentLaunch(1, 256, split=False, stage_state=True), array_ops=cpu_array_ops())
    copy = BlockCopy("state", words_of_block * word_bytes, WORDS[word_bytes], array="a")
    assert len(copy_segments(ctx, [copy, copy])) == num_segments
