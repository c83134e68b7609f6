"""FlattenAgents returns one row for each agent, with the numbers of the arrays of its environment."""

from __future__ import annotations

import dataclasses
from functools import cache
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete, MultiDiscrete
from gymnasium.vector import AutoresetMode
from tests.support.arrays import address, host, on_device, step
from tests.support.street_env import STREET, Street, StreetParams, reward

from gpuvec import Time, VectorEnv
from gpuvec.vector.wrappers import FlattenAgents, RecordEpisodeStatistics, ToNumpy, WrapperError

E, A = 4, 3
N = E * A
LEFT, STAY, RIGHT = range(3)
MODES = list(AutoresetMode)
KINDS = ["cpu-torch", "cpu-numpy", "cpu-jax"] + [pytest.param(k, marks=pytest.mark.gpu) for k in ("cuda-torch", "cuda-cupy")]


def reward_inactive(i: int, s: Street, t: Time, p: StreetParams) -> float:
    """Gives an inactive agent a reward too, which a learner must not receive."""
    return 8.0 if s.is_out[i] and s.caught_by[i] < 0 else reward(i, s, t, p)


REWARDING_STREET = dataclasses.replace(STREET, reward=reward_inactive)


@cache
def street(kind: str, mode: AutoresetMode = AutoresetMode.SAME_STEP, **kwargs: Any) -> Any:
    """Makes environments with a guard and two walkers on a street with four places."""
    device, output = kind.split("-")
    if output in ("jax", "torch"):
        pytest.importorskip(output)
    kwargs |= {"guards": 1, "walkers": 2, "length": 3, "num_observed": 1, "max_episode_steps": 5}
    return VectorEnv(REWARDING_STREET, E, device=device, output=output, autoreset_mode=mode, **kwargs)


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    if request.param.startswith("cuda"):
        request.getfixturevalue("gpu")
    return str(request.param)


@pytest.fixture(params=["cpu-torch", pytest.param("cuda-torch", marks=pytest.mark.gpu)])
def torch_kind(request: pytest.FixtureRequest) -> str:
    if request.param.startswith("cuda"):
        request.getfixturevalue("gpu")
    return str(request.param)


def actions(num_steps: int) -> Any:
    return np.random.default_rng(0).integers(0, 3, (num_steps, E, A)).astype(np.int32)


def run_seeded(env: Any, num_steps: int = 24) -> list[Any]:
    """Runs a seeded reset and random steps, and returns their results on the host."""
    rows = isinstance(env, FlattenAgents)
    results = [host(env.reset(seed=3)[0])]
    for action in actions(num_steps):
        results.append(step(env, action.reshape(-1) if rows else action))
    return results


def run_chase(env: Any, *moves: Any) -> Any:
    """Puts the guard at 0 and the walkers at 1 and 3, makes the same moves in all envs, and yields the rows of the last env."""
    env.reset(seed=0)
    env.set_state({"x": np.tile(np.float32([0, 1, 3]), (E, 1)), "is_out": False, "caught_by": -1})
    for move in moves:
        *arrays, info = step(env, np.tile(np.int32(move), E))
        arrays += [info["agent_mask"], info["agent_terminated"]]
        yield [array[-A:].tolist() for array in arrays[1:]]


@pytest.mark.covering(1)
@pytest.mark.first_variants(1)
@pytest.mark.parametrize("mode", MODES)
def test_every_agent_is_a_row(kind: str, mode: AutoresetMode) -> None:
    env = street(kind, mode)
    env_results, rows = run_seeded(env), run_seeded(FlattenAgents(env))
    np.testing.assert_array_equal(rows[0], env_results[0].reshape(N, -1))
    num_early_exits = 0  # agents that left before the episode of the others ended
    for (obs, reward, terminated, truncated, info), row in zip(env_results[1:], rows[1:], strict=True):
        mask, left = info["agent_mask"], info["agent_terminated"]
        np.testing.assert_array_equal(row[0], obs.reshape(N, -1))
        for e in range(E):
            for i in range(A):
                over = terminated[e] or left[e, i]
                expected = [reward[e, i] if mask[e, i] else 0.0, over, truncated[e] and not over]
                assert [part[e * A + i] for part in row[1:4]] == expected
                num_early_exits += bool(left[e, i] and not terminated[e] and not truncated[e])
        np.testing.assert_array_equal(row[4]["agent_mask"], mask.reshape(-1))
        np.testing.assert_array_equal(row[4]["agent_terminated"], left.reshape(-1))
        if mode is AutoresetMode.SAME_STEP:
            np.testing.assert_array_equal(row[4]["final_obs"], info["final_obs"].reshape(N, -1))
            np.testing.assert_array_equal(row[4]["_final_obs"], np.repeat(terminated | truncated, A))
        assert row[4].keys() == info.keys()
        assert row[1].dtype == np.float32
    assert num_early_exits


