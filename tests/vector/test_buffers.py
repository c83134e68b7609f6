"""Who owns what a step returns: fresh arrays by default, a ring of K, or the caller's own."""

from __future__ import annotations

import gc
import tracemalloc
import weakref

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from tests.support.arrays import address, host, on_device, step
from tests.support.counter_env import make, shared

E = 5
NAMES = ("obs", "reward", "terminated", "truncated", "final_obs", "_final_obs")


def counter(device, **kwargs):
    env = shared("tests/Counter-v0", E, device=device, autoreset_mode=AutoresetMode.SAME_STEP, maximum=7.0, **kwargs)
    env.reset(seed=0)
    return env


def arrays(result):
    """The arrays of a step, in the order of `NAMES`."""
    return (*result[:4], result[4]["final_obs"], result[4]["_final_obs"])


@pytest.mark.parametrize("output", ["torch", None])
def test_every_array_of_a_long_run_stays_as_it_was(device, output):
    env = counter(device, **({"output": output} if output else {}))
    kept, copies = [], []
    for t in range(600):  # more than two slabs
        if t % 50 == 49:
            kept.append((env.reset()[0],))
        else:
            kept.append(arrays(env.step(on_device(env, np.full(E, t % 10)))))
        copies.append(host(kept[-1]))
    for now, then in zip(host(kept), copies, strict=True):
        for a, b in zip(now, then, strict=True):
            np.testing.assert_array_equal(a, b)
    assert len({address(row[0]) for row in kept}) == 600


def test_a_tensor_changed_in_place_spoils_no_other_s_gradient(device):
    """Tensors of two steps share memory that was allocated at once, but autograd must not take them for one."""
    torch = pytest.importorskip("torch")
    env = counter(device, output="torch")
    _, reward, *_ = env.step(on_device(env, np.full(E, 3)))
    weight = torch.ones(E, device=env.device, requires_grad=True)
    loss = (weight * reward).sum()  # keeps this reward for the gradient
    env.step(on_device(env, np.full(E, 5)))[1].clamp_(-1, 1)
    loss.backward()
    np.testing.assert_array_equal(host(weight.grad), np.full(E, 3))


@pytest.mark.parametrize("ring", [1, 2, 3])
def test_a_ring_comes_round_after_k_steps(device, ring):
    env = counter(device, buffers=ring)
    addresses, seen = [], []
    for t in range(9):
        result = arrays(env.step(on_device(env, np.full(E, t))))
        addresses.append(tuple(map(address, result)))
        seen.append(result)
        for age, old in enumerate(seen[::-1][:ring]):
            np.testing.assert_array_equal(host(old[1]), np.full(E, t - age))  # rewards of the last K steps
    for t, own in enumerate(addresses):
        assert own == addresses[t % ring]
    assert len({a for own in addresses[:ring] for a in own}) == ring * len(NAMES)


def test_one_buffer_is_written_in_place(device):
    env = counter(device, buffers=1)
    obs, _ = env.reset(seed=0)
    assert env.step(on_device(env, np.zeros(E, int)))[0] is obs
    np.testing.assert_array_equal(host(obs), np.ones((E, 1)))


@pytest.mark.parametrize("buffers", [0, -1, 1.5, True, "2"])
def test_what_is_no_ring(buffers):
    with pytest.raises(ValueError, match=r"buffers must be None .* or at least 1"):
        make("tests/Counter-v0", 2, buffers=buffers)


def own_arrays(env, fill=0):
    """One array for each name, as the environment wants them."""
    shapes = {name: (E, 1) if name.endswith("obs") and name[0] != "_" else (E,) for name in NAMES}
    kinds = {name: np.float32 if name in ("obs", "reward", "final_obs") else np.bool_ for name in NAMES}
    return {name: on_device(env, np.full(shapes[name], fill, kinds[name])) for name in NAMES}


