"""The generator of random numbers under a battery of statistical tests, along rows, steps, episodes, seeds and draws."""

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
    """(n, 5) uint32: keys that differ in one part alone."""
    keys = np.tile(np.uint32([20_261_123, 0, 5, 3, 7]), (n, 1))
    keys[:, AXES[axis]] = np.arange(n)
    return keys


def grid():
    """(64 * 64 * 16, 5) uint32: keys that differ in row, step and episode."""
    row, step, episode = (part.ravel() for part in np.meshgrid(range(64), range(64), range(16), indexing="ij"))
    return np.stack([np.full(row.size, 20_261_123), np.zeros(row.size, int), row, episode, step], 1).astype(np.uint32)


@functools.cache
def generated(axis):
    return table("cpu", words, keys_along(axis), 4, np.uint32)


def all_p_values(drawn, overlapping):
    """{name: p} of a generator.

    Args:
        drawn: {axis: (n, 4) uint32}, four draws for each of the keys along that axis.
        overlapping: (n, 4) uint32, four draws for each of the keys of `grid`.
    """
    found = {"collisions": collisions(overlapping)}
    for axis, w in drawn.items():
        sequences = {"first draw": w[:, 0], "last draw": w[:, 3], "all draws": w.reshape(-1)[:N]}
        for name, sequence in sequences.items():
            found |= {f"{axis}, {name}, {test}": p for test, p in battery(np.ascontiguousarray(sequence)).items()}
        for other in drawn:
            if other != axis:
                found[f"{axis} with {other}"] = correlation(*(np.float64(drawn[part][1000:, 0]) for part in (axis, other)))
    return found


def test_the_generator_passes():
    found = all_p_values({axis: generated(axis) for axis in AXES}, table("cpu", words, grid(), 4, np.uint32))
    assert len(found) > 250
    assert not failures(found)


def test_uniform_and_normal_numbers_pass():
    found = {}
    for axis in AXES:
        flat, bell = table("cpu", reals, keys_along(axis), 2, np.float32).astype(np.float64).T
        found[f"{axis}, uniform"] = stats.kstest(flat + 2.0**-25, "uniform").pvalue  # the middle of its step of 2**-24
        found[f"{axis}, normal"] = stats.kstest(bell, "norm").pvalue
        for name, x in (("uniform", flat), ("normal", bell)):
            found[f"{axis}, neighbors, {name}"] = correlation(x[1:], x[:-1])
        found[f"{axis}, uniform with normal"] = correlation(flat, bell)
        found[f"{axis}, squares of normal neighbors"] = correlation(bell[1:] ** 2, bell[:-1] ** 2)
    assert not failures(found)


class TestFaultsAreFound:
    """Each generator here has one planted fault."""

    def test_words_that_count_up_by_a_constant(self):
        weyl = np.arange(N, dtype=np.uint64) * 0x9E3779B9
        assert failures(battery(weyl.astype(np.uint32)))

    def test_a_bit_that_is_a_little_too_often_one(self):
        w = generated("row")[:, 0].copy()
        w[::50] |= np.uint32(1 << 13)
        assert set(failures(battery(w))) == {"monobit"}

    def test_every_second_word_repeats_some_bits(self):
        w = generated("row")[:, 0].copy()
        w[1::8] = (w[1::8] & np.uint32(0x03FFFFFF)) | (w[0::8] & np.uint32(0xFC000000))
        assert "pairs of high bits, lag 1" in failures(battery(w))

    def test_words_that_are_too_even(self):
        w = (np.arange(N, dtype=np.uint64) << 14).astype(np.uint32)
        np.random.default_rng(0).shuffle(w)
        assert "uniform" in failures(battery(w))

    def test_a_row_that_has_the_stream_of_the_row_before_one_step_later(self):
        keys = grid()
        keys[:, 2] += keys[:, 4]
        keys[:, 4] = 0
        assert set(failures({"collisions": collisions(table("cpu", words, keys, 4, np.uint32))})) == {"collisions"}

    def test_episodes_that_have_the_stream_of_steps(self):
        drawn = {axis: generated(axis) for axis in ("row", "step")} | {"episode": generated("step")}
        assert {"step with episode", "episode with step"} <= set(failures(all_p_values(drawn, generated("row")[: 1 << 16])))


@pytest.mark.parametrize(("order", "column"), [("rows", 2), ("steps", 4), ("episodes", 3)])
def test_the_tool_for_other_batteries_has_the_same_words(order, column):
    path = Path(__file__).parents[2] / "tools" / "random_battery.py"
    tool = SimpleNamespace(**runpy.run_path(str(path)))
    found = next(tool.generate_words(order))
    keys = np.tile(np.uint32([tool.SEED, 0, 0, 0, 0]), (900, 1))
    keys[:, column] = np.arange(900)
    np.testing.assert_array_equal(found[:900], table("cpu", words, keys, 4, np.uint32))


@pytest.mark.parametrize("p", [0.0, 1e-9, 1.0 - 1e-9, 1.0, float("nan")])
def test_a_p_value_at_either_end_is_a_failure(p):
    assert set(failures({"one": p, "other": 0.3})) == {"one"}
