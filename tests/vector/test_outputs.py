"""A step returns new arrays by default, arrays of a ring of K buffers, or arrays of the caller."""

from __future__ import annotations

import gc
import math
import tracemalloc
import weakref

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from tests.support.arrays import address, host, on_device, step
from tests.support.counter_env import make, shared

E = 5
NAMES = ("obs", "reward", "terminated", "truncated", "final_obs", "final_mask")


def make_counter(device, **kwargs):
    env = shared("tests/Counter-v0", E, device=device, autoreset_mode=AutoresetMode.SAME_STEP, maximum=7.0, **kwargs)
    env.reset(seed=0)
    return env


def arrays(result):
    """Returns the arrays of a step in the order of `NAMES`."""
    return (*result[:4], result[4]["final_obs"], result[4]["_final_obs"])


@pytest.mark.parametrize("output", ["torch", None])
def test_returned_arrays_are_not_overwritten(device, output):
    env = make_counter(device, **({"output": output} if output else {}))
    steps, copies = [], []
    for t in range(600):  # more than two slabs
        if t % 50 == 49:
            steps.append((env.reset()[0],))
        else:
            steps.append(arrays(env.step(on_device(env, np.full(E, t % 10)))))
        copies.append(host(steps[-1]))
    for step_arrays, step_copies in zip(host(steps), copies, strict=True):
        for a, b in zip(step_arrays, step_copies, strict=True):
            np.testing.assert_array_equal(a, b)
    assert len({address(row[0]) for row in steps}) == 600


def test_in_place_change_of_a_tensor_keeps_other_gradients(device):
    """Tensors of two steps share one allocation, but autograd must treat them as separate tensors."""
    torch = pytest.importorskip("torch")
    env = make_counter(device, output="torch")
    _, reward, *_ = env.step(on_device(env, np.full(E, 3)))
    weight = torch.ones(E, device=env.device, requires_grad=True)
    loss = (weight * reward).sum()  # autograd saves this reward for the gradient
    env.step(on_device(env, np.full(E, 5)))[1].clamp_(-1, 1)
    loss.backward()
    np.testing.assert_array_equal(host(weight.grad), np.full(E, 3))


@pytest.mark.parametrize("ring", [1, 2, 3])
def test_ring_of_buffers_is_reused_after_k_steps(device, ring):
    env = make_counter(device, buffers=ring)
    addresses, results = [], []
    for t in range(9):
        result = arrays(env.step(on_device(env, np.full(E, t))))
        addresses.append(tuple(map(address, result)))
        results.append(result)
        for age, old in enumerate(results[::-1][:ring]):
            np.testing.assert_array_equal(host(old[1]), np.full(E, t - age))  # rewards of the last K steps
    for t, step_addresses in enumerate(addresses):
        assert step_addresses == addresses[t % ring]
    assert len({a for step_addresses in addresses[:ring] for a in step_addresses}) == ring * len(NAMES)


def test_one_buffer_is_overwritten_in_place(device):
    env = make_counter(device, buffers=1)
    obs, _ = env.reset(seed=0)
    assert env.step(on_device(env, np.zeros(E, int)))[0] is obs
    np.testing.assert_array_equal(host(obs), np.ones((E, 1)))


@pytest.mark.parametrize("buffers", [0, -1, 1.5, True, "2"])
def test_invalid_buffers_raise(buffers):
    with pytest.raises(ValueError, match=r"buffers must be None .* or at least 1"):
        make("tests/Counter-v0", 2, buffers=buffers)


def make_out(env, fill=0):
    """Returns an array of the required shape and dtype for each name."""
    shapes = {name: (E, 1) if name.endswith("obs") else (E,) for name in NAMES}
    kinds = {name: np.float32 if name in ("obs", "reward", "final_obs") else np.bool_ for name in NAMES}
    return {name: on_device(env, np.full(shapes[name], fill, kinds[name])) for name in NAMES}