@pytest.mark.first_variants(1)
@pytest.mark.parametrize("mode", MODES)
def test_episode_of_a_caught_agent_ends_once(mode: AutoresetMode) -> None:
    """One walker is caught in the first step, the other in the third, which ends the episode of the env."""
    env = FlattenAgents(street("cpu-numpy", mode))
    steps = run_chase(env, [RIGHT, STAY, STAY], [STAY, STAY, LEFT], [STAY, STAY, LEFT])
    assert next(steps) == [
        [1.0, -1.0, 0.5], [False, True, False], [False] * 3, [True, True, True], [False, True, False],
    ]  # fmt: skip
    assert next(steps) == [
        [0.0, 0.0, 0.5], [False, False, False], [False] * 3, [True, False, True], [False, False, False],
    ]  # fmt: skip
    assert next(steps) == [
        [1.0, 0.0, -1.0], [True, True, True], [False] * 3, [True, False, True], [False, False, True],
    ]  # fmt: skip


def test_agent_caught_at_the_time_limit_is_terminated() -> None:
    """In the fifth step the guard catches one walker, and the time limit truncates the guard and the other walker."""
    env = FlattenAgents(street("cpu-numpy"))
    *_, last = run_chase(env, *[[STAY] * 3] * 4, [RIGHT, STAY, STAY])
    assert last == [
        [1.0, -1.0, 0.5], [False, True, False], [True, False, True], [True, True, True], [False, True, False],
    ]  # fmt: skip


def test_spaces_of_rows() -> None:
    env = FlattenAgents(street("cpu-numpy"))
    assert (env.num_envs, env.single_action_space, env.single_observation_space.shape) == (N, Discrete(3), (5,))
    assert env.action_space == MultiDiscrete([3] * N)
    low, high = np.float32([-np.inf, -np.inf, 0, 0, 0]), np.float32([np.inf, np.inf, np.inf, 2, 1])
    assert env.observation_space == Box(np.tile(low, (N, 1)), np.tile(high, (N, 1)))
    assert env.observation_space.low.strides[0] == 0  # bounds for each row would need as much memory as an observation
    obs, _ = env.reset(seed=0)
    assert obs in env.observation_space
    assert env.step(env.action_space.sample().astype(np.int32))[0] in env.observation_space


@pytest.mark.parametrize("continuous", [False, True])
def test_spaces_of_actions_with_several_components(continuous: bool) -> None:
    params = {"num_taggers": 1, "num_runners": 2, "num_acceleration_levels": 4, "continuous_actions": continuous}
    env = FlattenAgents(gym.make_vec("gpuvec/TagContinuous-v0", 2, device="cpu", output="numpy", **params))
    low, high = np.float32([-1.0, -np.pi / 2]), np.float32([1.0, np.pi / 2])
    assert env.single_action_space == (Box(low, high) if continuous else MultiDiscrete([5, 11]))
    assert env.single_observation_space == Box(-2.0, 2.0, (15,))
    assert env.action_space.shape == (6, 2)
    env.close()


