"""Stored rollouts: T steps by one kernel are T calls of `step`, and random actions are uniform, keyed and known in advance."""

from __future__ import annotations

import importlib
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode
from tests.support.arrays import address, host, on_device, reset, step
from tests.support.bundled_envs import SINGLE_AGENT
from tests.support.counter_env import make, shared

import gpuvec
from gpuvec import Key, SingleAgentEnv, randint, uniform
from gpuvec.engine.backends.cpu import threads as cpu_threads
from gpuvec.errors import ActionError, AuthoringError
from gpuvec.random import philox
from gpuvec.vector import wrappers
from gpuvec.vector.stored_rollouts import Rollout

MODES = list(AutoresetMode)
SAME_STEP = AutoresetMode.SAME_STEP


def two_numbers(obs: Any, key: Any, p: Any) -> Any:
    return randint(key, 0, 0, 3), 3 if obs[0] > p.noise else randint(key, 1, 0, 3)


def played(env: Any, num_steps: int, **kwargs: Any) -> Rollout:
    """A rollout, as NumPy."""
    return Rollout(*host(tuple(env.rollout(num_steps, **kwargs))[: 7 if env.autoreset_mode is SAME_STEP else 5]))


def same(a: Any, b: Any, rounded: bool, **told: Any) -> None:
    """That they are equal, or if `rounded` near to it: the compiler for CUDA may round a sum of products elsewhere in another
    kernel (seen in Pendulum, whose rewards are such sums).
    """
    if rounded and a.dtype == np.float32:
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5, **told)
    else:
        np.testing.assert_array_equal(a, b, strict=True, **told)


def assert_steps(env: Any, found: Rollout, obs: Any, rounded: bool = False) -> Any:
    """That `env`, which observed `obs`, makes these steps; returns its last observation."""
    same(found.obs[0], obs, rounded)
    assert len(found.obs) == len(found.action) + 1 == len(found.reward) + 1
    for t, action in enumerate(found.action):
        obs, reward, terminated, truncated, infos = step(env, action)
        for k, expected in enumerate((reward, terminated, truncated)):
            same(found[2 + k][t], expected, rounded, err_msg=f"output {k} of step {t}")
        same(found.obs[t + 1], obs, rounded, err_msg=f"step {t}")
        if env.autoreset_mode is SAME_STEP:
            ended = infos["_final_obs"]
            np.testing.assert_array_equal(found.final_mask[t], ended, strict=True)
            same(found.final_obs[t][ended], infos["final_obs"][ended], rounded)
            assert np.isfinite(found.final_obs).all()
    return obs


def assert_same_state(a: Any, b: Any, rounded: bool = False) -> None:
    ours, theirs = (host(env.state_dict()["buffers"]) for env in (a, b))
    for name, array in ours.items():
        same(array, theirs[name], rounded, err_msg=name)


@pytest.mark.covering(1)
@pytest.mark.first_variants(1)
@pytest.mark.parametrize("mode", MODES, ids=lambda m: m.value)
@pytest.mark.parametrize("name", SINGLE_AGENT)
def test_it_makes_the_steps_of_every_environment(device, name, mode):
    ours, theirs = (make(f"gpuvec/{name}", 33, device=device, autoreset_mode=mode, max_episode_steps=7) for _ in "ab")
    rounded = device == "cuda" and name == "Pendulum-v1"
    ours.reset(seed=3)
    obs = assert_steps(theirs, first := played(ours, 20), reset(theirs, seed=3), rounded)
    assert_steps(theirs, played(ours, 9), obs, rounded)
    assert_same_state(ours, theirs, rounded)
    ends = (first.terminated | first.truncated).sum(0)
    assert (ends == 1).all() if mode is AutoresetMode.DISABLED else (ends >= 2).all()


