"""A rollout by one kernel equals T calls of `step`, and its random actions are uniform and follow from the seed."""

from __future__ import annotations

import importlib
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode
from tests.support.arrays import address, host, on_device, reset, step
from tests.support.bundled_envs import THREAD_PER_ENV
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


def draw_components(obs: Any, key: Any, p: Any) -> Any:
    return randint(key, 0, 0, 3), 3 if obs[0] > p.noise else randint(key, 1, 0, 3)


def run_rollout(env: Any, num_steps: int, **kwargs: Any) -> Rollout:
    """Runs a rollout and returns it as NumPy arrays."""
    return Rollout(*host(tuple(env.rollout(num_steps, **kwargs))[: 7 if env.autoreset_mode is SAME_STEP else 5]))


def assert_equal(a: Any, b: Any, rounded: bool, **options: Any) -> None:
    """Asserts that two arrays are equal, or nearly equal if `rounded`.

    In another kernel, the CUDA compiler may round a sum of products differently. The rewards of Pendulum are such sums.
    """
    if rounded and a.dtype == np.float32:
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5, **options)
    else:
        np.testing.assert_array_equal(a, b, strict=True, **options)


def assert_steps(env: Any, rollout: Rollout, obs: Any, rounded: bool = False) -> Any:
    """Asserts that `env`, whose last observation is `obs`, returns the same steps; returns its new observation."""
    assert_equal(rollout.obs[0], obs, rounded)
    assert len(rollout.obs) == len(rollout.action) + 1 == len(rollout.reward) + 1
    for t, action in enumerate(rollout.action):
        obs, reward, terminated, truncated, infos = step(env, action)
        for k, expected in enumerate((reward, terminated, truncated)):
            assert_equal(rollout[2 + k][t], expected, rounded, err_msg=f"output {k} of step {t}")
        assert_equal(rollout.obs[t + 1], obs, rounded, err_msg=f"step {t}")
        if env.autoreset_mode is SAME_STEP:
            ended = infos["_final_obs"]
            np.testing.assert_array_equal(rollout.final_mask[t], ended, strict=True)
            assert_equal(rollout.final_obs[t][ended], infos["final_obs"][ended], rounded)
            assert np.isfinite(rollout.final_obs).all()
    return obs


def assert_same_state(a: Any, b: Any, rounded: bool = False) -> None:
    ours, theirs = (host(env.state_dict()["buffers"]) for env in (a, b))
    for name, array in ours.items():
        assert_equal(array, theirs[name], rounded, err_msg=name)


# Their states are scalars and their actions are as those of CartPole or Pendulum; the next test has all modes.
SIMILAR = ("Acrobot-v1", "MountainCar-v0", "MountainCarContinuous-v0")


@pytest.mark.covering(1)
@pytest.mark.first_variants(1)
@pytest.mark.parametrize("mode", MODES, ids=lambda m: m.value)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow_on("cpu") if name in SIMILAR else ()) for name in THREAD_PER_ENV]
)
def test_rollout_equals_the_steps_of_every_environment(device, name, mode):
    ours, theirs = (make(f"gpuvec/{name}", 33, device=device, autoreset_mode=mode, max_episode_steps=7) for _ in "ab")
    rounded = device == "cuda" and name == "Pendulum-v1"
    ours.reset(seed=3)
    obs = assert_steps(theirs, first := run_rollout(ours, 20), reset(theirs, seed=3), rounded)
    assert_steps(theirs, run_rollout(ours, 9), obs, rounded)
    assert_same_state(ours, theirs, rounded)
    ends = (first.terminated | first.truncated).sum(0)
    assert (ends == 1).all() if mode is AutoresetMode.DISABLED else (ends >= 2).all()


@pytest.mark.covering(1)
@pytest.mark.first_variants(1)
@pytest.mark.parametrize("policy", ["random", draw_components], ids=["random", "function"])
@pytest.mark.parametrize("mode", MODES, ids=lambda m: m.value)
def test_steps_and_rollouts_can_alternate(backend, mode, policy):
    """Each env has its own parameters, seed and reset pool, and the simulator uses two thread blocks."""
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
        obs = assert_steps(theirs, rollout := run_rollout(ours, num_steps, policy=policy), obs)
        obs = step(theirs, rollout.action[0])[0]
        np.testing.assert_array_equal(step(ours, rollout.action[0])[0], obs)
        assert_same_state(ours, theirs)
    assert rollout.action.dtype == np.uint8
    obs = reset(theirs, options={"reset_mask": masks})
    np.testing.assert_array_equal(reset(ours, options={"reset_mask": masks}), obs)
    assert_steps(theirs, run_rollout(ours, 3, policy=policy), obs)


