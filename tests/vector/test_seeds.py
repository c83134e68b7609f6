"""The random numbers of a row depend only on its seed, its index and its episode."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.support.arrays import host, on_device, reset, step
from tests.support.counter_env import MIXED, make, shared

from gpuvec import Key
from gpuvec.vector.reset_arguments import RowStreams

E = 5
MODES = list(AutoresetMode)
LARGE = 2**64 - 1


def initial_obs(seed, row, episode=0):
    """Computes the first observation of an episode with the functions of the environment in plain Python."""
    s = MIXED.reset(Key(seed & 0xFFFFFFFF, seed >> 32, row, episode, 0), MIXED.params)
    return [float(s.level), float(s.score), 0.0]


@pytest.mark.parametrize("seed", [0, 1, 12345, 2**32, 2**63 + 5, LARGE, np.int64(3), np.uint64(LARGE)])
def test_key_of_row_k_is_seed_and_k(backend, seed):
    env = shared("tests/Mixed-v0", E, device=backend)
    np.testing.assert_allclose(reset(env, seed=seed), [initial_obs(int(seed), row) for row in range(E)], rtol=0, atol=1e-6)
    assert env.np_random_seed == int(seed)


def test_sequence_sets_the_seed_of_each_env(backend):
    env, seeds = shared("tests/Mixed-v0", E, device=backend), [4, LARGE, 0, 4, 2**32]
    expected = np.array([initial_obs(seed, 0) for seed in seeds])
    for sequence in (seeds, tuple(seeds), np.array(seeds, np.uint64)):
        np.testing.assert_allclose(reset(env, seed=sequence), expected, rtol=0, atol=1e-6)
        assert env.np_random_seed == tuple(seeds)
        assert all(type(seed) is int for seed in env.np_random_seed)


def test_none_in_a_sequence_keeps_the_random_stream(device):
    env = shared("tests/Mixed-v0", E, device=device)
    reset(env, seed=3)
    obs = reset(env, seed=[None, 7, None, 8, None])
    expected = [initial_obs(3, 0, 1), initial_obs(7, 0), initial_obs(3, 2, 1), initial_obs(8, 0), initial_obs(3, 4, 1)]
    np.testing.assert_allclose(obs, expected, rtol=0, atol=1e-6)
    assert env.np_random_seed == (None, 7, None, 8, None)


def test_consecutive_seeds_have_different_streams(device):
    env = shared("tests/Mixed-v0", E, device=device)
    starts = np.concatenate([reset(env, seed=seed) for seed in range(40)])
    assert len(np.unique(starts[:, :2], axis=0)) == 40 * E


def test_same_seed_repeats_the_run(device):
    env = shared("tests/Mixed-v0", E, device=device)
    runs = [[reset(env, seed=5)] + [step(env, np.full((E, 2), t % 3)) for t in range(15)] for _ in range(2)]
    for one, other in zip(*runs, strict=True):
        for a, b in zip(one[:4], other[:4], strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.first_variants(1)
@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
def test_row_k_is_independent_of_the_number_of_envs(backend, mode):
    """The sizes are smaller and larger than a CUDA block."""
    sizes = (1, E, 33 if backend == "simulator" else 300)
    runs = {}
    for size in sizes:
        env = shared("tests/Mixed-v0", size, device=backend, autoreset_mode=mode)
        actions = [np.stack([(np.arange(size) + t) % 3, (np.arange(size) * t) % 4], 1) for t in range(20)]
        runs[size] = [reset(env, seed=77)] + [np.column_stack(step(env, a)[:4]) for a in actions]
    for one, several, many in zip(*runs.values(), strict=True):
        np.testing.assert_array_equal(many[:1], one)
        np.testing.assert_array_equal(many[:E], several)
    ended = sum(run[:, 4:].sum() for run in runs[sizes[-1]][1:])
    assert ended > 2 * sizes[-1]  # on average more than two episodes each


@pytest.mark.parametrize("mode", MODES)
def test_initial_states_never_repeat(device, mode):
    """The test resets all rows, resets some rows, and lets rows reset automatically."""
    env, rng = shared("tests/Mixed-v0", E, device=device, autoreset_mode=mode), np.random.default_rng(1)
    starts, over = [*reset(env, seed=1)], np.zeros(E, bool)
    for _ in range(400):
        kind = rng.integers(4)
        if kind == 0:
            starts += [*reset(env)]
            over[:] = False
        elif kind == 1:
            mask = np.arange(E) == rng.integers(E)
            starts += [*reset(env, options={"reset_mask": mask})[mask]]
            over &= ~mask
        else:
            obs, _, terminated, truncated, _ = step(env, np.zeros((E, 2), int))
            ended = terminated | truncated
            if mode is not AutoresetMode.DISABLED:
                starts += [*obs[ended if mode is AutoresetMode.SAME_STEP else over]]
            over = ended
    assert len(starts) > 500
    assert len(np.unique(np.array(starts)[:, :2], axis=0)) == len(starts)


def test_runs_without_a_seed_differ_and_are_reproducible():
    one, other = make("tests/Mixed-v0", E), make("tests/Mixed-v0", E)
    first, second = reset(one), reset(other)
    assert (first != second).any()
    assert isinstance(one.np_random_seed, int)
    np.testing.assert_array_equal(reset(other, seed=one.np_random_seed), first)


def test_first_reset_without_a_seed_draws_from_np_random():
    env = shared("tests/Mixed-v0", E)
    fresh = make("tests/Mixed-v0", E)
    fresh.np_random = np.random.default_rng(8)
    drawn_seed = int(np.random.default_rng(8).integers(2**63))
    np.testing.assert_array_equal(reset(fresh), reset(env, seed=drawn_seed))


@pytest.mark.parametrize("seed", [-1, 2**64, 1.5, "1", True, [0, 1, 2, 3, -4], [0, 1, 2, 3, 4.5], np.float64(2.0)])
def test_invalid_seeds_raise(seed):
    env = shared("tests/Mixed-v0", E)
    reset(env, seed=9)
    with pytest.raises(gym.error.Error, match="Seed must be a python integer from 0"):
        env.reset(seed=seed)
    assert env.np_random_seed == 9


@pytest.mark.parametrize("count", [0, E - 1, E + 1])
def test_sequence_of_a_wrong_length_raises(count):
    with pytest.raises(ValueError, match=rf"must match num_envs={E} but got length={count}"):
        shared("tests/Mixed-v0", E).reset(seed=[1] * count)


OPERATIONS = st.one_of(
    st.tuples(st.just("step"), st.tuples(*[st.integers(0, 2)] * E)),
    st.tuples(st.just("mask"), st.tuples(*[st.booleans()] * E).filter(any)),
    st.tuples(st.just("seeded mask"), st.tuples(*[st.booleans()] * E).filter(any)),
    st.tuples(st.just("all"), st.just(())),
)


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
@given(operations=st.lists(OPERATIONS, min_size=5, max_size=25), row=st.integers(0, E - 1))
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_row_is_independent_of_other_rows(device, mode, operations, row):
    """Row `row` of a batch equals a single environment, whatever happens to the other rows."""
    batch = shared("tests/Mixed-v0", E, device=device, autoreset_mode=mode)
    single = shared("tests/Mixed-v0", 1, device=device, autoreset_mode=mode)
    seeds = [10 * k for k in range(E)]
    np.testing.assert_array_equal(reset(batch, seed=seeds)[row], reset(single, seed=[seeds[row]])[0])
    for count, (kind, which) in enumerate(operations):
        if kind == "step":
            actions = np.array(which)[:, None].repeat(2, 1)
            results = batch.step(on_device(batch, actions))
            expected = single.step(on_device(single, actions[[row]]))
            for a, b in zip(host(results)[:4], host(expected)[:4], strict=True):
                np.testing.assert_array_equal(a[row], b[0])
            continue
        mask = np.array(which or [True] * E)
        seeds = [1000 * count + k for k in range(E)] if kind == "seeded mask" else None
        obs = reset(batch, seed=seeds, options=None if kind == "all" else {"reset_mask": mask})
        if mask[row]:
            np.testing.assert_array_equal(obs[row], reset(single, seed=seeds and [seeds[row]])[0])


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
def test_row_streams_are_those_of_rows_of_other_environments(device, mode):
    """Two seeds with two rows each, and a row of a third one, in one environment that has been used before."""
    streams = RowStreams([3, 3, LARGE, LARGE, 7], [0, 1, 0, 1, 4])
    env = shared("tests/Mixed-v0", E, device=device, autoreset_mode=mode)
    reset(env, seed=1)
    for t in range(3):
        step(env, np.full((E, 2), t % 3))
    obs = reset(env, seed=streams)
    assert env.np_random_seed == tuple(streams.seeds)
    steps = [np.column_stack(step(env, np.full((E, 2), t % 3))[:4]) for t in range(15)]
    restarted = reset(env)
    for k, (seed, row) in enumerate(zip(*streams, strict=True)):
        single = shared("tests/Mixed-v0", 6, device=device, autoreset_mode=mode)
        np.testing.assert_array_equal(reset(single, seed=seed)[row], obs[k])
        for t, expected in enumerate(steps):
            np.testing.assert_array_equal(np.column_stack(step(single, np.full((6, 2), t % 3))[:4])[row], expected[k])
        np.testing.assert_array_equal(reset(single)[row], restarted[k])


@pytest.mark.parametrize(
    ("streams", "message"),
    [
        (RowStreams([1] * E, [0] * (E - 1)), "a seed and a row for each of the 5"),
        (RowStreams([1] * E, [-1] * E), "from 0 to 2"),
        (RowStreams([-1] * E, [0] * E), "Seed must be a python integer"),
    ],
)
def test_row_streams_of_wrong_values_raise(streams, message):
    with pytest.raises((ValueError, gym.error.Error), match=message):
        shared("tests/Mixed-v0", E).reset(seed=streams)