@pytest.mark.covering(1)
@pytest.mark.first_variants(1)
@pytest.mark.parametrize("policy", ["random", two_numbers], ids=["random", "function"])
@pytest.mark.parametrize("mode", MODES, ids=lambda m: m.value)
def test_steps_and_rollouts_mix(backend, mode, policy):
    """With parameters, seeds and a reset pool of each row, and two blocks of threads in the simulator."""
    noise = np.linspace(0.1, 1.0, 33).tolist()
    ours, theirs = (
        make("tests/Mixed-v0", 33, device=backend, autoreset_mode=mode, per_env=("noise",), noise=noise) for _ in "ab"
    )
    masks = np.arange(33) % 3 == 0
    for env in (ours, theirs):
        env.set_reset_pool({"score": on_device(env, np.arange(100, 140, dtype=np.int32))})
        env.reset(seed=list(range(7, 40)))
    obs = reset(theirs, options={"reset_mask": masks})
    np.testing.assert_array_equal(reset(ours, options={"reset_mask": masks}), obs)
    for num_steps in (5, 1, 8):
        obs = assert_steps(theirs, found := played(ours, num_steps, policy=policy), obs)
        obs = step(theirs, found.action[0])[0]
        np.testing.assert_array_equal(step(ours, found.action[0])[0], obs)
        assert_same_state(ours, theirs)
    assert found.action.dtype == np.uint8
    obs = reset(theirs, options={"reset_mask": masks})
    np.testing.assert_array_equal(reset(ours, options={"reset_mask": masks}), obs)
    assert_steps(theirs, played(ours, 3, policy=policy), obs)


@pytest.mark.first_variants(1)
@pytest.mark.simulator
@pytest.mark.parametrize("mode", MODES, ids=lambda m: m.value)
def test_many_envs_take_branches(simulator, mode, monkeypatch):
    """The kernel for so many envs that threads have others to wait for, with fewer envs."""
    monkeypatch.setattr(importlib.import_module("gpuvec.engine.backends.cuda.launch_config"), "MULTIPROCESSORS", 0)
    ours, theirs = (make("tests/Counter-v0", 33, device=simulator, autoreset_mode=mode) for _ in "ab")
    assert not ours.simulation._kernels._launch_config.latency_bound
    obs, _ = (reset(env, seed=2) for env in (theirs, ours))
    for num_steps in (6, 1, 7):
        obs = assert_steps(theirs, played(ours, num_steps), obs)
    assert_same_state(ours, theirs)


def test_given_actions_are_played(backend):
    ours, theirs = (make("tests/Counter-v0", 5, device=backend, autoreset_mode=SAME_STEP) for _ in "ab")
    obs, _ = (reset(env, seed=0) for env in (theirs, ours))
    for dtype in (np.uint8, np.int32, np.int64):
        actions = on_device(ours, np.random.default_rng(1).integers(0, 10, (6, 5)).astype(dtype))
        rollout = ours.rollout(6, policy=actions)
        assert rollout.action is actions
        found = Rollout(*host(tuple(rollout)))
        np.testing.assert_array_equal(found.reward, found.action)  # the rule of a Counter
        obs = assert_steps(theirs, found, obs)


def test_random_actions_are_words_of_philox(backend):
    """Of (seed, row) and the row's own clock, which is 1 in the first step: four steps share a block."""
    env = shared("tests/Counter-v0", 40, device=backend)
    env.reset(seed=2**40 + 5)
    found = np.concatenate([played(env, num_steps).action for num_steps in (3, 1, 6)])
    for row in (0, 17, 39):
        words = [philox(c >> 2, 2**32 - 2, 0, 2**8, 5, row)[c & 3] for c in range(1, 11)]
        assert found[:, row].tolist() == [int(w) * 10 >> 32 for w in words]


def test_a_function_draws_by_a_key_of_its_own(backend):
    env = make("tests/Mixed-v0", 3, device=backend)
    env.reset(seed=9)
    found = played(env, 5, policy=two_numbers)
    for t, row in np.ndindex(5, 3):
        key = Key(9, 0, row, t + 1, 2**32 - 1)
        expected = [randint(key, 0, 0, 3), 3 if found.obs[t, row, 0] > 1.0 else randint(key, 1, 0, 3)]
        assert found.action[t, row].tolist() == expected


class Still(NamedTuple):
    x: float


def still(space: Any) -> SingleAgentEnv:
    """Never ends, and rewards the action."""
    return SingleAgentEnv(
        state=Still,
        params=Still(0.0),
        reset=lambda key, p: Still(uniform(key, 0, 0.0, 1.0)),
        step=(lambda s, a, key, p: (s, a, False)) if isinstance(space, Discrete) else lambda s, a, key, p: (s, a[0], False),
        observe=lambda s, p: (s.x,),
        spaces=lambda p: (Box(-np.inf, np.inf, (1,)), space),
    )