@pytest.mark.first_variants(1)
@pytest.mark.simulator
@pytest.mark.parametrize("mode", MODES, ids=lambda m: m.value)
def test_kernel_with_branches_equals_the_steps(simulator, mode, monkeypatch):
    """The test runs the kernel for large batches, which uses branches, with a small batch."""
    monkeypatch.setattr(importlib.import_module("gpuvec.engine.backends.cuda.launch_config"), "MULTIPROCESSORS", 0)
    ours, theirs = (make("tests/Counter-v0", 33, device=simulator, autoreset_mode=mode) for _ in "ab")
    assert not ours.simulation._kernels._launch_config.latency_bound
    obs, _ = (reset(env, seed=2) for env in (theirs, ours))
    for num_steps in (6, 1, 7):
        obs = assert_steps(theirs, run_rollout(ours, num_steps), obs)
    assert_same_state(ours, theirs)


def test_array_of_actions_is_executed(backend):
    ours, theirs = (make("tests/Counter-v0", 5, device=backend, autoreset_mode=SAME_STEP) for _ in "ab")
    obs, _ = (reset(env, seed=0) for env in (theirs, ours))
    for dtype in (np.uint8, np.int32, np.int64):
        actions = on_device(ours, np.random.default_rng(1).integers(0, 10, (6, 5)).astype(dtype))
        outputs = ours.rollout(6, policy=actions)
        assert outputs.action is actions
        rollout = Rollout(*host(tuple(outputs)))
        np.testing.assert_array_equal(rollout.reward, rollout.action)  # the reward rule of a Counter
        obs = assert_steps(theirs, rollout, obs)


def test_random_actions_follow_philox(backend):
    """The key is (seed, row) and the counter is the row's clock, which is 1 in the first step; four steps share a block."""
    env = shared("tests/Counter-v0", 40, device=backend)
    env.reset(seed=2**40 + 5)
    actions = np.concatenate([run_rollout(env, num_steps).action for num_steps in (3, 1, 6)])
    for row in (0, 17, 39):
        words = [philox(c >> 2, 2**32 - 2, 0, 2**8, 5, row)[c & 3] for c in range(1, 11)]
        assert actions[:, row].tolist() == [int(w) * 10 >> 32 for w in words]


def test_policy_function_has_its_own_key(backend):
    env = make("tests/Mixed-v0", 3, device=backend)
    env.reset(seed=9)
    rollout = run_rollout(env, 5, policy=draw_components)
    for t, row in np.ndindex(5, 3):
        key = Key(9, 0, row, t + 1, 2**32 - 1)
        expected = [randint(key, 0, 0, 3), 3 if rollout.obs[t, row, 0] > 1.0 else randint(key, 1, 0, 3)]
        assert rollout.action[t, row].tolist() == expected


class SingleValue(NamedTuple):
    x: float


def make_constant_env(space: Any) -> SingleAgentEnv:
    """Makes an environment whose state is constant, whose reward is the action and whose episodes never end."""
    return SingleAgentEnv(
        state=SingleValue,
        params=SingleValue(0.0),
        reset=lambda key, p: SingleValue(uniform(key, 0, 0.0, 1.0)),
        step=(lambda s, a, key, p: (s, a, False)) if isinstance(space, Discrete) else lambda s, a, key, p: (s, a[0], False),
        observe=lambda s, p: (s.x,),
        spaces=lambda p: (Box(-np.inf, np.inf, (1,)), space),
    )


