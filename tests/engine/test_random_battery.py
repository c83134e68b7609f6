"""A battery of statistical tests for the random number generator, along rows, steps, episodes, seeds and draws."""

import functools
import runpy
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from scipy import stats
from tests.support.statistical_tests import battery, collisions, correlation, failures
from tests.support.tables import table

from gpuvec import Key, normal, uniform
from gpuvec.random import word

N = 1 << 18
AXES = {"seed": 0, "row": 2, "episode": 3, "step": 4}  # columns of a key


def words(w):
    key = Key(w[0], w[1], w[2], w[3], np.int32(w[4]))
    return np.uint32(word(key, 0)), np.uint32(word(key, 1)), np.uint32(word(key, 2)), np.uint32(word(key, 3))


def reals(w):
    key = Key(w[0], w[1], w[2], w[3], np.int32(w[4]))
    return uniform(key, 0, 0.0, 1.0), normal(key, 2)


def keys_along(axis, n=N):
    """(n, 5) uint32: keys that differ in one part only."""
    keys = np.tile(np.uint32([20_261_123, 0, 5, 3, 7]), (n, 1))
    keys[:, AXES[axis]] = np.arange(n)
    return keys


def key_grid():
    """(64 * 64 * 16, 5) uint32: keys that differ in row, step and episode."""
    row, step, episode = (part.ravel() for part in np.meshgrid(range(64), range(64), range(16), indexing="ij"))
    return np.stack([np.full(row.size, 20_261_123), np.zeros(row.size, int), row, episode, step], 1).astype(np.uint32)


@functools.cache
def words_along(axis):
    """(N, 4) uint32: four draws for each key along an axis."""
    return table("cpu", words, keys_along(axis), 4, np.uint32)


def all_p_values(words_by_axis, grid_words):
    """{name: p} of all tests of a generator.

    Args:
        words_by_axis: {axis: (n, 4) uint32}, four draws for each of the keys along that axis.
        grid_words: (n, 4) uint32, four draws for each of the keys of `key_grid`.
    """
    p_values = {"collisions": collisions(grid_words)}
    for axis, w in words_by_axis.items():
        sequences = {"first draw": w[:, 0], "last draw": w[:, 3], "all draws": w.reshape(-1)[:N]}
        for name, sequence in sequences.items():
            p_values |= {f"{axis}, {name}, {test}": p for test, p in battery(np.ascontiguousarray(sequence)).items()}
        for other in words_by_axis:
            if other != axis:
                draws = (np.float64(words_by_axis[part][1000:, 0]) for part in (axis, other))
                p_values[f"{axis} with {other}"] = correlation(*draws)
    return p_values


def test_generator_passes():
    p_values = all_p_values({axis: words_along(axis) for axis in AXES}, table("cpu", words, key_grid(), 4, np.uint32))
    assert len(p_values) > 250
    assert not failures(p_values)


def test_uniform_and_normal_numbers_pass():
    p_values = {}
    for axis in AXES:
        uniforms, normals = table("cpu", reals, keys_along(axis), 2, np.float32).astype(np.float64).T
        centered = uniforms + 2.0**-25  # the middle of an interval of 2**-24
        p_values[f"{axis}, uniform"] = stats.kstest(centered, "uniform").pvalue
        p_values[f"{axis}, normal"] = stats.kstest(normals, "norm").pvalue
        for name, x in (("uniform", uniforms), ("normal", normals)):
            p_values[f"{axis}, neighbors, {name}"] = correlation(x[1:], x[:-1])
        p_values[f"{axis}, uniform with normal"] = correlation(uniforms, normals)
        p_values[f"{axis}, squares of normal neighbors"] = correlation(normals[1:] ** 2, normals[:-1] ** 2)
    assert not failures(p_values)


class TestDetectedFaults:
    """Each generator here has one fault."""

    def test_weyl_sequence_fails(self):
        weyl = np.arange(N, dtype=np.uint64) * 0x9E3779B9
        assert failures(battery(weyl.astype(np.uint32)))

    def test_biased_bit_fails(self):
        w = words_along("row")[:, 0].copy()
        w[::50] |= np.uint32(1 << 13)
        assert set(failures(battery(w))) == {"monobit"}

    def test_words_that_repeat_bits_fail(self):
        w = words_along("row")[:, 0].copy()
        w[1::8] = (w[1::8] & np.uint32(0x03FFFFFF)) | (w[0::8] & np.uint32(0xFC000000))
        assert "pairs of high bits, lag 1" in failures(battery(w))

    def test_words_that_are_too_evenly_distributed_fail(self):
        w = (np.arange(N, dtype=np.uint64) << 14).astype(np.uint32)
        np.random.default_rng(0).shuffle(w)
        assert "uniform" in failures(battery(w))

    def test_row_with_the_draws_of_the_previous_row_one_step_later_fails(self):
        keys = key_grid()
        keys[:, 2] += keys[:, 4]
        keys[:, 4] = 0
        assert set(failures({"collisions": collisions(table("cpu", words, keys, 4, np.uint32))})) == {"collisions"}

    def test_episodes_with_the_draws_of_steps_fail(self):
        words_by_axis = {axis: words_along(axis) for axis in ("row", "step")} | {"episode": words_along("step")}
        p_values = all_p_values(words_by_axis, words_along("row")[: 1 << 16])
        assert {"step with episode", "episode with step"} <= set(failures(p_values))


@pytest.mark.parametrize(("order", "column"), [("rows", 2), ("steps", 4), ("episodes", 3)])
def test_tool_for_other_batteries_writes_the_same_words(order, column):
    path = Path(__file__).parents[2] / "tools" / "random_battery.py"
    tool = SimpleNamespace(**runpy.run_path(str(path)))
    first_words = next(tool.generate_words(order))
    keys = np.tile(np.uint32([tool.SEED, 0, 0, 0, 0]), (900, 1))
    keys[:, column] = np.arange(900)
    np.testing.assert_array_equal(first_words[:900], table("cpu", words, keys, 4, np.uint32))


@pytest.mark.parametrize("p", [0.0, 1e-9, 1.0 - 1e-9, 1.0, float("nan")])
def test_extreme_p_value_is_a_failure(p):
    assert set(failures({"one": p, "other": 0.3})) == {"one"}