def still_envs(space: Any, num_envs: int, device: str, **kwargs: Any) -> Any:
    output = "cupy" if device == "cuda" else "numpy"
    return gpuvec.VectorEnv(still(space), num_envs, device=device, output=output, **kwargs)


@pytest.mark.first_variants(1)
@pytest.mark.parametrize(
    ("space", "dtype"),
    [
        (Discrete(7, start=-3), np.int32), (Discrete(255), np.uint8), (Discrete(256), np.int32),
        (Box(np.array([-3.0, 0.0, 5.0], np.float32), np.array([-1.0, 0.5, 5.0], np.float32)), np.float32),
        (Box(-2.0, 1.0, (1,)), np.float32),
    ],
)  # fmt: skip
def test_random_actions_are_uniform(device, space, dtype):
    env = still_envs(space, 2000, device)
    env.reset(seed=1)
    found = played(env, 50)
    assert found.action.dtype == dtype
    np.testing.assert_array_equal(found.reward, found.action if isinstance(space, Discrete) else found.action[..., 0])
    if isinstance(space, Discrete):
        count = np.bincount(found.action.ravel() - int(space.start), minlength=int(space.n))
        expected, drawn = found.action.size / space.n, len(count)
        assert drawn == space.n
        assert (np.abs(count - expected) < 5 * np.sqrt(expected)).all()
    else:
        low, high = space.low.astype(float), space.high.astype(float)
        assert ((found.action >= low) & (found.action <= high)).all()
        error = 5 * (high - low) / np.sqrt(12 * 100_000)
        np.testing.assert_array_less(np.abs(found.action.mean((0, 1)) - (low + high) / 2), error + 1e-6)
        np.testing.assert_allclose(found.action.std((0, 1)), (high - low) / np.sqrt(12), rtol=0.02)
    x = found.action.reshape(50, 2000, -1)[..., 0].astype(float)
    for a, b in ((x[1:], x[:-1]), (x[:, 1:], x[:, :-1]), (x, np.broadcast_to(found.obs[0, :, 0], x.shape))):
        assert abs(np.corrcoef(a.ravel(), b.ravel())[0, 1]) < 0.05  # in time, among rows, with what the env drew


@pytest.mark.parametrize("num_envs", [2, 257, 5000])
def test_a_row_depends_on_itself_alone(device, num_envs):
    """Nor does it matter that the others are reset."""
    alone, among = (shared("gpuvec/CartPole-v1", n, device=device, autoreset_mode=SAME_STEP) for n in (1, num_envs))
    alone.reset(seed=[4 + num_envs])
    among.reset(seed=list(range(5, 5 + num_envs)))
    reset(among, options={"reset_mask": np.arange(num_envs) < num_envs - 1})
    one, many = played(alone, 120), played(among, 120)
    assert one.final_mask.any()
    for name in ("obs", "action", "reward", "terminated", "truncated", "final_mask"):
        np.testing.assert_array_equal(getattr(one, name)[:, 0], getattr(many, name)[:, -1])


def test_threads_do_not_matter(monkeypatch):
    monkeypatch.setattr(cpu_threads, "AGENTS_PER_THREAD", 100)
    runs = []
    for threads in (1, 3):
        monkeypatch.setattr(cpu_threads.os, "sched_getaffinity", lambda _, n=threads: set(range(n)), raising=False)
        env = make("gpuvec/CartPole-v1", 1001, autoreset_mode=SAME_STEP)
        env.reset(seed=0)
        runs.append([*played(env, 20), *env.state_dict()["buffers"].values()])
        assert env.simulation._kernels.num_threads == threads
        env.close()
    for a, b in zip(*runs, strict=True):
        np.testing.assert_array_equal(a, b, strict=True)


