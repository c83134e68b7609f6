"""PPO in PyTorch in LeanRL's manner, on our CartPole: bodies by torch.compile, rollout and update each one CUDA graph, TF32.

Only the learner differs from ours, since it steps the same environments. T = 32, 4 epochs of 4 minibatches, two networks of
2 x 64 tanh units, Adam fused; an episode's end cuts the return off whether it was truncated or not, which saves work. On a CPU
it runs without graphs. The rollout alone is timed as well; then the time until the mean over all environments of the last
episode's return is 475. Compilation and capture are not counted.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from benchmarks.tools.measure import Figures, make_parser, missing_modules, synchronize, wall_time

T, EPOCHS, MINIBATCHES, GAMMA, LAMBDA, CLIP, ENTROPY, VALUE, NORM = 32, 4, 4, 0.99, 0.95, 0.2, 0.01, 0.5, 0.5
TARGET = 475.0
H200 = {4096: 17.0, 65_536: 49.3}
H200_ROLLOUT = {4096: 81.0, 65_536: 438.0}
"""{E: M steps/s} on one H200, torch 2.11."""


def mlp(outputs: int, gain: float) -> Any:
    """2 x 64 tanh units with orthogonal weights, for CartPole's four features."""
    from torch import nn

    layers = [nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, outputs)]
    for layer, scale in zip(layers[::2], (2**0.5, 2**0.5, gain), strict=True):
        nn.init.orthogonal_(layer.weight, scale)
        nn.init.zeros_(layer.bias)
    return nn.Sequential(*layers)


class Learner:
    """`rollout()` and `update()`, each of them a graph on a GPU, and tensors that stay where they are."""

    def __init__(self, num_envs: int, device: str, seed: int, compiled: bool, learning_rate: float = 2.5e-3) -> None:
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
        self.running, self.last = torch.zeros(2, num_envs, device=device)

        def compile(function: Callable[..., Any]) -> Callable[..., Any]:
            return torch.compile(function, fullgraph=True, dynamic=False) if compiled else function

        self.act, self.keep, self.loss = compile(self._act), compile(self._keep), compile(self._loss)
        self.estimate = compile(self._estimate)
        first = [p.detach().clone() for p in self.parameters]
        self.rollout, self.update = (captured(part) if on_gpu else part for part in (self._rollout, self._update))
        with torch.no_grad():  # what the capture learned is forgotten
            for p, weights in zip(self.parameters, first, strict=True):
                p.copy_(weights)
                for state in self.optimizer.state[p].values():
                    state.zero_()

    def _act(self, obs: Any, noise: Any) -> tuple[Any, ...]:
        """(actions, their log-probabilities, values); noise is uniform."""
        log_probs = self.actor(obs).log_softmax(-1)
        action = (log_probs - (-noise.log()).log()).argmax(-1)  # the greatest after noise of Gumbel is a draw
        return action, log_probs.gather(-1, action.unsqueeze(-1)).squeeze(-1), self.critic(obs).squeeze(-1)

    def _keep(self, reward: Any, terminated: Any, truncated: Any, running: Any, last: Any) -> tuple[Any, ...]:
        """(done, the returns of running episodes, those of the last ones)."""
        done, running = terminated | truncated, running + reward
        return done.float(), running.masked_fill(done, 0.0), running.where(done, last)

    def _estimate(self, reward: Any, value: Any, done: Any, following: Any) -> Any:
        """(T, E) advantages."""
        import torch

        advantage, found = torch.zeros_like(following), []
        for t in reversed(range(T)):
            delta = reward[t] + GAMMA * following * (1.0 - done[t]) - value[t]
            advantage, following = delta + GAMMA * LAMBDA * (1.0 - done[t]) * advantage, value[t]
            found.append(advantage)
        return torch.stack(found[::-1])

    def _loss(self, obs: Any, action: Any, log_prob: Any, advantage: Any, target: Any) -> Any:
        """Of a minibatch."""
        log_probs = self.actor(obs).log_softmax(-1)
        ratio = (log_probs.gather(-1, action.unsqueeze(-1)).squeeze(-1) - log_prob).exp()
        gain = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        surrogate = (ratio * gain).minimum(ratio.clamp(1 - CLIP, 1 + CLIP) * gain).mean()
        error = 0.5 * (self.critic(obs).squeeze(-1) - target).square().mean()
        return VALUE * error - surrogate + ENTROPY * (log_probs.exp() * log_probs).sum(-1).mean()

    def _rollout(self) -> None:
        import torch

        b = self.buffers
        with torch.no_grad():
            for t in range(T):
                b["obs"][t] = self.obs
                noise = torch.rand(len(self.obs), 2, device=self.obs.device).clamp_(min=1e-7, max=1 - 1e-7)
                b["action"][t], b["log_prob"][t], b["value"][t] = self.act(self.obs, noise)
                obs, reward, terminated, truncated, _ = self.envs.step(b["action"][t])
                b["done"][t], running, last = self.keep(reward, terminated, truncated, self.running, self.last)
                b["reward"][t] = reward
                self.running.copy_(running)
                self.last.copy_(last)
                self.obs.copy_(obs)

    def _update(self) -> None:
        import torch

        b = self.buffers
        with torch.no_grad():
            b["advantage"].copy_(self.estimate(b["reward"], b["value"], b["done"], self.critic(self.obs).squeeze(-1)))
            target = b["advantage"] + b["value"]
        batch = [x.flatten(0, 1) for x in (b["obs"], b["action"], b["log_prob"], b["advantage"], target)]
        for _ in range(EPOCHS):
            order = torch.rand(len(batch[0]), device=self.obs.device).argsort()  # a permutation that a graph can hold
            for rows in order.chunk(MINIBATCHES):
                gradient = torch.autograd.grad(self.loss(*(x[rows] for x in batch)), self.parameters)
                for p, g in zip(self.parameters, gradient, strict=True):
                    p.grad = g
                torch.nn.utils.clip_grad_norm_(self.parameters, NORM, foreach=True)
                self.optimizer.step()

    def iterate(self) -> None:
        """A rollout, and what is learned from it."""
        self.rollout()
        self.update()