class TestMemory:
    def test_large_arrays_are_views(self, kind: str) -> None:
        if kind.endswith("jax"):
            pytest.skip("JAX has no views")
        env = street(kind)
        inner_arrays: dict[str, Any] = {}

        class InnerRecorder(ToNumpy):
            def step(self, actions: Any, out: Any = None) -> Any:
                inner_arrays["obs"], *_, info = result = self.env.step(actions)
                inner_arrays.update(info)
                return result

        rows = FlattenAgents(InnerRecorder(env))
        rows.reset(seed=0)
        obs, *_, info = rows.step(on_device(env, actions(1).reshape(-1)))
        for name, array in {"obs": obs, **{k: info[k] for k in ("agent_mask", "agent_terminated", "final_obs")}}.items():
            assert address(array) == address(inner_arrays[name])

    def test_out_receives_the_results(self, torch_kind: str) -> None:
        import torch

        env = FlattenAgents(street(torch_kind))
        expected = run_seeded(env, 12)
        bools = ("terminated", "truncated", "agent_mask", "agent_terminated", "final_mask")
        out = {name: torch.zeros(N, dtype=torch.bool, device=env.device) for name in bools}
        out |= {name: torch.zeros(N, 5, device=env.device) for name in ("obs", "final_obs")}
        out["reward"] = torch.zeros(N, device=env.device)
        env.reset(seed=3)
        for action, (obs, reward, terminated, truncated, info) in zip(actions(12), expected[1:], strict=True):
            *arrays, infos = env.step(on_device(env, action.reshape(-1)), out=out)
            expected_arrays = {"obs": obs, "reward": reward, "terminated": terminated, "truncated": truncated, **info}
            names = ("obs", "reward", "terminated", "truncated")
            for name, array in {**dict(zip(names, arrays, strict=True)), **infos}.items():
                out_name = "final_mask" if name == "_final_obs" else name
                if out_name in out:
                    assert address(array) == address(out[out_name])
                    rows = info["_final_obs"] if name == "final_obs" else slice(None)  # other rows are not specified
                    np.testing.assert_array_equal(host(array)[rows], expected_arrays[name][rows], name)

    @pytest.mark.parametrize(
        ("name", "array", "message"),
        [
            ("obs", np.zeros((E, A, 5), np.float32), r"shape \(12, 5\), one row per agent, got ndarray of shape \(4, 3, 5\)"),
            ("obs", np.zeros((N, 10), np.float32)[:, ::2], r"of shape \(12, 5\) with gaps"),
            ("terminated", np.zeros((N, 1), np.bool_), r"shape \(12,\), one row per agent, got ndarray of shape \(12, 1\)"),
            ("reward", np.zeros(N, np.float64), "out['reward'] must be a writable C-contiguous array.* float64"),
            ("rewards", np.zeros(N, np.float32), "out has unknown names"),
        ],
    )
    def test_invalid_out_arrays_are_refused(self, name: str, array: Any, message: str) -> None:
        env = FlattenAgents(street("cpu-numpy"))
        env.reset(seed=0)
        with pytest.raises(ValueError, match=message.replace("['", r"\['").replace("']", r"'\]")):
            env.step(np.zeros(N, np.int32), out={name: array})

    @pytest.mark.gpu
    def test_cuda_graph_replays_steps(self, gpu: str) -> None:
        import torch

        env = FlattenAgents(street("cuda-torch", buffers=1))
        expected = run_seeded(env, 8)
        env.reset(seed=3)
        action = torch.zeros(N, dtype=torch.int32, device=env.device)
        saved = env.state_dict()
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())  # the current stream saves the state
        with torch.cuda.stream(stream):
            env.step(action)
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):  # other libraries have threads
            result = env.step(action)
        env.load_state_dict(saved)
        torch.cuda.set_sync_debug_mode("error")
        try:
            replays = []
            for row in actions(8):
                action.copy_(torch.from_numpy(row.reshape(-1)).pin_memory(), non_blocking=True)
                graph.replay()
                replays.append([x.clone() for x in result[:4]])
        finally:
            torch.cuda.set_sync_debug_mode("default")
        for replayed, eager in zip(replays, expected[1:], strict=True):
            for x, y in zip(replayed, eager[:4], strict=True):
                np.testing.assert_array_equal(host(x), y)