class TestOutputs:
    def test_they_are_new_each_time_or_those_that_are_given(self, device):
        env = shared("tests/Counter-v0", 4, device=device, autoreset_mode=SAME_STEP)
        env.reset(seed=0)
        first = env.rollout(6)
        kept = host(tuple(first))
        second = env.rollout(6)
        for a, b, before in zip(first, second, kept, strict=True):
            assert address(a) != address(b)
            np.testing.assert_array_equal(host(a), before)
        again = env.rollout(6, out=first)
        assert all(a is b for a, b in zip(again, first, strict=True))
        np.testing.assert_array_equal(host(again.obs)[0], host(second.obs)[-1])
        given = env.rollout(6, policy=second.action, out=again)
        assert given.action is second.action
        assert given.obs is first.obs

    def test_a_ring_is_reused(self, device):
        env = make("tests/Counter-v0", 4, device=device, buffers=2)
        env.reset(seed=0)
        places = [address(env.rollout(3).obs) for _ in range(4)]
        assert places[:2] == places[2:]
        assert places[0] != places[1]

    @pytest.mark.parametrize("output", ["torch", "jax", "dlpack"])
    def test_they_are_the_framework_s(self, output):
        if output != "dlpack":
            pytest.importorskip(output)
        env = make("tests/Mixed-v0", 3, output=output)
        plain = shared("tests/Mixed-v0", 3)
        for one in (env, plain):
            one.reset(seed=5)
        found = env.rollout(4)
        assert type(found.obs) is type(env.reset(seed=5)[0])
        for a, b in zip(found[:5], plain.rollout(4), strict=False):
            np.testing.assert_array_equal(host(a), b)


class TestFaults:
    @pytest.fixture
    def env(self, backend):
        env = make("tests/Counter-v0", 4, device=backend, validate=True, autoreset_mode="Disabled", maximum=1e9)
        env.reset(seed=0)
        return env

    def test_the_lowest_row_at_fault_is_named(self, env):
        actions = np.zeros((5, 4), np.int32)
        actions[1, 3], actions[4, 2] = 11, -2
        env.rollout(5, policy=on_device(env, actions))
        with pytest.raises(ActionError, match="environment 2 was given action -2; allowed are 0 to 9"):
            env.check()
        env.rollout(5)
        env.check()

    def test_a_function_is_looked_at(self, env):
        env.rollout(3, policy=lambda obs, key, p: 256)
        with pytest.raises(ActionError, match="environment 0 was given action 255; allowed are 0 to 9"):
            env.check()

    def test_steps_after_the_end(self, backend):
        options = {"validate": True, "autoreset_mode": "Disabled", "maximum": (9.0, 9.0, 3.0, 9.0)}
        env = make("tests/Counter-v0", 4, device=backend, **options)
        env.reset(seed=0)
        env.rollout(3)
        env.check()
        env.rollout(1)
        with pytest.raises(ActionError, match="environment 2 was stepped after its episode ended"):
            env.check()


