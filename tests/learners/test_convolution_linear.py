"""A convolution with a linear layer behind it: its kernels, emulated on a CPU, and the layers on a GPU."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
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
from gpuvec.learners.networks import convolution_linear
from gpuvec.learners.networks.cnn import SharedCNN
from gpuvec.learners.networks.convolution_kernels import FILTERS, ConvolutionShape, split_gradient
from gpuvec.learners.networks.convolution_linear import (
    MAX_OUTPUTS,
    MIN_IMAGES,
    VECTOR_BYTES,
    ConvolutionLinear,
    LayersShape,
    aligned_vectors,
    is_supported,
    layer_kernels,
    pack_weights,
)

BREAKOUT = ConvolutionShape((4, 10, 10), torch.uint8, torch.float32)


@pytest.mark.compile
@pytest.mark.parametrize(
    ("shape", "rows", "images", "blocks"),
    [
        pytest.param(LayersShape(BREAKOUT, 16, True), 67, 32, 1, id="a block with two groups of images"),
        pytest.param(
            LayersShape(ConvolutionShape((2, 4, 6), torch.uint8, torch.float32), 48, False), 53, 16, 2, id="two blocks"
        ),
    ],
)
def test_results_and_gradients_equal_those_of_torch(shape: Any, rows: int, images: int, blocks: int, tmp_path: Path) -> None:
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
            torch.full((blocks, FILTERS * (shape.images.taps + 1)), 7.0),
        )
        members |= {"is_positive": bits}
        parameters = {"weight": weight, "bias": bias, "linear_bias": linear_bias}
        run["convolution_linear"]((blocks,), features=features, out=out, **parameters, **members)
        run["convolution_linear_gradient"]((blocks,), out_gradient=out_gradient, partial_gradients=partial_gradients, **members)
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


def test_vectors_of_tensors_are_aligned() -> None:
    numbers = torch.arange(4 * 8 + 1.0)
    for x in (numbers[1:].view(4, 8), numbers[:-1].view(8, 4).t(), numbers[:1].expand(4, 8)):
        aligned = aligned_vectors(x)
        assert torch.equal(aligned, x)
        assert aligned.is_contiguous()
        assert aligned.data_ptr() % VECTOR_BYTES == 0
    assert aligned_vectors(aligned) is aligned


def fewest_images(gpu: str) -> int:
    """Returns how many images the kernels need to be supported."""
    return MIN_IMAGES * torch.cuda.get_device_properties(gpu).multi_processor_count


@pytest.mark.gpu
@pytest.mark.parametrize("has_relu", [True, False])
@pytest.mark.parametrize("groups", [1, 2])
def test_layers_have_the_results_and_gradients_of_float64_each_time(has_relu: bool, groups: int, gpu: str) -> None:
    """The numbers of images are those of no whole number of blocks, with one and up to three groups of a block."""
    generator, rows = torch.Generator(gpu).manual_seed(groups), 2 * groups * fewest_images(gpu) + 11
    images = torch.randint(256, (rows, *BREAKOUT.image_shape), generator=generator, device=gpu).to(torch.uint8)
    sizes = (FILTERS, 4, 3, 3), (FILTERS,), (MAX_OUTPUTS, FILTERS * BREAKOUT.places), (MAX_OUTPUTS,)
    values = [torch.randn(size, generator=generator, device=gpu) / size[-1] ** 0.5 for size in sizes]
    parameters, exact = ([x.to(dtype).requires_grad_() for x in values] for dtype in (torch.float32, torch.float64))
    out_gradient, scale = torch.randn(rows, MAX_OUTPUTS, generator=generator, device=gpu), 1.0 / 255.0
    results = []
    with torch_settings(gpu, threads=1):
        for _ in range(2):
            out = ConvolutionLinear.apply(images, *parameters[:2], scale, *parameters[2:], has_relu, None)
            features = out.grad_fn.saved_tensors[2]
            results.append((out.detach(), features, *torch.autograd.grad(out, parameters, out_gradient)))
    for first, second in zip(*results, strict=True):
        assert torch.equal(first, second)
    # The gradient passes where the kernel's result is above 0; near 0 rounded products may have another sign.
    features = features.view(rows, -1, FILTERS).transpose(1, 2).flatten(1)
    convolution = functional.conv2d(images.double() * scale, *exact[:2]).flatten(1)
    linear = functional.linear(convolution * (features > 0), *exact[2:])
    passed = out_gradient * (out > 0) if has_relu else out_gradient
    wanted = torch.autograd.grad(linear, exact, passed.double())
    linear = functional.linear(convolution.relu(), *exact[2:])
    pairs = [
        (features, convolution.relu()),
        (out, linear.relu() if has_relu else linear),
        *zip(results[0][2:], wanted, strict=True),
    ]
    with torch.no_grad():
        for actual, expected in pairs:
            assert float((actual - expected).norm() / expected.norm()) < 2e-3


@pytest.mark.gpu
@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_a_network_has_the_results_of_its_layers_one_by_one(activation: str, gpu: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(3)
    network = SharedCNN(Box(0, 1, BREAKOUT.image_shape, np.uint8), 3, (128,), activation=activation).to(gpu)
    shape, fewest, device = LayersShape(BREAKOUT, 128, activation == "relu"), fewest_images(gpu), torch.device(gpu)
    images = torch.randint(2, (2, fewest, *BREAKOUT.image_shape), device=gpu).to(torch.uint8)
    assert not is_supported(shape, fewest, device)  # in float32
    with torch_settings(gpu, threads=1):
        assert is_supported(shape, fewest, device)
        assert not is_supported(shape, fewest - 1, device)
        policy, value = network.both(images)
        assert (policy.shape, value.shape) == ((2, fewest, 3), (2, fewest))
        monkeypatch.setattr(convolution_linear, "is_supported", lambda *_: False)
        with torch.no_grad():
            for actual, expected in zip((policy, value), network.both(images), strict=True):
                assert not torch.equal(actual, expected)  # they are those of other kernels
                assert float((actual - expected).norm() / expected.norm()) < 2e-3


def test_other_shapes_are_not_supported(monkeypatch: pytest.MonkeyPatch) -> None:
    device = torch.device("cuda:0")
    monkeypatch.setattr(torch, "get_float32_matmul_precision", lambda: "high")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(multi_processor_count=132))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    monkeypatch.setattr(convolution_linear, "parse_device", lambda name: name)
    monkeypatch.setattr(convolution_linear, "max_shared_memory", lambda _: 227 * 1024)
    assert is_supported(LayersShape(BREAKOUT, MAX_OUTPUTS, True), 1 << 20, device)
    for shape, outputs in (
        (ConvolutionShape((4, 10, 10), torch.uint8, torch.bfloat16), 128),
        (ConvolutionShape((4, 10, 10), torch.float32, torch.float32), 128),
        (ConvolutionShape((4, 9, 9), torch.uint8, torch.float32), 128),
        (ConvolutionShape((3, 9, 10), torch.uint8, torch.float32), 128),
        (BREAKOUT, MAX_OUTPUTS + 16),
        (BREAKOUT, 24),
        (ConvolutionShape((8, 6, 6), torch.uint8, torch.float32), 128),  # its sums do not fit into registers
    ):
        assert not is_supported(LayersShape(shape, outputs, True), 1 << 20, device)
