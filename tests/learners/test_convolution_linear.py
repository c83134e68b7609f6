"""The kernel of the gradient of a convolution with a linear layer behind it, emulated on a CPU, and the layers on a GPU."""

from __future__ import annotations

import copy
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
from gpuvec.learners.networks.convolution_kernels import FILTERS, ConvolutionShape, convolution_kernels, split_gradient
from gpuvec.learners.networks.convolution_linear import MAX_OUTPUTS, MIN_IMAGES, gradient_kernel, is_supported, pack_weights

BREAKOUT = ConvolutionShape((4, 10, 10), torch.uint8, torch.float32)


@pytest.mark.compile
@pytest.mark.parametrize(
    ("shape", "outputs", "rows", "tiles"),
    [
        pytest.param(BREAKOUT, 16, 35, 2, id="a block with two groups of images"),
        pytest.param(ConvolutionShape((2, 4, 6), torch.uint8, torch.float32), 48, 11, 1, id="a group is not full"),
    ],
)
def test_gradients_equal_those_of_torch(shape: Any, outputs: int, rows: int, tiles: int, tmp_path: Any) -> None:
    generator, scale = torch.Generator().manual_seed(rows), 1.0 / 255.0
    images = torch.randint(256, (rows, *shape.image_shape), generator=generator, dtype=torch.uint8)
    weight = torch.randn(FILTERS, shape.image_shape[0], 3, 3, generator=generator, requires_grad=True)
    bias = torch.randn(FILTERS, generator=generator, requires_grad=True)
    linear_weight = torch.randn(outputs, FILTERS * shape.places, generator=generator)
    out_gradient = torch.randn(rows, outputs, generator=generator)
    out, bits = torch.zeros(rows, FILTERS * shape.places), torch.zeros(rows, shape.groups, 32, dtype=torch.int16)
    members = {"images": images, "is_positive": bits, "num_images": rows, "scale": scale}
    emulate(convolution_kernels(shape)["convolve"], tmp_path)((2,), weight=weight, bias=bias, out=out, **members)

    convolution = functional.conv2d(images * scale, weight, bias).flatten(1)
    exact = torch.autograd.grad((convolution * (out > 0) * (out_gradient @ linear_weight)).sum(), (weight, bias))
    packed, results = pack_weights(linear_weight, shape.places), list[Any]()
    for reverse in (False, True):  # different results mean a race
        partial_gradients = torch.full((2, FILTERS * (shape.taps + 1)), 7.0)
        folder = tmp_path / str(reverse)
        folder.mkdir()
        emulate(gradient_kernel(shape, outputs, tiles, 2), folder, reverse=reverse)(
            (2,), out_gradient=out_gradient, packed=packed, partial_gradients=partial_gradients, **members
        )
        results.append(partial_gradients)
    assert torch.equal(*results)
    for actual, wanted in zip(split_gradient(partial_gradients, shape), exact, strict=True):
        torch.testing.assert_close(actual, wanted, rtol=2e-3, atol=2e-3 * float(wanted.abs().max()))


@pytest.mark.compile
def test_kernel_keeps_its_operands_in_registers() -> None:
    code = compile_cuda_source(gradient_kernel(BREAKOUT, MAX_OUTPUTS), (9, 0)).code
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
    fewest = MIN_IMAGES * torch.cuda.get_device_properties(gpu).multi_processor_count
    assert not is_supported(BREAKOUT, 128, fewest - 1, torch.device(gpu))
    for rows in (32_768, fewest + 3, 2 * fewest + 8):
        assert is_supported(BREAKOUT, 128, rows, torch.device(gpu))
        images = torch.randint(2, (rows, *BREAKOUT.image_shape), dtype=torch.uint8, device=gpu)
        coefficients = torch.randn(rows, 4, device=gpu)
        gradients = []
        with torch_settings(gpu, threads=1):
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
        assert not is_supported(shape, outputs, 1 << 20, device)