class TestErrors:
    @pytest.fixture
    def env(self, device):
        env = shared("gpuvec/CartPole-v1", 4, device=device)
        env.reset(seed=0)
        return env

    def test_before_reset_and_after_close(self, device):
        env = make("gpuvec/CartPole-v1", 4, device=device)
        with pytest.raises(gym.error.ResetNeeded):
            env.rollout(3)
        env.close()
        with pytest.raises(gym.error.ClosedEnvironmentError):
            env.rollout(3)

    @pytest.mark.parametrize("num_steps", [0, -1, 2**31, 2.0, True, "3", None])
    def test_lengths(self, env, num_steps):
        with pytest.raises(ValueError, match="num_steps must be an integer from 1 to"):
            env.rollout(num_steps)

    @pytest.mark.slow
    def test_policies(self, env):
        for policy, error, said in [
            ("greedy", ValueError, "policy must be 'random', an array of actions, or a function, got 'greedy'"),
            (lambda obs: 0, TypeError, r"policy\(obs, key, p\), got <lambda>\(obs\)"),
            (max, TypeError, "must be a plain function"),
            (on_device(env, np.zeros((2, 4), np.int32)), ValueError, r"shape \(2, 4\).*takes \(3, 4\)"),
            (on_device(env, np.zeros((3, 4), np.float32)), TypeError, "dtype float32"),
            (None, TypeError, "actions are"),
            (lambda obs, key, p: 0.5, AuthoringError, r"result is not an action of Discrete\(2\), which is an int"),
            (lambda obs, key, p: (0, 1), AuthoringError, r"result is not an action of Discrete\(2\)"),
            (lambda obs, key, p: p.length, AuthoringError, "length"),
        ]:
            with pytest.raises(error, match=said):
                env.rollout(3, policy=policy)
        assert env.rollout(3).action.shape == (3, 4)
        game = shared("tests/Mixed-v0", 4, device=env.device.partition(":")[0])
        game.reset(seed=0)
        for policy in (lambda obs, key, p: 1, lambda obs, key, p: (1, 2, 0), lambda obs, key, p: (1, 0.5)):
            with pytest.raises(AuthoringError, match="a tuple with a number for each component"):
                game.rollout(3, policy=policy)

    def test_no_distribution_is_uniform_over_all_numbers(self, device):
        env = still_envs(Box(-np.inf, 1.0, (2,)), 2, device)
        env.reset(seed=0)
        with pytest.raises(ValueError, match="finite bounds"):
            env.rollout(3)

    def test_places(self, env):
        out = env.rollout(5)
        for given, error, said in [
            (tuple(out), TypeError, "got tuple"),
            (env.rollout(4), ValueError, r"out\['obs'\] must be a writable.*shape \(6, 4, 4\)"),
            (out._replace(action=out.reward), ValueError, r"out\['action'\] must be.*uint8"),
            (out._replace(terminated=None), ValueError, r"out\['terminated'\] must be.*got NoneType"),
        ]:
            with pytest.raises(error, match=said):
                env.rollout(5, out=given)
        env = shared("gpuvec/CartPole-v1", 4, device=env.device.partition(":")[0], autoreset_mode=SAME_STEP)
        env.reset(seed=0)
        out = env.rollout(5)
        with pytest.raises(ValueError, match=r"out\['final_mask'\] must be"):
            env.rollout(5, out=out._replace(final_mask=None))

    def test_games_and_wrappers_refuse(self, device):
        game = make("gpuvec/TagGridWorld-v0", 2, device=device)
        game.reset(seed=0)
        with pytest.raises(NotImplementedError, match="not yet: step"):
            game.rollout(3)
        for wrapped in (wrappers.FlattenAgents(game), wrappers.RecordEpisodeStatistics(game), wrappers.ToNumpy(game)):
            with pytest.raises(wrappers.WrapperError, match=f"{type(wrapped).__name__} works on single steps"):
                wrapped.rollout(3)


@pytest.mark.gpu
class TestOnGpu:
    @pytest.mark.parametrize("num_envs", [4097, 10_000, 20_000, 40_000])
    def test_each_layout_of_threads_makes_the_same_rollouts(self, gpu, num_envs):
        """Blocks of 32, 64, 128 and 256 threads, the last of them with fewer envs."""
        many, few = (make("gpuvec/CartPole-v1", n, device=gpu, autoreset_mode=SAME_STEP) for n in (num_envs, 100))
        for env in (many, few):
            env.reset(seed=1)
        for num_steps in (30, 31):
            for a, b in zip(played(many, num_steps)[:5], played(few, num_steps)[:5], strict=True):
                np.testing.assert_array_equal(a[:, :100], b)

    def test_a_captured_rollout_goes_on_in_each_replay(self, gpu):
        torch = pytest.importorskip("torch")
        options = {"device": gpu, "output": "torch", "autoreset_mode": SAME_STEP, "max_episode_steps": 20}
        ours, theirs = (make("gpuvec/CartPole-v1", 300, **options) for _ in "ab")
        for env in (ours, theirs):
            env.reset(seed=2)
        out = ours.rollout(16)
        theirs.rollout(16)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):  # other libraries in the process have threads
            ours.rollout(16, out=out)
            with pytest.raises(RuntimeError, match="give what it returned as out"):
                ours.rollout(16)
        for _ in range(3):
            graph.replay()
            expected = theirs.rollout(16)
            for name in ("obs", "action", "reward", "terminated", "truncated", "final_mask"):
                assert torch.equal(getattr(out, name), getattr(expected, name))
            ended = out.final_mask
            assert torch.equal(out.final_obs[ended], expected.final_obs[ended])