class TestOut:
    @pytest.mark.parametrize("output", ["torch", None])
    def test_all_arrays(self, device, output):
        env = counter(device, **({"output": output} if output else {}))
        storage = [own_arrays(env) for _ in range(9)]
        expected = [step(env, np.full(E, t)) for t in range(9)]
        env.reset(seed=0)
        for t, out in enumerate(storage):
            result = env.step(on_device(env, np.full(E, t)), out=out)
            for given, name in zip(arrays(result), NAMES, strict=True):
                assert given is out[name]
        for out, kept in zip(storage, expected, strict=True):
            ended = kept[4]["_final_obs"]
            for name, value in zip(NAMES, arrays(kept), strict=True):
                rows = ended if name == "final_obs" else slice(None)
                np.testing.assert_array_equal(host(out[name])[rows], value[rows])

    def test_some_arrays(self, device):
        env = counter(device)
        out = {"reward": own_arrays(env)["reward"]}
        result = env.step(on_device(env, np.full(E, 4)), out=out)
        assert result[1] is out["reward"]
        np.testing.assert_array_equal(host(result[1]), np.full(E, 4))
        np.testing.assert_array_equal(host(result[0]), np.ones((E, 1)))
        assert out.keys() == {"reward"}

    def test_rows_of_a_rollout_s_storage(self, device):
        """As a learner gives them: the T-th row of one large array."""
        env = counter(device, output="torch")
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
    def test_what_does_not_fit(self, device, output, name, wrong):
        env = counter(device, **({"output": output} if output else {}))
        with pytest.raises(ValueError, match=rf"out\['{name}'\] must be a writable C-contiguous array of shape \({E},.* got "):
            env.step(on_device(env, np.zeros(E, int)), out={name: on_device(env, wrong)})
        np.testing.assert_array_equal(step(env, np.zeros(E, int))[0], np.ones((E, 1)))  # that was no step

    def test_other_kinds_of_array(self, device):
        env = counter(device)
        apart = on_device(env, np.zeros((E, 2), np.float32))[:, 1]
        for wrong in ([0.0] * E, apart, None, 1.0):
            with pytest.raises(ValueError, match=r"out\['reward'\] must be"):
                env.step(on_device(env, np.zeros(E, int)), out={"reward": wrong})

    def test_read_only_memory_is_refused(self):
        env = counter("cpu")
        frozen = np.zeros(E, np.float32)
        frozen.flags.writeable = False
        with pytest.raises(ValueError, match="must be a writable"):
            env.step(np.zeros(E, int), out={"reward": frozen})

    def test_unaligned_rows_are_refused(self, device):
        """CartPole's rows are written 16 bytes at a time."""
        env = shared("gpuvec/CartPole-v1", E, device=device)
        env.reset(seed=0)
        flat = on_device(env, np.zeros(4 * E + 4, np.float32))
        first = next(k for k in range(1, 4) if (address(flat) + 4 * k) % 16)
        with pytest.raises(ValueError, match="aligned to 16 bytes"):
            env.step(on_device(env, np.zeros(E, int)), out={"obs": flat[first : first + 4 * E].reshape(E, 4)})

    def test_unknown_names(self, device):
        env = counter(device)
        with pytest.raises(ValueError, match=r"unknown names \['rewards'\]; it may hold 'obs', 'reward'.*'_final_obs'"):
            env.step(on_device(env, np.zeros(E, int)), out={"rewards": own_arrays(env)["reward"]})
        other = shared("tests/Counter-v0", E, device=device, maximum=1e9)
        other.reset(seed=0)
        with pytest.raises(ValueError, match=r"unknown names \['final_obs'\]"):
            other.step(on_device(env, np.zeros(E, int)), out={"final_obs": own_arrays(env)["obs"]})


@pytest.mark.parametrize("output", ["torch", None])
def test_cleanrl_s_ddpg_pattern(device, output):
    """Observation and next observation go to a replay buffer after the step; then the one becomes the other."""
    env = counter(device, **({"output": output} if output else {}))
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


def test_leanrl_s_pattern(device):
    """References are kept for a whole rollout and stacked at its end."""
    torch = pytest.importorskip("torch")
    env = counter(device, output="torch")
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


def test_memory_that_nobody_holds_is_let_go():
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
    assert peak < 250 * one_step  # 500 steps ran: slabs of 32 MiB hold 67 of them


def test_a_held_row_keeps_its_own_slab_alone():
    env = make("tests/Counter-v0", E)
    obs, _ = env.reset(seed=0)
    slab, held = weakref.ref(obs.base), obs.copy()
    for _ in range(600):
        env.step(np.zeros(E, int))
    gc.collect()
    np.testing.assert_array_equal(obs, held)
    assert slab() is not None
    del obs
    gc.collect()
    assert slab() is None
    env.close()


def test_closing_lets_buffers_go_but_not_what_is_held():
    env = make("tests/Counter-v0", E, buffers=2)
    env.reset(seed=0)
    obs, reward, *_ = env.step(np.ones(E, int))
    rewards = weakref.ref(reward.base)
    del reward, _
    env.close()
    gc.collect()
    assert rewards() is None
    np.testing.assert_array_equal(obs, np.ones((E, 1)))
