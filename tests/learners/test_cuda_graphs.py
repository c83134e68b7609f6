"""CUDA graphs: what a capture must leave unchanged on any device, and what a replay does on a GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import gymnasium as gym
import pytest

torch = pytest.importorskip("torch")

from tests.support import guess_env  # noqa: F401  # registers the environments

from gpuvec.errors import StaleGraphError, StateError
from gpuvec.learners.a2c import A2CArgs
from gpuvec.learners.cuda_graphs.graph import WARM_UPS, capture, clone_tensors, copy_into, renew_gradient_nodes
from gpuvec.learners.cuda_graphs.optimizer import Adam
from gpuvec.learners.ddpg import DDPGArgs
from gpuvec.learners.evaluation import players
from gpuvec.learners.evaluation.evaluate import run_episodes
from gpuvec.learners.learner import Learner
from gpuvec.learners.networks.mlp import SeparateMLP
from gpuvec.learners.ppo import PPOArgs
from gpuvec.learners.training import make_learner, make_training_env


@pytest.fixture
def learners() -> Iterator[list[Learner]]:
    """Two equal learners, each with its own environment."""
    args = PPOArgs(device="cpu", num_envs=16, num_steps=8, hidden=(8,), params={"max_episode_steps": 20}).resolved("cpu")
    envs = [gym.make_vec(args.env, 16, device="cpu", output="torch", autoreset_mode="SameStep", **args.params) for _ in "ab"]
    yield [make_learner(args, env) for env in envs]
    for env in envs:
        env.close()


def test_warm_up_calls_before_a_capture_do_not_change_the_learner(learners: list[Learner]) -> None:
    """A capture first runs each part; afterwards the state of the learner is restored bit for bit, as on a GPU."""
    warmed, fresh = learners
    for _ in range(2):
        warmed.iterate()
        fresh.iterate()
    saved = warmed.state_dict()
    places = [x.data_ptr() for x in warmed.policy.parameters.values()]
    for part in warmed.stages:
        for _ in range(WARM_UPS):
            part()
    warmed.load_state_dict(saved)
    assert [x.data_ptr() for x in warmed.policy.parameters.values()] == places  # a graph uses these addresses
    for _ in range(3):
        warmed.iterate()
        fresh.iterate()
        assert warmed.read() == pytest.approx(fresh.read(), abs=0.0, nan_ok=True)
        for x, y in zip(warmed.policy.buffer, fresh.policy.buffer, strict=True):
            # Rows of final_obs where no episode ends are undefined, and a single agent has no mask.
            if x is not None and x is not warmed.policy.buffer.final_obs:
                assert torch.equal(x, y)
    for x, y in zip(warmed.policy.parameters.values(), fresh.policy.parameters.values(), strict=True):
        assert torch.equal(x, y)


def gradient_node(p: Any) -> Any:
    """The node of autograd that receives the gradient of a parameter, which is made if none is alive."""
    return p.view_as(p).grad_fn.next_functions[0][0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_a_renewed_gradient_node_is_another_one_and_earlier_graphs_remain(dtype: torch.dtype) -> None:
    p, calls = torch.nn.Parameter(torch.arange(6, dtype=dtype).view(2, 3).t()), list[str]()
    p.register_hook(lambda gradient: calls.append("gradient"))
    p.register_post_accumulate_grad_hook(lambda p: calls.append("accumulated"))
    before = p.data_ptr(), p.stride(), p._version
    loss = (p * p).sum()  # keeps the node
    gradient_node(p).metadata["is_old"] = True
    assert "is_old" in gradient_node(p).metadata
    renew_gradient_nodes([p, torch.nn.Parameter(torch.zeros(2), requires_grad=False)])
    assert "is_old" not in gradient_node(p).metadata
    assert (p.data_ptr(), p.stride(), p._version) == before
    (gradient,) = torch.autograd.grad((3 * p).sum(), [p])
    assert gradient.unique().tolist() == [3.0]
    calls.clear()
    for each in (loss, (3 * p).sum()):
        each.backward()
    assert p.grad is not None
    assert torch.equal(p.grad, 2 * p + 3)
    assert calls == ["gradient", "accumulated"] * 2


@pytest.mark.parametrize("algorithm", [PPOArgs, A2CArgs])
def test_only_an_update_builds_graphs_for_gradients(algorithm: Any) -> None:
    """Their nodes would belong to the stream of whoever makes the learner, and not to that of the capture."""
    is_enabled = list[bool]()

    class Body(SeparateMLP):
        def policy(self, obs: Any) -> Any:
            is_enabled.append(torch.is_grad_enabled())
            return super().policy(obs)

        def value(self, obs: Any) -> Any:
            is_enabled.append(torch.is_grad_enabled())
            return super().value(obs)

    args = algorithm(device="cpu", num_envs=4, num_steps=8, params={"max_episode_steps": 5}).resolved("cpu")
    learner = make_learner(args, make_training_env(args, 4), lambda *_: Body(4, 2, (8,), "orthogonal", "tanh"))
    learner.collect()
    learner.policy.estimate()
    assert is_enabled
    assert not any(is_enabled)
    learner.policy.improve()
    assert is_enabled[-1]


def test_restore_writes_all_or_nothing() -> None:
    own: dict[str, Any] = {"a": torch.zeros(2), "b": {"c": torch.zeros(3)}}
    with pytest.raises(StateError, match=r"b\.c must have shape \(3,\).*got \(1,\)"):
        copy_into(own, {"a": torch.ones(2), "b": {"c": torch.ones(1)}})
    with pytest.raises(StateError, match="expected"):
        copy_into(own, {"a": torch.ones(2), "b": {}})
    assert own["a"].tolist() == [0.0, 0.0]
    saved = clone_tensors(own)
    copy_into(own, {"a": torch.ones(2), "b": {"c": torch.ones(3)}})
    assert own["b"]["c"].tolist() == [1.0, 1.0, 1.0]
    assert saved["b"]["c"].tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("is_contiguous", [True, False])
@pytest.mark.parametrize("shape", [(5, 1), (3, 2000)])  # The larger one is stepped in pieces.
def test_adam_starts_like_the_adam_of_torch(shape: tuple[int, int], is_contiguous: bool) -> None:
    """Its state exists before the first step, and its steps equal those of an optimizer that creates it lazily."""
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(shape, generator=generator)
    start = start if is_contiguous else start.t()
    ours, theirs = start.clone(), start.clone()
    optimizer = Adam([ours], torch.tensor(0.1), eps=1e-5)
    assert torch.equal(ours, start)
    assert {name: x.abs().sum().item() for name, x in optimizer.state[ours].items()} == {
        "step": 0.0, "exp_avg": 0.0, "exp_avg_sq": 0.0,
    }  # fmt: skip
    oracle = torch.optim.Adam([theirs], 0.1, eps=1e-5)
    for _ in range(3):
        gradient = torch.empty_like(start).normal_(generator=generator)
        ours.grad, theirs.grad = gradient.clone(), gradient.clone()
        optimizer.step()
        oracle.step()
    torch.testing.assert_close(ours, theirs)


def test_adam_uses_a_new_learning_rate() -> None:
    rate, weight = torch.tensor(0.1), torch.zeros(1)
    optimizer = Adam([weight], rate, eps=1e-8)
    rate.fill_(0.25)
    weight.grad = torch.ones(1)
    optimizer.step()
    assert weight.item() == pytest.approx(-0.25)


def test_adam_skips_steps_while_found_inf_is_set() -> None:
    weight, flag = torch.zeros(2, requires_grad=True), torch.ones(())
    optimizer = Adam([weight], torch.tensor(0.1), eps=1e-8)
    weight.grad, optimizer.found_inf = torch.ones(2), flag
    optimizer.step()
    assert [x.detach().abs().sum().item() for x in (weight, *optimizer.state[weight].values())] == [0.0] * 4
    flag.fill_(0.0)
    optimizer.step()
    assert weight.tolist() == pytest.approx([-0.1, -0.1])
    assert optimizer.state[weight]["step"].item() == 1.0


def test_adam_steps_parameters_of_two_types() -> None:
    """Each type has its own fused operation."""
    weights = [torch.ones(3), torch.ones(2, dtype=torch.float64), torch.ones(1)]
    optimizer = Adam(weights, torch.tensor(0.5), eps=1e-8)
    for weight in weights:
        weight.grad = torch.ones_like(weight)
    optimizer.step()
    assert [weight.tolist() for weight in weights] == [pytest.approx([0.5] * len(weight)) for weight in weights]


def test_adam_refuses_a_missing_gradient() -> None:
    optimizer = Adam([torch.zeros(1)], torch.tensor(0.1), eps=1e-8)
    with pytest.raises(ValueError, match="no gradient"):
        optimizer.step()


SIZES: dict[str, Any] = {"device": "cuda:0", "num_envs": 64, "num_steps": 8}
TAG: dict[str, Any] = {**SIZES, "env": "gpuvec/TagContinuous-v0", "params": {"num_runners": 3, "continuous_actions": True}}
REPLAY: dict[str, Any] = {
    "buffer_size": 4096,
    "batch_size": 64,
    "gradient_steps": 2,
    "learning_starts": 0,
    "num_iterations": 128,
}
UPDATED_BY_OPERATIONS: dict[str, dict[str, Any]] = {
    "perceptron": {"all": PPOArgs(**SIZES, hidden=(24,), fused=False)},
    "convolution": {"all": PPOArgs(**SIZES, env="gpuvec/Breakout-v0", hidden=(128,), activation="relu")},
    "a2c": {"all": A2CArgs(**SIZES)},
    "critic observations": {"all": PPOArgs(**SIZES, env="tests/Guessers-v0")},
    "several policies": {"tagger": PPOArgs(**TAG), "runner": DDPGArgs(**TAG, **REPLAY)},
    "ddpg": {"all": DDPGArgs(**SIZES, env="gpuvec/Pendulum-v1", **REPLAY)},
}


def keep_losses(learner: Learner) -> object:
    """Computes gradients as a user does, and returns what keeps their graphs alive."""
    losses = [sum(p.square().sum() for p in policy.network.parameters()) for policy in learner.policies.values()]
    for loss in losses:
        loss.backward(retain_graph=True)
    return losses


def keep_exception(learner: Learner) -> object:
    """Lets an update fail; the frames of the exception have the loss."""

    def fail(*_: object) -> None:
        raise ZeroDivisionError

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Adam, "step", fail)
        with pytest.raises(ZeroDivisionError) as caught:
            learner.iterate()
    return caught


def keep_evaluation(learner: Learner) -> object:
    """Evaluates the policies."""
    networks = {role: policy.network for role, policy in learner.policies.items()}
    player = players.policy(networks["all"]) if "all" in networks else players.policies_by_role(networks)
    return run_episodes(learner.args.env, player, episodes=2, device="cuda:0", params=learner.args.params)


def keep_graphs(learner: Learner) -> object:
    """Captures the stages before."""
    return learner.capture()


@pytest.mark.gpu
class TestOnGpu:
    def test_each_replay_runs_the_function_once(self, gpu: str) -> None:
        count = torch.zeros((), device=gpu)
        add = capture(lambda: count.add_(1.0), gpu, [], lambda: 0)
        assert count.item() == WARM_UPS
        for _ in range(3):
            add()
        assert count.item() == WARM_UPS + 3

    def test_random_numbers_continue_as_in_eager_calls(self, gpu: str) -> None:
        generator, drawn = torch.Generator(gpu), torch.zeros(1000, device=gpu)

        def draw() -> None:
            drawn.copy_(torch.rand(1000, device=gpu, generator=generator))

        generator.manual_seed(5)
        expected = []
        for _ in range(4):
            draw()
            expected.append(drawn.clone())
        replay = capture(draw, gpu, [generator], lambda: 0)
        generator.manual_seed(5)
        for numbers in expected:
            replay()
            assert torch.equal(drawn, numbers)
        assert not torch.equal(expected[0], expected[1])

    def test_a_stale_graph_raises_an_error(self, gpu: str) -> None:
        version, x = [3], torch.zeros(1, device=gpu)
        replay = capture(x.zero_, gpu, [], lambda: version[0])
        replay()
        version[0] = 4
        with pytest.raises(StaleGraphError, match=r"version 4, captured 3.*per_env"):
            replay()

    @pytest.mark.parametrize("compile", [False, True])
    def test_captured_training_learns(self, gpu: str, compile: bool) -> None:
        from gpuvec.learners.config.tuned import tuned
        from gpuvec.learners.evaluation.evaluate import evaluate
        from gpuvec.learners.ppo import train

        # The settings that all seeds learn with; fused kernels have no loss that could be compiled.
        result = train(tuned("gpuvec/CartPole-v1", gpu, fused=False, compile=compile))
        assert float(evaluate(result.network, "gpuvec/CartPole-v1", device=gpu).mean()) >= 475.0

    def test_other_threads_may_call_the_driver_during_a_capture(self, gpu: str) -> None:
        """An allocation in another thread would invalidate a capture in the global capture mode."""
        import threading

        x, over, calls = torch.zeros(8, device=gpu), threading.Event(), []

        def allocate_repeatedly() -> None:
            import cupy

            with cupy.cuda.Device(0):
                while not over.is_set():
                    cupy.cuda.runtime.free(cupy.cuda.runtime.malloc(1024))
                    calls.append(1)

        def work() -> None:
            before = len(calls)
            while len(calls) == before:  # at least one call within
                pass
            x.add_(1.0)

        thread = threading.Thread(target=allocate_repeatedly)
        thread.start()
        try:
            replay = capture(work, gpu, [], lambda: 0)
        finally:
            over.set()
            thread.join()
        before = float(x[0])
        replay()
        assert float(x[0]) == before + 1.0

    @pytest.mark.parametrize("keep", [keep_losses, keep_exception, keep_evaluation, keep_graphs])
    @pytest.mark.parametrize("name", UPDATED_BY_OPERATIONS)
    def test_a_capture_depends_on_no_earlier_graph(self, gpu: str, name: str, keep: Callable[[Learner], object]) -> None:
        """Nodes of autograd that somebody keeps alive belong to the stream on which they were made."""
        configs = {role: args.resolved("cuda:0") for role, args in UPDATED_BY_OPERATIONS[name].items()}
        shared = next(iter(configs.values()))
        learners, kept = list[Learner](), list[object]()
        for is_disturbed in (False, True):
            env = make_training_env(shared, shared.num_envs)
            learner = make_learner(configs, env)
            if is_disturbed:
                saved = learner.state_dict()
                kept.append(keep(learner))
                learner.load_state_dict(saved)
            learner.capture()
            for _ in range(2):
                learner.iterate()
            learner.read()
            learners.append(learner)
            env.close()
        plain, disturbed = (learner.state_tensors()["policies"] for learner in learners)
        for role in plain:
            for key, x in plain[role]["network"].items():
                assert torch.equal(x, disturbed[role]["network"][key]), f"{role} {key}"