class TestOut:
    @pytest.mark.parametrize("output", ["torch", None])
    def test_out_with_all_arrays(self, device, output):
        env = make_counter(device, **({"output": output} if output else {}))
        storage = [make_out(env) for _ in range(9)]
        expected = [step(env, np.full(E, t)) for t in range(9)]
        env.reset(seed=0)
        for t, out in enumerate(storage):
            result = env.step(on_device(env, np.full(E, t)), out=out)
            for array, name in zip(arrays(result), NAMES, strict=True):
                assert array is out[name]
        for out, expected_step in zip(storage, expected, strict=True):
            ended = expected_step[4]["_final_obs"]
            for name, value in zip(NAMES, arrays(expected_step), strict=True):
                rows = ended if name == "final_obs" else slice(None)
                np.testing.assert_array_equal(host(out[name])[rows], value[rows])

    def test_out_with_one_array(self, device):
        env = make_counter(device)
        out = {"reward": make_out(env)["reward"]}
        result = env.step(on_device(env, np.full(E, 4)), out=out)
        assert result[1] is out["reward"]
        np.testing.assert_array_equal(host(result[1]), np.full(E, 4))
        np.testing.assert_array_equal(host(result[0]), np.ones((E, 1)))
        assert out.keys() == {"reward"}

    def test_out_with_rows_of_a_rollout_storage(self, device):
        """A learner passes row t of one large array in step t."""
        env = make_counter(device, output="torch")
        torch = pytest.importorskip("torch")
        obs = torch.zeros(7, E, 1, device=env.device)
        reward = torch.zeros(6, E, device=env.device)
        obs[0] = env.reset(seed=0)[0]
        for t in range(6):
            env.step(on_device(env, np.full(E, t)), out={"obs": obs[t + 1], "reward": reward[t]})
        np.testing.assert_array_equal(host(obs)[:, :, 0], np.arange(7)[:, None].repeat(E, 1))
        np.testing.assert_array_equal(host(reward), np.arange(6)[:, None].repeat(E, 1))

    @pytest.mark.parametrize("output", ["torch", None])
    @pytest.mark.parametrize(
        ("name", "wrong"),
        [
            ("obs", np.zeros((E + 1, 1), np.float32)),
            ("obs", np.zeros(E, np.float32)),
            ("obs", np.zeros((E, 1), np.float64)),
            ("reward", np.zeros(E, np.int32)),
            ("terminated", np.zeros(E, np.uint8)),
        ],
    )
    def test_out_of_a_wrong_shape_or_dtype_raises(self, device, output, name, wrong):
        env = make_counter(device, **({"output": output} if output else {}))
        with pytest.raises(ValueError, match=rf"out\['{name}'\] must be a writable C-contiguous array of shape \({E},.* got "):
            env.step(on_device(env, np.zeros(E, int)), out={name: on_device(env, wrong)})
        np.testing.assert_array_equal(step(env, np.zeros(E, int))[0], np.ones((E, 1)))  # the refused call was not a step

    def test_out_that_is_not_a_contiguous_array_raises(self, device):
        env = make_counter(device)
        strided = on_device(env, np.zeros((E, 2), np.float32))[:, 1]
        for wrong in ([0.0] * E, strided, None, 1.0):
            with pytest.raises(ValueError, match=r"out\['reward'\] must be"):
                env.step(on_device(env, np.zeros(E, int)), out={"reward": wrong})

    def test_read_only_out_raises(self):
        env = make_counter("cpu")
        frozen = np.zeros(E, np.float32)
        frozen.flags.writeable = False
        with pytest.raises(ValueError, match="must be a writable"):
            env.step(np.zeros(E, int), out={"reward": frozen})

    @pytest.mark.parametrize(("name", "alignment"), [("CartPole-v1", 16), ("Breakout-v0", 4)])
    def test_unaligned_out_raises(self, device, name, alignment):
        """The kernel writes rows of CartPole by stores of 16 bytes, and four pixels of Breakout by one of 4 bytes."""
        env = shared(f"gpuvec/{name}", E, device=device)
        obs, _ = env.reset(seed=0)
        size, dtype = math.prod(obs.shape), host(obs).dtype
        flat = on_device(env, np.zeros(size + 4, dtype))
        first = next(k for k in range(1, 4) if (address(flat) + dtype.itemsize * k) % alignment)
        with pytest.raises(ValueError, match=f"aligned to {alignment} bytes"):
            env.step(on_device(env, np.zeros(E, int)), out={"obs": flat[first : first + size].reshape(obs.shape)})

    def test_unknown_names_in_out_raise(self, device):
        env = make_counter(device)
        with pytest.raises(ValueError, match=r"unknown names \['rewards'\]; it may hold 'obs', 'reward'.*'final_mask'"):
            env.step(on_device(env, np.zeros(E, int)), out={"rewards": make_out(env)["reward"]})
        other = shared("tests/Counter-v0", E, device=device, maximum=1e9)
        other.reset(seed=0)
        with pytest.raises(ValueError, match=r"unknown names \['final_obs'\]"):
            other.step(on_device(env, np.zeros(E, int)), out={"final_obs": make_out(env)["obs"]})


