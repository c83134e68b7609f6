"""Runs the kernels of the learners that no environment launches, for `sanitizer_target.py`.

Letters: R rows.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

IMAGES = ((4, 10, 10), (1, 6, 5))  # (C, H, W)


def tensor(array: Any) -> Any:
    """A tensor on the GPU with a copy of an array."""
    import torch

    return torch.tensor(array, device="cuda:0")


def draw_actions(rows: int, rng: np.random.Generator) -> list[Any]:
    """The outputs of all kernels of the sampler: one and several heads, a mask, and all normal distributions."""
    from gpuvec.learners.sampling.sampler import Sampler

    sampler, iteration = Sampler("cuda:0", 0), tensor(np.int64(3))
    action_mask = rng.random((rows, 5)) < 0.5
    action_mask[:, [0, 3]] = True  # at least one action of each head
    logits, mask = tensor(rng.normal(size=(rows, 5)).astype("float32")), tensor(action_mask)
    mean, log_std = (tensor(rng.normal(size=(rows, 3)).astype("float32")) for _ in range(2))
    low, high = (tensor(np.full(3, bound, "float32")) for bound in (-1.0, 1.0))
    episode_start, noise = tensor(rng.random(rows) < 0.5), tensor(np.zeros((rows, 3), "float32"))
    return [
        *sampler.categorical(logits, iteration, 0, (3, 2), mask=mask),
        *sampler.categorical(logits, iteration, 1, temperature=0.5),
        *sampler.categorical(logits, iteration, 2, greedy=True),
        *sampler.gaussian(mean, log_std, iteration, 3),
        *sampler.gaussian(mean, low, iteration, 4, squashed=True),
        *sampler.gaussian(mean, low, iteration, 5, greedy=True),
        *(sampler.ornstein_uhlenbeck(mean, noise, episode_start, low, high, iteration, step, sigma=0.2) for step in (6, 7)),
    ]


def estimate(rows: int, rng: np.random.Generator) -> list[Any]:
    """Advantages, discounted returns and sums of episodes of 1, 16 and 37 steps; a thread reads 16 or 8 at once."""
    from gpuvec.learners.estimators.advantage import AdvantageEstimator
    from gpuvec.learners.estimators.episode_statistics import EpisodeStatistics
    from gpuvec.learners.estimators.reward_scaling import RewardScaler

    advantage, scaler = AdvantageEstimator("cuda:0", 0.99, 0.95), RewardScaler(rows, 0.99, "cuda:0")
    episodes = EpisodeStatistics.initial(rows, "cuda:0")
    outputs: list[Any] = []
    for steps in (1, 16, 37):
        reward, final = (tensor(rng.normal(size=(steps, rows)).astype("float32")) for _ in range(2))
        value = tensor(rng.normal(size=(steps + 1, rows)).astype("float32"))
        episode_end, terminated = (rng.random((steps, rows)) < probability for probability in (0.2, 0.5))
        outputs += advantage(reward, value, final, tensor(episode_end & terminated), tensor(episode_end))
        outputs.append(scaler.returns(reward, tensor(episode_end)))
        outputs += [episodes.add(reward, tensor(episode_end), mask) for mask in (None, tensor(terminated))]
    return outputs


def convolve(rows: int, rng: np.random.Generator) -> list[Any]:
    """Convolutions and their gradients, of R images and of so many small ones that a warp has several."""
    import torch

    from gpuvec.learners.networks.convolution import ConvolutionReLU

    outputs: list[Any] = []
    for dtype in (torch.float32, torch.bfloat16):
        for (channels, height, width), count in zip(IMAGES, (rows, 23 * rows + 1), strict=True):
            numbers = rng.integers(0, 256, (count, channels, height, width), np.uint8)
            for images, divisor in ((numbers, 255.0), ((numbers / 255).astype("float32"), 1.0)):
                layer = ConvolutionReLU((channels, height, width), 16, dtype, divisor).to("cuda:0")
                for parameter in layer.parameters():
                    parameter.data.copy_(tensor(rng.normal(size=parameter.shape).astype("float32")))
                out = layer(tensor(images))
                kernel = out.grad_fn.next_functions[0][0]  # before the view with the leading dimensions of the images
                assert kernel.name() == "ConvolveReLUBackward", "these images must be convolved by our kernels"
                out.backward(tensor(rng.normal(size=out.shape).astype("float32")).to(dtype))
                outputs += [out, layer.weight.grad, layer.bias.grad]
    return outputs


def multiply_convolutions(rows: int, rng: np.random.Generator) -> list[Any]:
    """Convolutions with a linear layer, and their gradients, of numbers of images that are no multiple of a warp's.

    The gradient of the linear layer's weights, a product of the library, is not computed.
    """
    from gpuvec.learners.networks.convolution_linear import ConvolutionLinear

    outputs: list[Any] = []
    for (channels, height, width), num_outputs, count, has_relu in (
        ((4, 10, 10), 128, rows, True),
        ((2, 4, 6), 48, 3 * rows + 2, False),
    ):
        images = tensor(rng.integers(0, 256, (count, channels, height, width), np.uint8))
        features = 16 * (height - 2) * (width - 2)
        sizes = (16, channels, 3, 3), (16,), (num_outputs, features), (num_outputs,)
        weight, bias, linear_weight, linear_bias = (tensor(rng.normal(size=size).astype("float32")) for size in sizes)
        parameters = [x.requires_grad_() for x in (weight, bias, linear_bias)]
        out = ConvolutionLinear.apply(images, weight, bias, 1 / 255, linear_weight, linear_bias, has_relu, None)
        out.backward(tensor(rng.normal(size=out.shape).astype("float32")))
        outputs += [out, *(parameter.grad for parameter in parameters)]
    return outputs


def gather(rows: int, rng: np.random.Generator) -> list[Any]:
    """Rows of tensors whose words have 1 to 16 bytes, fewer and more than there are."""
    import torch

    from gpuvec.learners.buffers.minibatches import gather_rows, word_bytes

    numbers = {size: tensor(rng.integers(0, 256, (rows, size), np.uint8)) for size in (9, 6, 12, 24, 400)}
    assert [word_bytes(x) for x in numbers.values()] == [1, 2, 4, 8, 16]
    tensors = {str(size): x for size, x in numbers.items()} | {"float": tensor(rng.normal(size=rows).astype("float32"))}
    outputs: list[Any] = []
    for count in (1, 61 * rows + 1):
        index = tensor(rng.integers(0, rows, count))
        gathered = gather_rows(tensors, index)
        for name, x in tensors.items():
            assert torch.equal(gathered[name], x[index]), name
        outputs += gathered.values()
    return outputs


def sum_bias_gradients(rows: int, rng: np.random.Generator) -> list[Any]:
    """Gradients of biases with and without a ReLU, of R rows and of so many that a block has several groups of them."""
    import torch

    from gpuvec.learners.networks.linear import bias_gradient

    outputs: list[Any] = []
    for dtype in (torch.float32, torch.bfloat16):
        for count in (rows, 31 * rows + 1):
            out_gradient, out = (tensor(rng.normal(size=(count, 64)).astype("float32")).to(dtype) for _ in range(2))
            outputs += [*bias_gradient(out_gradient), *bias_gradient(out_gradient, out.relu_())]
    return outputs


def step_adam(rows: int, rng: np.random.Generator) -> list[Any]:
    """Steps of Adam, of tensors of less than one block and of several."""
    import torch

    from gpuvec.learners.cuda_graphs.optimizer import Adam

    parameters = [tensor(rng.normal(size=size).astype("float32")) for size in (rows, 1, 31 * rows + 1)]
    optimizer = Adam(parameters, tensor(np.float32(0.01)), eps=1e-5)
    outputs: list[Any] = []
    for found_inf in (None, torch.zeros((), device="cuda:0"), torch.ones((), device="cuda:0")):
        optimizer.found_inf = found_inf
        for p in parameters:
            p.grad = tensor(rng.normal(size=p.shape).astype("float32"))
        outputs += [optimizer.step(0.5)]
    return outputs + parameters


def make_outputs_body() -> Any:
    """A body whose outputs are its observations: logits, and behind them the value."""
    from torch import nn

    class Outputs(nn.Module):
        def policy(self, obs: Any) -> Any:
            return obs[..., :-1]

        def value(self, obs: Any) -> Any:
            return obs[..., -1]

    return Outputs()


def compute_losses(rows: int, rng: np.random.Generator) -> list[Any]:
    """PPO's loss and its gradient, of R samples and of so many that a warp has several: one and several heads, with a mask."""
    import torch
    from gymnasium.spaces import Box, Discrete, MultiDiscrete

    from gpuvec.learners.buffers.rollout_buffer import Samples
    from gpuvec.learners.config.training_config import PPOArgs
    from gpuvec.learners.fused_ppo.fused_loss import FusedLoss
    from gpuvec.learners.networks.actor_critic import ActorCritic

    args, ent_coef, outputs = PPOArgs(device="cuda:0").resolved("cuda:0"), tensor(np.float32(0.01)), list[Any]()
    for space, heads in ((Discrete(9), [9]), (MultiDiscrete([3, 5, 2]), [3, 5, 2])):
        network = ActorCritic(Box(-1, 1, (sum(heads) + 1,)), space, make_outputs_body()).to("cuda:0")
        for has_mask in (False, True):
            loss = FusedLoss(network, args, has_mask)
            for count in (rows, 61 * rows + 1):
                obs = tensor(rng.normal(size=(count, sum(heads) + 1)).astype("float32")).requires_grad_()
                action = tensor(rng.integers(0, heads, (count, len(heads))))
                floats = (tensor(rng.normal(size=count).astype("float32")) for _ in range(4))  # log_prob to target
                mask = tensor(rng.random(count) < 0.6) if has_mask else None
                samples = Samples(obs, action if len(heads) > 1 else action.squeeze(-1), *floats, mask)
                value, metrics = loss(network, samples, args, ent_coef)
                outputs += [value, metrics, *torch.autograd.grad(value, obs)]
    return outputs