class TestReset:
    def test_masks_of_envs_and_of_rows_are_equivalent(self, kind: str) -> None:
        env = FlattenAgents(street(kind, AutoresetMode.DISABLED))
        mask = np.array([True, False, False, True])
        results = []
        for reset_mask in (mask, np.repeat(mask, A), on_device(env, mask), on_device(env, np.repeat(mask, A))):
            before = run_seeded(env, 4)[-1][0]
            options = {"reset_mask": reset_mask}
            obs = host(env.reset(options=options)[0])
            assert options == {"reset_mask": reset_mask}
            np.testing.assert_array_equal(obs[A : 3 * A], before[A : 3 * A])
            results.append(obs)
        assert (results[0][:A] != before[:A]).any()
        for other in results[1:]:
            np.testing.assert_array_equal(results[0], other)

    def test_mask_must_be_equal_for_all_agents_of_an_env(self, kind: str) -> None:
        env = FlattenAgents(street(kind, AutoresetMode.DISABLED))
        env.reset(seed=0)
        mask = on_device(env, np.arange(N) == 4)
        with pytest.raises(ValueError, match=r"differs in env 1, rows 3 to 5. Give one value per env, in shape \(4,\)"):
            env.reset(options={"reset_mask": mask})

    def test_seeds_apply_to_envs(self) -> None:
        env = FlattenAgents(street("cpu-numpy"))
        obs = env.env.reset(seed=[5, 6, 7, 8])[0].copy()
        np.testing.assert_array_equal(env.reset(seed=[5, 6, 7, 8])[0], obs.reshape(N, -1))


def test_state_and_attributes_of_envs_are_available() -> None:
    env = FlattenAgents(street("cpu-numpy"))
    env.reset(seed=0)
    saved = env.state_dict()
    first = [env.step(a.reshape(-1))[0].copy() for a in actions(6)]
    env.load_state_dict(saved)
    np.testing.assert_array_equal(first, [env.step(a.reshape(-1))[0] for a in actions(6)])
    assert env.get_state()["x"].shape == (E, A)
    assert (env.num_agents, env.roles) == (A, {"guard": slice(0, 1), "walker": slice(1, 3)})
    assert env.autoreset_mode is AutoresetMode.SAME_STEP


@pytest.mark.parametrize("mode", MODES)
def test_episode_statistics_of_rows_end_when_agents_leave(mode: AutoresetMode) -> None:
    """The episode of the first walker has one step, and its next episode begins with the next episode of the env."""
    env = RecordEpisodeStatistics(FlattenAgents(street("cpu-numpy", mode)))
    list(run_chase(env, [RIGHT, STAY, STAY], [STAY, STAY, LEFT], [STAY, STAY, LEFT]))
    assert env.statistics().episodes == N
    assert sorted(zip(env.statistics().returns.tolist(), env.statistics().lengths.tolist(), strict=True)) == sorted(
        [(2.0, 3), (-1.0, 1), (0.0, 3)] * E
    )


class TestErrors:
    def test_single_agent_env_is_refused(self) -> None:
        env = gym.make_vec("gpuvec/CartPole-v1", 2, device="cpu", output="numpy")
        with pytest.raises(WrapperError, match="is for gpuvec environments of many agents"):
            FlattenAgents(env)
        with pytest.raises(WrapperError, match="is for gpuvec environments of many agents"):
            FlattenAgents(gym.make_vec("CartPole-v1", 2))

    @pytest.mark.parametrize("reward", ["sum", "walker"])
    def test_summed_rewards_are_refused(self, reward: str) -> None:
        with pytest.raises(WrapperError, match=f"returns that of '{reward}': make it with reward='agents'"):
            FlattenAgents(street("cpu-numpy", reward=reward))

    def test_dlpack_output_is_refused(self) -> None:
        with pytest.raises(WrapperError, match="output='torch', 'numpy'"):
            FlattenAgents(street("cpu-dlpack"))

    @pytest.mark.parametrize(
        "wrong_actions", [np.zeros((E, A), np.int32), np.zeros(E, np.int32), np.zeros((N, 1), np.int32), 0]
    )
    def test_actions_of_a_wrong_shape_are_refused(self, wrong_actions: Any) -> None:
        env = FlattenAgents(street("cpu-numpy"))
        env.reset(seed=0)
        with pytest.raises(ValueError, match=r"4 envs of 3 agents take \(12,\), one row per agent"):
            env.step(wrong_actions)
