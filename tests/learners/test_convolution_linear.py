"""A convolution with a linear layer behind it: its kernels, emulated on a CPU, and the layers on a GPU."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from gymnasium.spaces import Box
from tests.support.cuda_emulator import emulate
from tests.support.machine_code import LDL, STL, count_instructions
from torch.nn import functional

from gpuvec.engine.backends.cuda.nvrtc import compile_cuda_source
from gpuvec.learners.cuda_graphs.settings import torch_settings
from gpuvec.learners.networks.cnn import SharedCNN
from gpuvec.learners.networks.convolution_kernels import FILTERS, ConvolutionShape, split_gradient
from gpuvec.learners.networks.convolution_linear import (
    MAX_OUTPUTS,
    MIN_IMAGES,
    LayersShape,
    is_supported,
    layer_kernels,
    pack_weights,
)

BREAKOUT = ConvolutionShape((4, 10, 10), torch.uint8, torch.float32)


@pytest.mark.compile
@pytest.mark.parametrize(
    ("shape", "rows", "images"),
    [
        pytest.param(LayersShape(BREAKOUT, 16, True), 67, 32, id="a block with two groups of images"),
        pytest.param(LayersShape(ConvolutionShape((2, 4, 6), torch.uint8, torch.float32), 48, False), 21, 16, id="one group"),
    ],
)
def test_results_and_gradients_equal_those_of_torch(shape: Any, rows: int, images: int, tmp_path: Path) -> None:
    generator, scale, places = torch.Generator().manual_seed(rows), 1.0 / 255.0, shape.images.places
    pixels = torch.randint(256, (rows, *shape.images.image_shape), generator=generator, dtype=torch.uint8)
    weight = torch.randn(FILTERS, shape.images.image_shape[0], 3, 3, generator=generator, requires_grad=True)
    bias = torch.randn(FILTERS, generator=generator, requires_grad=True)
    linear_weight = torch.randn(shape.outputs, FILTERS * places, generator=generator) / 16
    linear_bias, out_gradient = (torch.randn(*size, shape.outputs, generator=generator) for size in ((), (rows,)))
    members = {"images": pixels, "packed": pack_weights(linear_weight, places), "num_images": rows, "scale": scale}
    runs = [emulate_both(shape, images, tmp_path / str(reverse), reverse) for reverse in (False, True)]
    results = []
    for run in runs:
        features, out = torch.full((rows, places, FILTERS), 7.0), torch.full((rows, shape.outputs), 7.0)
        bits, partial_gradients = (
            torch.zeros(rows, places, dtype=torch.int16),
            torch.full((2, FILTERS * (shape.images.taps + 1)), 7.0),
        )
        members |= {"is_positive": bits}
        parameters = {"weight": weight, "bias": bias, "linear_bias": linear_bias}
        run["convolution_linear"]((2,), features=features, out=out, **parameters, **members)
        run["convolution_linear_gradient"]((2,), out_gradient=out_gradient, partial_gradients=partial_gradients, **members)
        results.append((features, out, bits, partial_gradients))
    for first, second in zip(*results, strict=True):  # different results mean a race
        assert torch.equal(first, second)

    convolution = functional.conv2d(pixels * scale, weight, bias).flatten(1)
    wanted = functional.linear(convolution.relu(), linear_weight, linear_bias).detach()
    features = features.transpose(1, 2).flatten(1)
    exact = torch.autograd.grad((convolution * (features > 0) * (out_gradient @ linear_weight)).sum(), (weight, bias))
    pairs = [(features, convolution.detach().relu()), (out, wanted.relu() if shape.has_relu else wanted)]
    for actual, expected in (*pairs, *zip(split_gradient(partial_gradients, shape.images), exact, strict=True)):
        torch.testing.assert_close(actual, expected, rtol=2e-3, atol=2e-3 * float(expected.abs().max()))


def emulate_both(shape: Any, images: int, folder: Path, reverse: bool) -> dict[str, Any]:
    """Returns {name: launch} of the kernels with two warps, for the CPU."""
    folder.mkdir()
    return {name: emulate(kernel, folder, reverse=reverse) for name, kernel in layer_kernels(shape, images, 2).items()}


@pytest.mark.compile
def test_kernels_keep_their_operands_in_registers() -> None:
    for kernel in layer_kernels(LayersShape(BREAKOUT, MAX_OUTPUTS, True)).values():
        code = compile_cuda_source(kernel, (9, 0)).code
        assert count_instructions(code, LDL) == count_instructions(code, STL) == 0


@pytest.mark.gpu
@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_a_network_has_the_gradients_of_float64_each_time(activation: str, gpu: str) -> None:
    """The second number of images is that of no whole number of blocks."""
    torch.manual_seed(3)
    network = SharedCNN(Box(0, 1, BREAKOUT.image_shape, np.uint8), 3, (128,), activation=activation).to(gpu)
    parameters = list(network.parameters())
    torch.nn.init.normal_(network.convolution.bias)
    exact = copy.deepcopy(network).double()
    exact.convolution.dtype = exact.layers.dtype = torch.float64
    fewest, shape = MIN_IMAGES * torch.cuda.get_device_properties(gpu).multi_processor_count, LayersShape(BREAKOUT, 128, True)
    assert not is_supported(shape, fewest, torch.device(gpu))  # in float32
    for rows in (32_768, fewest + 3, 2 * fewest + 8):
        images = torch.randint(2, (rows, *BREAKOUT.image_shape), dtype=torch.uint8, device=gpu)
        coefficients = torch.randn(rows, 4, device=gpu)
        gradients = []
        with torch_settings(gpu, threads=1):
            assert is_supported(shape, rows, torch.device(gpu))
            assert not is_supported(shape, fewest - 1, torch.device(gpu))
            for _ in range(2):
                policy, value = network.both(images)
                loss = (torch.cat([policy, value.unsqueeze(1)], 1) * coefficients).sum()
                gradients.append(torch.autograd.grad(loss, parameters))
        for first, second in zip(*gradients, strict=True):
            assert torch.equal(first, second)
        hidden = exact.layers.trunk[0]
        features = functional.conv2d(images.double(), exact.convolution.weight, exact.convolution.bias).relu().flatten(1)
        x = functional.linear(features, hidden.weight, hidden.bias)
        head = functional.linear(
            x.relu() if activation == "relu" else x.tanh(), exact.layers.head.weight, exact.layers.head.bias
        )
        wanted = torch.autograd.grad((head * coefficients).sum(), list(exact.parameters()))
        for actual, expected in zip(gradients[0], wanted, strict=True):
            assert float((actual - expected).norm() / expected.norm()) < 5e-3


def test_other_shapes_are_not_supported() -> None:
    device = torch.device("cuda")
    for shape, outputs in (
        (ConvolutionShape((4, 10, 10), torch.uint8, torch.bfloat16), 128),
        (ConvolutionShape((4, 10, 10), torch.float32, torch.float32), 128),
        (ConvolutionShape((4, 9, 9), torch.uint8, torch.float32), 128),
        (ConvolutionShape((3, 9, 10), torch.uint8, torch.float32), 128),
        (BREAKOUT, MAX_OUTPUTS + 16),
        (BREAKOUT, 24),
    ):
        assert not is_supported(LayersShape(shape, outputs, True), 1 << 20, device)