LEARNER_KERNELS = {
    "draws": draw_actions,
    "estimates": estimate,
    "convolutions": convolve,
    "convolution_linear": multiply_convolutions,
    "gather": gather,
    "biases": sum_bias_gradients,
    "losses": compute_losses,
    "adam": step_adam,
}


def run_learner_kernels(name: str) -> None:
    """Runs kernels of the learners, on less than one block of rows and on several."""
    for rows in (5, 300):
        for output in LEARNER_KERNELS[name](rows, np.random.default_rng(rows)):
            assert np.isfinite(output.detach().float().cpu().numpy()).all()
        print("checked", name, rows, flush=True)


POPULATION_ENVS = ("CartPole-v1", "Pendulum-v1", "Acrobot-v1", "MountainCarContinuous-v0")
PORTABLE_POPULATIONS = {"CartPole (8.0)": "8.0", "CartPole (8.6)": "8.6"}
"""{name: variant}, with the instructions and the shared memory of GPUs other than the one at hand."""
# Barriers of the kernel of a population, by what they separate: a file, the text before a barrier, and the barrier.
MISSING_BARRIERS = {
    "values from advantages": ("population.cu", "evaluate_rest(shared, samples, l);\n    ", "__syncthreads();"),
    "stores from products": ("gradient.cuh", "by the outputs are stored.\n    ", "sync_warpgroup(l.network);"),
    "products from derivatives": ("gradient.cuh", "wait_products<LAYERS - 1>();\n    ", "sync_warpgroup(l.network);"),
    "derivatives from products": ("gradient.cuh", "h1[i] : h2[i]);\n    publish_stores();\n    ", "sync_warpgroup(l.network);"),
    "gradients from their norm": (
        "update.cuh",
        "compute_gradient(b, shared, network, k, sums, exp_avg_sq);\n            ",
        "__syncthreads();",
    ),
    "weights from products": ("update.cuh", "weights + 8 * j, l);\n    publish_stores();\n    ", "sync_warpgroup(l.network);"),
}
# Functions of wgmma.cuh that visible_accesses.cuh replaces, and other edits of the kernel: {file: (old text, new text)}.
REPLACED_FUNCTIONS = "store_matrix_transposed", "store_two_transposed", "fence_products", "commit_products", "wait_products"
VISIBLE_ACCESSES = {
    "fused_ppo/tensor_core.cuh": ("#if __CUDA_ARCH__ >= 900\n__device__ __forceinline__ void store_matrix(", "#if 0\nvoid f("),
    "population/kernel/warpgroup.cuh": ("Products<FIRST>::template multiply<ADD>(", "read_operands<ADD, FIRST>("),
    "population/kernel/rollout.cuh": ("load_matrix(w2[i][k], ", "load_matrix_visibly(w2[i][k], "),
}