def make_constant_envs(space: Any, num_envs: int, device: str, **kwargs: Any) -> Any:
    output = "cupy" if device == "cuda" else "numpy"
    return gpuvec.VectorEnv(make_constant_env(space), num_envs, device=device, output=output, **kwargs)


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
    env = make_constant_envs(space, 2000, device)
    env.reset(seed=1)
    rollout = run_rollout(env, 50)
    assert rollout.action.dtype == dtype
    np.testing.assert_array_equal(rollout.reward, rollout.action if isinstance(space, Discrete) else rollout.action[..., 0])
    if isinstance(space, Discrete):
        count = np.bincount(rollout.action.ravel() - int(space.start), minlength=int(space.n))
        expected, num_values = rollout.action.size / space.n, len(count)
        assert num_values == space.n
        assert (np.abs(count - expected) < 5 * np.sqrt(expected)).all()
    else:
        low, high = space.low.astype(float), space.high.astype(float)
        assert ((rollout.action >= low) & (rollout.action <= high)).all()
        error = 5 * (high - low) / np.sqrt(12 * 100_000)
        np.testing.assert_array_less(np.abs(rollout.action.mean((0, 1)) - (low + high) / 2), error + 1e-6)
        np.testing.assert_allclose(rollout.action.std((0, 1)), (high - low) / np.sqrt(12), rtol=0.02)
    x = rollout.action.reshape(50, 2000, -1)[..., 0].astype(float)
    for a, b in ((x[1:], x[:-1]), (x[:, 1:], x[:, :-1]), (x, np.broadcast_to(rollout.obs[0, :, 0], x.shape))):
        assert abs(np.corrcoef(a.ravel(), b.ravel())[0, 1]) < 0.05  # in time, among rows, and with the initial state


@pytest.mark.parametrize("num_envs", [2, 257, 5000])
def test_env_is_independent_of_other_envs(device, num_envs):
    """Resets of the other envs do not matter either."""
    single_env, batch_env = (shared("gpuvec/CartPole-v1", n, device=device, autoreset_mode=SAME_STEP) for n in (1, num_envs))
    single_env.reset(seed=[4 + num_envs])
    batch_env.reset(seed=list(range(5, 5 + num_envs)))
    reset(batch_env, options={"reset_mask": np.arange(num_envs) < num_envs - 1})
    one, many = run_rollout(single_env, 120), run_rollout(batch_env, 120)
    assert one.final_mask.any()
    for name in ("obs", "action", "reward", "terminated", "truncated", "final_mask"):
        np.testing.assert_array_equal(getattr(one, name)[:, 0], getattr(many, name)[:, -1])


def test_results_are_independent_of_the_number_of_threads(monkeypatch):
    monkeypatch.setattr(cpu_threads, "AGENTS_PER_THREAD", 100)
    runs = []
    for threads in (1, 3):
        monkeypatch.setattr(cpu_threads.os, "sched_getaffinity", lambda _, n=threads: set(range(n)), raising=False)
        env = make("gpuvec/CartPole-v1", 1001, autoreset_mode=SAME_STEP)
        env.reset(seed=0)
        runs.append([*run_rollout(env, 20), *env.state_dict()["buffers"].values()])
        assert env.simulation._kernels.num_threads == threads
        env.close()
    for a, b in zip(*runs, strict=True):
        np.testing.assert_array_equal(a, b, strict=True)


class TestOutputs:
    def test_outputs_are_new_arrays_or_those_of_out(self, device):
        env = shared("tests/Counter-v0", 4, device=device, autoreset_mode=SAME_STEP)
        env.reset(seed=0)
        first = env.rollout(6)
        copies = host(tuple(first))
        second = env.rollout(6)
        for a, b, before in zip(first, second, copies, strict=True):
            assert address(a) != address(b)
            np.testing.assert_array_equal(host(a), before)
        third = env.rollout(6, out=first)
        assert all(a is b for a, b in zip(third, first, strict=True))
        np.testing.assert_array_equal(host(third.obs)[0], host(second.obs)[-1])
        reused = env.rollout(6, policy=second.action, out=third)
        assert reused.action is second.action
        assert reused.obs is first.obs

    def test_ring_of_outputs_is_reused(self, device):
        env = make("tests/Counter-v0", 4, device=device, buffers=2)
        env.reset(seed=0)
        addresses = [address(env.rollout(3).obs) for _ in range(4)]
        assert addresses[:2] == addresses[2:]
        assert addresses[0] != addresses[1]

    @pytest.mark.parametrize("output", ["torch", "jax", "dlpack"])
    def test_outputs_have_the_type_of_the_framework(self, output):
        if output != "dlpack":
            pytest.importorskip(output)
        env = make("tests/Mixed-v0", 3, output=output)
        plain = shared("tests/Mixed-v0", 3)
        for one in (env, plain):
            one.reset(seed=5)
        rollout = env.rollout(4)
        assert type(rollout.obs) is type(env.reset(seed=5)[0])
        for a, b in zip(rollout[:5], plain.rollout(4), strict=False):
            np.testing.assert_array_equal(host(a), b)