def captured(part: Callable[[], None]) -> Callable[[], None]:
    """A call that replays what `part` does; it has run three times by then."""
    import torch

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            part()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        part()
    return graph.replay


def main() -> None:
    """Measures all sizes, and the time to the target."""
    p = make_parser(__doc__)
    p.add_argument("--sizes", nargs="*", type=int, default=[4096, 16_384, 65_536], metavar="E")
    p.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    p.add_argument("--iterations", type=int, default=20, metavar="N", help="of a repetition")
    p.add_argument("--solve", type=int, default=4096, metavar="E", help="environments of those that have to reach the target")
    p.add_argument("--most", type=int, default=256, metavar="N", help="iterations until then")
    p.add_argument("--seeds", nargs="*", type=int, default=[0, 1, 2])
    p.add_argument("--no-compile", action="store_true", help="leave torch.compile out")
    given = p.parse_args()
    figures = Figures("peers", given.json)
    if problem := missing_modules("torch"):
        figures.add_failure("torch_ppo", problem)
        return
    import torch

    torch.set_float32_matmul_precision("high")  # TF32
    for num_envs in given.sizes:
        try:
            torch.compiler.reset()  # a cache of its own for each, which is bounded
            learner = Learner(num_envs, given.device, 0, not given.no_compile)
            for name, call, known in (("", learner.iterate, H200), (".rollout", learner.rollout, H200_ROLLOUT)):
                took = wall_time(call, synchronize, given.iterations)
                rate = num_envs * T / took.median
                figures.add_peer(f"torch_ppo.{num_envs}{name}", rate, "M steps/s", known.get(num_envs), T=T, spread=took.spread)
        except Exception as error:  # noqa: BLE001  # one size that fails must not cost the others
            figures.add_failure(f"torch_ppo.{num_envs}", error)
    for seed in given.seeds:
        name = f"torch_ppo.{TARGET:g}.{given.solve}.seed{seed}"
        try:
            torch.compiler.reset()
            learner = Learner(given.solve, given.device, seed, not given.no_compile)
            synchronize()
            start = time.perf_counter()
            for k in range(1, given.most + 1):
                learner.iterate()
                if float(learner.last.mean()) >= TARGET:
                    seconds, steps = time.perf_counter() - start, k * given.solve * T / 1e6
                    figures.add(name, seconds, "s", (), updates=k, M_steps=steps)
                    break
            else:
                figures.add_failure(name, f"not reached in {given.most} iterations: {float(learner.last.mean()):.1f}")
        except Exception as error:  # noqa: BLE001  # likewise
            figures.add_failure(name, error)


if __name__ == "__main__":
    main()