def train_population_kernel(name: str) -> None:
    """Trains two agents in a bundled environment, or in a case of the tests that emulate the kernel."""
    from tests.support.population_emulation import CASES, VARIANTS, Emulation

    from gpuvec.learners.config.training_config import PPOArgs
    from gpuvec.learners.population.kernel import kernel_population
    from gpuvec.learners.population.population_args import PopulationArgs
    from gpuvec.learners.population.population_training import train_population

    if name in CASES:
        emulation = Emulation(CASES[name], Path(), "cuda:0")
        emulation.run(2)
        assert not emulation.fault.any()
        assert emulation.parameters.isfinite().all()
        return
    env, variant = name, kernel_population.device_variant("cuda:0")
    sizes: dict[str, Any] = {"num_envs": 4, "num_steps": 32, "update_epochs": 2, "num_minibatches": 2, "total_steps": 256}
    if name in PORTABLE_POPULATIONS:  # with minibatches of two tiles, of which one is stored at a time for 8.6
        env, variant = "CartPole-v1", VARIANTS[PORTABLE_POPULATIONS[name]]
        sizes |= {"num_steps": 64, "total_steps": 512}
    args = PPOArgs(env=f"gpuvec/{env}", params={"max_episode_steps": 15}, device="cuda:0", fused=True, **sizes)
    with mock.patch.object(kernel_population, "device_variant", return_value=variant):
        history = train_population(PopulationArgs(args, 2), iterations_per_launch=1).history
    assert np.isfinite(history.metrics["value_loss"]).all()