class TestInvalidActions:
    @pytest.fixture
    def env(self, backend):
        env = make("tests/Counter-v0", 4, device=backend, validate=True, autoreset_mode="Disabled", maximum=1e9)
        env.reset(seed=0)
        return env

    def test_error_names_the_first_invalid_env(self, env):
        actions = np.zeros((5, 4), np.int32)
        actions[1, 3], actions[4, 2] = 11, -2
        env.rollout(5, policy=on_device(env, actions))
        with pytest.raises(ActionError, match="environment 2 was given action -2; allowed are 0 to 9"):
            env.check()
        env.rollout(5)
        env.check()

    def test_actions_of_a_policy_function_are_checked(self, env):
        env.rollout(3, policy=lambda obs, key, p: 256)
        with pytest.raises(ActionError, match="environment 0 was given action 255; allowed are 0 to 9"):
            env.check()

    def test_steps_after_the_episode_end_raise(self, backend):
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

    def test_rollout_before_reset_and_after_close_raises(self, device):
        env = make("gpuvec/CartPole-v1", 4, device=device)
        with pytest.raises(gym.error.ResetNeeded):
            env.rollout(3)
        env.close()
        with pytest.raises(gym.error.ClosedEnvironmentError):
            env.rollout(3)

    @pytest.mark.parametrize("num_steps", [0, -1, 2**31, 2.0, True, "3", None])
    def test_invalid_num_steps_raises(self, env, num_steps):
        with pytest.raises(ValueError, match="num_steps must be an integer from 1 to"):
            env.rollout(num_steps)

    def test_invalid_policies_raise(self, env):
        for policy, error, message in [
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
            with pytest.raises(error, match=message):
                env.rollout(3, policy=policy)
        assert env.rollout(3).action.shape == (3, 4)
        game = shared("tests/Mixed-v0", 4, device=env.device.partition(":")[0])
        game.reset(seed=0)
        for policy in (lambda obs, key, p: 1, lambda obs, key, p: (1, 2, 0), lambda obs, key, p: (1, 0.5)):
            with pytest.raises(AuthoringError, match="a tuple with a number for each component"):
                game.rollout(3, policy=policy)

    def test_random_actions_need_finite_bounds(self, device):
        env = make_constant_envs(Box(-np.inf, 1.0, (2,)), 2, device)
        env.reset(seed=0)
        with pytest.raises(ValueError, match="finite bounds"):
            env.rollout(3)

    def test_invalid_out_raises(self, env):
        out = env.rollout(5)
        for wrong_out, error, message in [
            (tuple(out), TypeError, "got tuple"),
            (env.rollout(4), ValueError, r"out\['obs'\] must be a writable.*shape \(6, 4, 4\)"),
            (out._replace(action=out.reward), ValueError, r"out\['action'\] must be.*uint8"),
            (out._replace(terminated=None), ValueError, r"out\['terminated'\] must be.*got NoneType"),
        ]:
            with pytest.raises(error, match=message):
                env.rollout(5, out=wrong_out)
        env = shared("gpuvec/CartPole-v1", 4, device=env.device.partition(":")[0], autoreset_mode=SAME_STEP)
        env.reset(seed=0)
        out = env.rollout(5)
        with pytest.raises(ValueError, match=r"out\['final_mask'\] must be"):
            env.rollout(5, out=out._replace(final_mask=None))

    def test_multi_agent_envs_and_wrappers_refuse_rollouts(self, device):
        game = make("gpuvec/TagGridWorld-v0", 2, device=device)
        game.reset(seed=0)
        with pytest.raises(NotImplementedError, match="features and a state of scalars"):
            game.rollout(3)
        for wrapped in (wrappers.FlattenAgents(game), wrappers.RecordEpisodeStatistics(game), wrappers.ToNumpy(game)):
            with pytest.raises(wrappers.WrapperError, match=f"{type(wrapped).__name__} works on single steps"):
                wrapped.rollout(3)


@pytest.mark.gpu
class TestOnGpu:
    @pytest.mark.parametrize("num_envs", [4097, 10_000, 20_000, 40_000])
    def test_every_block_size_returns_the_same_rollout(self, gpu, num_envs):
        """Blocks have 32, 64, 128 and 256 threads, and the last block has fewer envs."""
        many, small = (make("gpuvec/CartPole-v1", n, device=gpu, autoreset_mode=SAME_STEP) for n in (num_envs, 100))
        for env in (many, small):
            env.reset(seed=1)
        for num_steps in (30, 31):
            for a, b in zip(run_rollout(many, num_steps)[:5], run_rollout(small, num_steps)[:5], strict=True):
                np.testing.assert_array_equal(a[:, :100], b)

    def test_captured_rollout_continues_in_each_replay(self, gpu):
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
