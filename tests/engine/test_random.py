"""Random numbers: the published answers of the generator on every backend, and the distributions of draws."""

import itertools

import gymnasium as gym
import numpy as np
import pytest
from scipy import stats
from tests.support.tables import table

import gpuvec  # noqa: F401  # registers the environments
from gpuvec import Key, normal, randint, uniform
from gpuvec.random import philox, unit, word

# Random123's known answers (kat_vectors, philox4x32 with 10 rounds): counter and key, result.
KNOWN_ANSWERS = {
    (0,) * 6: (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8),
    (0xFFFFFFFF,) * 6: (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD),
    (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344, 0xA4093822, 0x299F31D0): (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
}
N = 100_000


def block(w):
    x = philox(w[0], w[1], w[2], w[3], w[4], w[5])
    return np.uint32(x[0]), np.uint32(x[1]), np.uint32(x[2]), np.uint32(x[3])


def words(w):
    key = Key(w[0], w[1], w[2], w[3], np.int32(w[4]))
    return np.uint32(word(key, 0)), np.uint32(word(key, 1)), np.uint32(word(key, 2)), np.uint32(word(key, 3))


def uniforms(w):
    key = Key(w[0], w[1], w[2], w[3], np.int32(w[4]))
    return uniform(key, 0, -3.0, 5.0), uniform(key, 1, -0.05, 0.05)


def normals(w):
    key = Key(w[0], w[1], w[2], w[3], np.int32(w[4]))
    return normal(key, 0), normal(key, 2)


def integers(w):
    key = Key(w[0], w[1], w[2], w[3], np.int32(w[4]))
    return np.int32(randint(key, 0, -3, 4)), np.int32(randint(key, 1, 0, 1000))


def keys(n, seed=7, episode=0, step=0):
    """(n, 5) uint32: the keys of n rows."""
    return np.stack([np.full(n, seed), np.zeros(n), np.arange(n), np.full(n, episode), np.full(n, step)], 1).astype(np.uint32)


class TestPhilox:
    def test_known_answers_in_python(self):
        np.testing.assert_array_equal(table("python", block, list(KNOWN_ANSWERS), 4, np.uint32), list(KNOWN_ANSWERS.values()))

    def test_known_answers_compiled(self, backend):
        np.testing.assert_array_equal(table(backend, block, list(KNOWN_ANSWERS), 4, np.uint32), list(KNOWN_ANSWERS.values()))

    @pytest.mark.parametrize(
        ("function", "width", "dtype", "tolerance"),
        [(words, 4, np.uint32, 0), (uniforms, 2, np.float32, 5e-7), (normals, 2, np.float32, 2e-6), (integers, 2, np.int32, 0)],
    )
    def test_every_backend_draws_the_numbers_of_python(self, backend, function, width, dtype, tolerance):
        rows = np.concatenate([keys(20), keys(20, seed=2**32 - 1, episode=2**32 - 1, step=2**31 - 1)])
        plain = table("python", function, rows, width, dtype)
        np.testing.assert_allclose(table(backend, function, rows, width, dtype), plain, rtol=0, atol=tolerance)


class TestKeys:
    def test_every_part_of_a_key_changes_the_draws(self):
        """All words differ in a grid of 2 x 2 x 3 x 3 x 3 keys, of small and large parts, with 8 draws each."""
        grid = itertools.product((0, 2**31), (0, 1), (0, 1, 2**32 - 1), (0, 1, 2**32 - 1), (0, 1, 499))
        words_of_grid = [int(word(Key(*k), draw)) for k in grid for draw in range(8)]
        assert len(words_of_grid) == 2 * 2 * 3 * 3 * 3 * 8
        assert len(set(words_of_grid)) == len(words_of_grid)  # Two of 864 random words are equal with probability 1e-4.

    def test_adjacent_seeds_share_no_draws(self):
        """If row k of seed s + 1 equalled row k + 1 of seed s, most of these words would occur several times."""
        first = np.concatenate([table("cpu", words, keys(N, seed=s), 4, np.uint32) for s in range(10)])
        assert len(np.unique(first.view("u4,u4,u4,u4"))) == 10 * N

    def test_adjacent_episodes_and_steps_share_no_draws(self):
        """The words of the counter are not added, so (episode, step) = (0, 1) differs from (1, 0)."""
        rows = np.concatenate([keys(1000, episode=e, step=t) for e in range(10) for t in range(10)])
        assert len(np.unique(table("cpu", words, rows, 4, np.uint32).view("u4,u4,u4,u4"))) == len(rows)

    def test_adjacent_seeds_begin_in_different_states(self):
        env = gym.make_vec("gpuvec/CartPole-v1", num_envs=4096, device="cpu", output="numpy")
        starts = np.concatenate([env.reset(seed=s)[0] for s in range(8)] + [env.reset()[0]])
        assert len(np.unique(starts, axis=0)) == 9 * 4096

    @pytest.mark.parametrize("other", [keys(N, seed=8), keys(N, episode=1), keys(N, step=1), keys(N + 1)[1:]])
    def test_adjacent_keys_are_not_correlated(self, other):
        """The correlation of N independent pairs is normal with standard deviation 1 / sqrt(N)."""
        a, b = table("cpu", uniforms, keys(N), 2, np.float32), table("cpu", uniforms, other, 2, np.float32)
        for x, y in ((a[:, 0], b[:, 0]), (a[:, 0], b[:, 1]), (a[:, 0], a[:, 1])):
            assert abs(np.corrcoef(x, y)[0, 1]) < 4.0 / np.sqrt(N)


class TestUniform:
    def test_range_and_distribution(self):
        for low, high, x in zip((-3.0, -0.05), (5.0, 0.05), table("cpu", uniforms, keys(N), 2, np.float32).T, strict=True):
            assert np.float32(low) <= x.min()
            assert x.max() < np.float32(high)
            z = (x.astype(np.float64) - low) / (high - low)
            assert abs(z.mean() - 0.5) < 4.0 / np.sqrt(12 * N)
            assert abs(z.var() - 1 / 12) < 4.0 / np.sqrt(180 * N)
            assert stats.kstest(z, "uniform").pvalue > 1e-3
            assert len(np.unique(x)) > 0.99 * N * (1 - N / 2**25)  # expected number of equal values among 2**24

    def test_unit_is_below_one(self):
        assert unit(0) == 0.0
        assert unit(255) == 0.0
        assert unit(256) == 2.0**-24
        assert unit(2**32 - 1) == 1.0 - 2.0**-24
        assert type(unit(2**32 - 1)) is np.float32


class TestNormal:
    def test_moments_and_distribution(self):
        a, b = table("cpu", normals, keys(N), 2, np.float32).astype(np.float64).T
        for z in (a, b):
            assert abs(z.mean()) < 4.0 / np.sqrt(N)
            assert abs(z.var() - 1.0) < 4.0 * np.sqrt(2 / N)
            assert abs(stats.skew(z)) < 4.0 * np.sqrt(6 / N)
            assert abs(stats.kurtosis(z)) < 4.0 * np.sqrt(24 / N)
            assert stats.kstest(z, "norm").pvalue > 1e-3
        assert abs(np.corrcoef(a, b)[0, 1]) < 4.0 / np.sqrt(N)

    def test_extreme_words_give_finite_normal_numbers(self, monkeypatch):
        for extreme_words in itertools.product((0, 2**32 - 1), repeat=2):
            draws = iter(extreme_words)
            monkeypatch.setattr("gpuvec.random.word", lambda key, draw, draws=draws: next(draws))
            assert abs(normal(Key(0, 0, 0, 0, 0), 0)) <= np.sqrt(48 * np.log(2)) + 1e-6


class TestRandint:
    def test_range_and_distribution(self):
        small_range, large_range = table("cpu", integers, keys(N), 2, np.int32).T
        assert set(small_range.tolist()) == set(range(-3, 4))
        assert set(large_range.tolist()) == set(range(1000))
        assert stats.chisquare(np.bincount(small_range + 3)).pvalue > 1e-3
        assert stats.chisquare(np.bincount(large_range)).pvalue > 1e-3

    @pytest.mark.parametrize(("low", "high"), [(0, 1), (-(2**31), 2**31 - 1), (2**31 - 2, 2**31 - 1)])
    def test_extreme_ranges_contain_all_draws(self, low, high):
        draws = [int(randint(Key(0, 0, row, 0, 0), 0, low, high)) for row in range(100)]
        assert min(draws) >= low
        assert max(draws) < high