def replace_once(file: Path, old: str, new: str) -> None:
    """Edits a file, in which `old` must be once."""
    text = file.read_text()
    assert text.count(old) == 1, f"{file.name} has {old!r} {text.count(old)} times"
    file.write_text(text.replace(old, new))


def copy_kernel(root: Path, missing_barrier: str = "") -> Path:
    """Copies the kernel of a population to a folder, and lets racecheck see all of its accesses.

    Args:
        root: the folder.
        missing_barrier: one of `MISSING_BARRIERS`, which the copy does not have.
    """
    from gpuvec.learners.population.kernel.population_kernel import SOURCE_FOLDER

    folder = root / "population" / "kernel"
    shutil.copytree(SOURCE_FOLDER, folder)
    shutil.copytree(SOURCE_FOLDER.parents[1] / "fused_ppo", root / "fused_ppo")
    accesses = Path(__file__).parents[1] / "support" / "visible_accesses.cuh"
    shutil.copy(accesses, folder)
    for file, (old, new) in VISIBLE_ACCESSES.items():
        replace_once(root / file, old, new)
    renamed = "".join(f"#define {name} replaced_{name}\n" for name in REPLACED_FUNCTIONS)
    restored = "".join(f"#undef {name}\n" for name in REPLACED_FUNCTIONS)
    include = '#include "wgmma.cuh"\n'
    replace_once(folder / "warpgroup.cuh", include, f'{renamed}{include}{restored}#include "visible_accesses.cuh"\n')
    if missing_barrier:
        file, before, barrier = MISSING_BARRIERS[missing_barrier]
        replace_once(folder / file, before + barrier, before + ";")
    return folder


def train_visibly(name: str) -> None:
    """Trains two agents in a case of the tests that emulate the kernel, or the first case without one of `MISSING_BARRIERS`."""
    from tests.support.population_emulation import CASES, Emulation

    from gpuvec.learners.population.kernel import population_kernel

    barrier, case = (name, "two actions") if name in MISSING_BARRIERS else ("", name)
    with tempfile.TemporaryDirectory() as root:
        folder = copy_kernel(Path(root), barrier)
        with mock.patch.object(population_kernel, "SOURCE_FOLDER", folder):
            Emulation(CASES[case], Path(), "cuda:0").run(1 if barrier else 2)


def train_captured(name: str) -> None:
    """Trains PPO by operations of PyTorch and our kernels of layers and losses, in CUDA graphs."""
    from gpuvec.learners.ppo import PPOArgs, train

    sizes: dict[str, Any] = {"num_envs": 128, "num_steps": 8, "hidden": (128,), "total_steps": 2048}
    result = train(PPOArgs(env=f"gpuvec/{name}", activation="relu", device="cuda:0", **sizes))
    assert all(np.isfinite(metrics["grad_norm"]) for metrics in result.history)
