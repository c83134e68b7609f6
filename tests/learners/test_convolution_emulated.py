"""The kernels of the convolution of small images, emulated on a CPU and compared with torch's convolution."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from tests.support.cuda_emulator import emulate
from torch.nn import functional

from gpuvec.engine.backends.cuda.nvrtc import compile_cuda_source
from gpuvec.learners.networks.convolution_kernels import (
    FILTERS,
    MAX_CHANNELS,
    MIN_COMPUTE_CAPABILITY,
    ConvolutionShape,
    convolution_kernels,
    is_supported,
)

pytestmark = pytest.mark.compile
CASES = {
    "even": (ConvolutionShape((4, 10, 10), torch.uint8, torch.float32), 9, 1.0),
    "odd, scaled": (ConvolutionShape((2, 5, 7), torch.uint8, torch.bfloat16), 11, 1.0 / 255.0),
    "float32, a round of rows for the bias": (ConvolutionShape((8, 4, 6), torch.float32, torch.float32), 3, 1.0),
    "one place": (ConvolutionShape((1, 3, 3), torch.float32, torch.bfloat16), 17, 1.0),
}


@pytest.mark.parametrize("case", CASES)
def test_results_and_gradients_equal_those_of_torch(case, tmp_path) -> None:
    shape, rows, scale = CASES[case]
    generator = torch.Generator().manual_seed(rows)
    weight = torch.randn(FILTERS, shape.image_shape[0], 3, 3, generator=generator, requires_grad=True)
    bias = torch.randn(FILTERS, generator=generator, requires_grad=True)
    if shape.pixel_dtype == torch.uint8:
        images = torch.randint(256, (rows, *shape.image_shape), generator=generator, dtype=torch.uint8)
    else:
        images = torch.randn(rows, *shape.image_shape, generator=generator)
    expected = functional.conv2d(images.float() * scale, weight, bias).relu().flatten(1)
    out_gradient = torch.randn(expected.shape, generator=generator).to(shape.dtype)

    kernels = {name: emulate(kernel, tmp_path) for name, kernel in convolution_kernels(shape).items()}
    out = torch.full(expected.shape, 7.0, dtype=shape.dtype)
    is_positive = torch.zeros(rows, shape.groups, 32, dtype=torch.int16)
    members = {"images": images, "is_positive": is_positive, "num_images": rows, "scale": scale}
    kernels["convolve"]((2,), weight=weight, bias=bias, out=out, **members)
    magnitude = float(expected.detach().abs().max())
    tolerance = 2e-3 if shape.dtype == torch.float32 else 1e-2
    torch.testing.assert_close(out.float(), expected.detach(), rtol=tolerance, atol=tolerance * magnitude)

    # The gradient passes where the kernel's result is above 0; near 0 the rounded product may have another sign than torch's.
    convolution = functional.conv2d(images.float() * scale, weight, bias).flatten(1)
    exact = torch.autograd.grad((convolution * (out > 0) * out_gradient.float()).sum(), (weight, bias))
    partial_gradients = torch.full((2, FILTERS * (shape.taps + 1)), 7.0)
    kernels["convolution_gradient"]((2,), out_gradient=out_gradient, partial_gradients=partial_gradients, **members)
    gradients = partial_gradients.sum(0).split([FILTERS * shape.taps, FILTERS])
    for actual, wanted in zip(gradients, exact, strict=True):
        torch.testing.assert_close(actual.view_as(wanted), wanted, rtol=2e-3, atol=2e-3 * float(wanted.abs().max()))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_kernels_of_the_largest_supported_images_compile(dtype) -> None:
    for image_shape in ((MAX_CHANNELS, 10, 10), (1, 100, 100)):
        for kernel in convolution_kernels(ConvolutionShape(image_shape, torch.uint8, dtype)).values():
            assert kernel.threads >= 32
            assert compile_cuda_source(kernel, MIN_COMPUTE_CAPABILITY).code


def test_larger_images_are_not_supported() -> None:
    device = torch.device("cuda")
    for image_shape in ((MAX_CHANNELS + 1, 10, 10), (1, 110, 100), (2, 64, 100)):
        assert not is_supported(ConvolutionShape(image_shape, torch.uint8, torch.float32), FILTERS, device)
    assert not is_supported(ConvolutionShape((4, 10, 10), torch.int16, torch.float32), FILTERS, device)
    assert not is_supported(ConvolutionShape((4, 10, 10), torch.uint8, torch.float32), 2 * FILTERS, device)