@pytest.mark.parametrize("output", ["torch", None])
def test_replay_buffer_pattern_of_cleanrl(device, output):
    """CleanRL's DDPG adds obs and next_obs to a replay buffer after the step, and then assigns next_obs to obs."""
    env = make_counter(device, **({"output": output} if output else {}))
    obs, replay = env.reset(seed=0)[0], []
    for _ in range(20):
        next_obs, *_, info = env.step(on_device(env, np.zeros(E, int)))
        replay.append((obs, next_obs, info["final_obs"], info["_final_obs"]))
        obs = next_obs
    for t, (before, after, final, ended) in enumerate(map(host, replay)):
        np.testing.assert_array_equal(before, np.full((E, 1), t % 7))
        np.testing.assert_array_equal(after, np.full((E, 1), (t + 1) % 7))
        assert ended.all() == ended.any() == (t % 7 == 6)
        if ended.all():
            np.testing.assert_array_equal(final, np.full((E, 1), 7))


def test_rollout_pattern_of_leanrl(device):
    """LeanRL stores references during a whole rollout and stacks them at its end."""
    torch = pytest.importorskip("torch")
    env = make_counter(device, output="torch")
    obs, rollout = env.reset(seed=0)[0], []
    for t in range(32):
        next_obs, reward, terminated, *_ = env.step(on_device(env, np.full(E, t % 10)))
        rollout.append((obs, reward, terminated))
        obs = next_obs
    stacked = [host(torch.stack(column)) for column in zip(*rollout, strict=True)]
    t = np.arange(32)[:, None].repeat(E, 1)
    np.testing.assert_array_equal(stacked[0][:, :, 0], t % 7)
    np.testing.assert_array_equal(stacked[1], t % 10)
    np.testing.assert_array_equal(stacked[2], t % 7 == 6)


def test_memory_without_references_is_freed():
    env = shared("tests/Counter-v0", 50_000, maximum=1e9)
    actions = np.zeros(50_000, int)
    one_step = 50_000 * (4 + 4 + 1 + 1)
    env.reset(seed=0)
    env.step(actions)
    gc.collect()
    tracemalloc.start()
    for _ in range(500):
        env.step(actions)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 250 * one_step  # less than the memory of 500 steps; a slab of 32 MiB contains 67 steps


def test_referenced_array_keeps_only_its_slab():
    env = make("tests/Counter-v0", E)
    obs, _ = env.reset(seed=0)
    slab, obs_copy = weakref.ref(obs.base), obs.copy()
    for _ in range(600):
        env.step(np.zeros(E, int))
    gc.collect()
    np.testing.assert_array_equal(obs, obs_copy)
    assert slab() is not None
    del obs
    gc.collect()
    assert slab() is None
    env.close()


def test_close_frees_buffers_but_not_referenced_arrays():
    env = make("tests/Counter-v0", E, buffers=2)
    env.reset(seed=0)
    obs, reward, *_ = env.step(np.ones(E, int))
    rewards = weakref.ref(reward.base)
    del reward, _
    env.close()
    gc.collect()
    assert rewards() is None
    np.testing.assert_array_equal(obs, np.ones((E, 1)))
