"""PPO in PyTorch in the style of LeanRL, on our CartPole: compiled functions, rollout and update each one CUDA graph, TF32.

It steps our environments, so that only the learner differs. T = 32, 4 epochs of 4 minibatches, two networks of 2 x 64 tanh
units, fused Adam. The return ends with an episode whether the episode was terminated or truncated, which is less work. On a CPU
it runs without graphs. The figures are the env steps per second of iterations and of rollouts, and the time until the mean over
all environments of the last episode's return is 475. Compilation and capture do not count.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from benchmarks.tools.measure import Figures, make_parser, missing_modules, synchronize, wall_time

T, EPOCHS, MINIBATCHES, GAMMA, LAMBDA = 32, 4, 4, 0.99, 0.95
CLIP, ENT_COEF, VF_COEF, MAX_GRAD_NORM = 0.2, 0.01, 0.5, 0.5
TARGET = 475.0  # mean return
H200 = {4096: 17.0, 65_536: 49.3}
H200_ROLLOUT = {4096: 81.0, 65_536: 438.0}
"""{E: M steps/s} on one H200, torch 2.11."""


def mlp(outputs: int, gain: float) -> Any:
    """Returns a network of 2 x 64 tanh units with orthogonal weights, for CartPole's four features.

    Args:
        outputs: of the last layer.
        gain: of the last layer.
    """
    from torch import nn

    layers = [nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, outputs)]
    for layer, scale in zip(layers[::2], (2**0.5, 2**0.5, gain), strict=True):
        nn.init.orthogonal_(layer.weight, scale)
        nn.init.zeros_(layer.bias)
    return nn.Sequential(*layers)


class Learner:
    """A learner whose `rollout()` and `update()` are each a CUDA graph on a GPU; its tensors keep their addresses.

    Args:
        num_envs: E.
        device: "cuda" or "cpu".
        seed: of the environments and of torch.
        is_compiled: whether torch compiles the functions.
        learning_rate: of Adam.
    """

    def __init__(self, num_envs: int, device: str, seed: int, is_compiled: bool, learning_rate: float = 2.5e-3) -> None:
        import gymnasium
        import torch

        import gpuvec  # noqa: F401  # registers the environments

        torch.manual_seed(seed)
        options: dict[str, Any] = {"device": device, "output": "torch", "autoreset_mode": "SameStep", "buffers": 1}
        self.envs = gymnasium.make_vec("gpuvec/CartPole-v1", num_envs=num_envs, **options)
        self.actor, self.critic = mlp(2, 0.01).to(device), mlp(1, 1.0).to(device)
        self.parameters = [*self.actor.parameters(), *self.critic.parameters()]
        on_gpu = device == "cuda"
        self.optimizer = torch.optim.Adam(self.parameters, lr=learning_rate, eps=1e-5, fused=on_gpu, capturable=on_gpu)
        self.buffers = {
            k: torch.zeros(T, num_envs, device=device) for k in ("log_prob", "value", "reward", "done", "advantage")
        }
        self.buffers |= {"obs": torch.zeros(T, num_envs, 4, device=device)}
        self.buffers |= {"action": torch.zeros(T, num_envs, dtype=torch.int64, device=device)}
        self.obs = self.envs.reset(seed=seed)[0].clone()
        self.running_return, self.last_return = torch.zeros(2, num_envs, device=device)

        def compile(function: Callable[..., Any]) -> Callable[..., Any]:
            return torch.compile(function, fullgraph=True, dynamic=False) if is_compiled else function

        self.act, self.end_episodes = compile(self._act), compile(self._end_episodes)
        self.loss, self.estimate = compile(self._loss), compile(self._estimate)
        initial = [p.detach().clone() for p in self.parameters]
        self.rollout, self.update = (capture(function) if on_gpu else function for function in (self._rollout, self._update))
        with torch.no_grad():  # the capture has made updates, which are undone
            for p, weights in zip(self.parameters, initial, strict=True):
                p.copy_(weights)
                for state in self.optimizer.state[p].values():
                    state.zero_()

    def _act(self, obs: Any, noise: Any) -> tuple[Any, ...]:
        """Returns actions, their log-probabilities and values; `noise` is uniform."""
        log_probs = self.actor(obs).log_softmax(-1)
        # The argmax of log-probabilities plus Gumbel noise is a sample of the distribution.
        action = (log_probs - (-noise.log()).log()).argmax(-1)
        return action, log_probs.gather(-1, action.unsqueeze(-1)).squeeze(-1), self.critic(obs).squeeze(-1)

    def _end_episodes(self, reward: Any, terminated: Any, truncated: Any, running: Any, last: Any) -> tuple[Any, ...]:
        """Returns done, the returns of running episodes, and the returns of the last episodes."""
        done, running = terminated | truncated, running + reward
        return done.float(), running.masked_fill(done, 0.0), running.where(done, last)

    def _estimate(self, reward: Any, value: Any, done: Any, next_value: Any) -> Any:
        """Returns (T, E) advantages."""
        import torch

        advantage, advantages = torch.zeros_like(next_value), []
        for t in reversed(range(T)):
            delta = reward[t] + GAMMA * next_value * (1.0 - done[t]) - value[t]
            advantage, next_value = delta + GAMMA * LAMBDA * (1.0 - done[t]) * advantage, value[t]
            advantages.append(advantage)
        return torch.stack(advantages[::-1])

    def _loss(self, obs: Any, action: Any, log_prob: Any, advantage: Any, target: Any) -> Any:
        """Returns the loss of a minibatch."""
        log_probs = self.actor(obs).log_softmax(-1)
        ratio = (log_probs.gather(-1, action.unsqueeze(-1)).squeeze(-1) - log_prob).exp()
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        surrogate = (ratio * advantage).minimum(ratio.clamp(1 - CLIP, 1 + CLIP) * advantage).mean()
        value_loss = 0.5 * (self.critic(obs).squeeze(-1) - target).square().mean()
        return VF_COEF * value_loss - surrogate + ENT_COEF * (log_probs.exp() * log_probs).sum(-1).mean()

    def _rollout(self) -> None:
        import torch

        b = self.buffers
        with torch.no_grad():
            for t in range(T):
                b["obs"][t] = self.obs
                noise = torch.rand(len(self.obs), 2, device=self.obs.device).clamp_(min=1e-7, max=1 - 1e-7)
                b["action"][t], b["log_prob"][t], b["value"][t] = self.act(self.obs, noise)
                obs, reward, terminated, truncated, _ = self.envs.step(b["action"][t])
                returns = (self.running_return, self.last_return)
                b["done"][t], running_return, last_return = self.end_episodes(reward, terminated, truncated, *returns)
                b["reward"][t] = reward
                self.running_return.copy_(running_return)
                self.last_return.copy_(last_return)
                self.obs.copy_(obs)

    def _update(self) -> None:
        import torch

        b = self.buffers
        with torch.no_grad():
            b["advantage"].copy_(self.estimate(b["reward"], b["value"], b["done"], self.critic(self.obs).squeeze(-1)))
            target = b["advantage"] + b["value"]
        batch = [x.flatten(0, 1) for x in (b["obs"], b["action"], b["log_prob"], b["advantage"], target)]
        for _ in range(EPOCHS):
            order = torch.rand(len(batch[0]), device=self.obs.device).argsort()  # a permutation, which a graph can capture
            for rows in order.chunk(MINIBATCHES):
                gradient = torch.autograd.grad(self.loss(*(x[rows] for x in batch)), self.parameters)
                for p, g in zip(self.parameters, gradient, strict=True):
                    p.grad = g
                torch.nn.utils.clip_grad_norm_(self.parameters, MAX_GRAD_NORM, foreach=True)
                self.optimizer.step()

    def iterate(self) -> None:
        """Runs a rollout and an update."""
        self.rollout()
        self.update()


def capture(function: Callable[[], None]) -> Callable[[], None]:
    """Returns a call that replays the kernels of `function` in a CUDA graph; `function` is called four times before."""
    import torch

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            function()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        function()
    return graph.replay


def measure_rates(figures: Figures, num_envs: int, arguments: Any) -> None:
    """Adds rows for iterations and for rollouts alone.

    Args:
        figures: where the rows are added.
        num_envs: E.
        arguments: of the command line.
    """
    import torch

    torch.compiler.reset()  # the number of compiled variants of a function is limited
    learner = Learner(num_envs, arguments.device, 0, not arguments.no_compile)
    for suffix, call, known in (("", learner.iterate, H200), (".rollout", learner.rollout, H200_ROLLOUT)):
        timing = wall_time(call, synchronize, arguments.iterations)
        rate = num_envs * T / timing.median
        name = f"torch_ppo.{num_envs}{suffix}"
        figures.add_peer(name, rate, "M steps/s", known.get(num_envs), T=T, spread=timing.spread)


def measure_time_to_target(figures: Figures, name: str, seed: int, arguments: Any) -> None:
    """Adds the time of a training until the target is reached.

    Args:
        figures: where the row is added.
        name: of the row.
        seed: of the training.
        arguments: of the command line.
    """
    import torch

    torch.compiler.reset()
    learner = Learner(arguments.solve, arguments.device, seed, not arguments.no_compile)
    synchronize()
    start = time.perf_counter()
    for iteration in range(1, arguments.most + 1):
        learner.iterate()
        if float(learner.last_return.mean()) >= TARGET:
            seconds, steps = time.perf_counter() - start, iteration * arguments.solve * T / 1e6
            figures.add(name, seconds, "s", (), updates=iteration, M_steps=steps)
            return
    figures.add_failure(name, f"not reached in {arguments.most} iterations: {float(learner.last_return.mean()):.1f}")


def main() -> None:
    """Measures each number of envs, and the time to the target."""
    parser = make_parser(__doc__)
    parser.add_argument("--sizes", nargs="*", type=int, default=[4096, 16_384, 65_536], metavar="E")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--iterations", type=int, default=20, metavar="N", help="of a repetition")
    parser.add_argument("--solve", type=int, default=4096, metavar="E", help="envs of the trainings to the target")
    parser.add_argument("--most", type=int, default=256, metavar="N", help="iterations of the trainings to the target")
    parser.add_argument("--seeds", nargs="*", type=int, default=[0, 1, 2])
    parser.add_argument("--no-compile", action="store_true", help="do not use torch.compile")
    arguments = parser.parse_args()
    figures = Figures("peers", arguments.json)
    if problem := missing_modules("torch"):
        figures.add_failure("torch_ppo", problem)
        return
    import torch

    torch.set_float32_matmul_precision("high")  # TF32
    for num_envs in arguments.sizes:
        with figures.continue_after_failure(f"torch_ppo.{num_envs}"):
            measure_rates(figures, num_envs, arguments)
    for seed in arguments.seeds:
        name = f"torch_ppo.{TARGET:g}.{arguments.solve}.seed{seed}"
        with figures.continue_after_failure(name):
            measure_time_to_target(figures, name, seed, arguments)


if __name__ == "__main__":
    main()
