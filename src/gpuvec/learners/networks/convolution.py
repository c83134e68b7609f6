"""A convolution of 3 x 3 with a ReLU, for small images.

cuDNN is made for large images with many channels. The gradient of its weights takes most of an update if images have 10 x 10
pixels, as in MinAtar's games (design/0040). On a GPU kernels compute the layer and its gradient. `torch.compile` cannot trace
these, so a compiled loss, and a GPU that the kernels do not support, has the weights as a matrix: it is mostly zeros, but
tensor cores multiply by zeros faster than cuDNN computes such a small convolution, and `LinearReLU` has the product with its
ReLU.

Letters: R rows, which are images, C channels, H rows and W columns of an image, F filters, P places of the filter in an image,
K = 9 pixels of a filter.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from gpuvec.learners.networks.linear import LinearReLU, pad_rows

KERNEL_SIZE = 3
# Pixels of one channel. With more of them the matrix would have so many zeros that the convolution is faster.
MAX_MATRIX_PIXELS = 256


class ConvolutionReLU(LinearReLU):
    """A layer max(0, w * x + b) for images, without padding.

    Args:
        image_shape: (C, H, W).
        filters: F.
        dtype: of the results, float32 or bfloat16.
        divisor: of the pixels.
    """

    def __init__(
        self, image_shape: tuple[int, ...], filters: int, dtype: torch.dtype = torch.float32, divisor: float = 1.0
    ) -> None:
        channels, height, width = image_shape
        super().__init__(channels * KERNEL_SIZE**2, filters)
        self.weight = nn.Parameter(self.weight.data.view(filters, channels, KERNEL_SIZE, KERNEL_SIZE))
        self.image_shape = channels, height, width
        self.dtype, self.divisor = dtype, divisor
        self.register_buffer("taps", find_taps(height, width) if height * width <= MAX_MATRIX_PIXELS else None, False)

    @property
    def features(self) -> int:
        """F P, the number of results of an image."""
        _, height, width = self.image_shape
        return len(self.bias) * (height - KERNEL_SIZE + 1) * (width - KERNEL_SIZE + 1)

    def forward(self, input: Tensor) -> Tensor:
        """Returns max(0, w * x + b), (R, F P), filter by filter, for images `input`, (R, C, H, W), divided by the divisor.

        Other leading dimensions are kept.
        """
        return self._convolve_rows(input.reshape(-1, *self.image_shape)).view(*input.shape[:-3], -1)

    def _convolve_rows(self, input: Tensor) -> Tensor:
        if input.is_cuda and not torch.compiler.is_compiling():
            # Imported here because it imports the CUDA compiler, which a CPU does not need.
            from gpuvec.learners.networks.convolution_kernels import ConvolutionShape, ConvolveReLU, is_supported

            if is_supported(ConvolutionShape(self.image_shape, input.dtype, self.dtype), len(self.bias), input.device):
                out: Tensor = ConvolveReLU.apply(input, self.weight, self.bias, 1.0 / self.divisor, self.dtype)  # type: ignore[no-untyped-call]  # of torch's
                return out
        images = input.to(self.dtype)
        if self.divisor != 1.0:
            images = images / self.divisor
        return self.product(images) if input.is_cuda and self.taps is not None else self.convolve(images)

    def product(self, images: Tensor) -> Tensor:
        """Returns what `forward` returns for `images`, (R, C, H, W), by a product of matrices; `taps` must not be None."""
        return super().forward(images.flatten(1))

    def convolve(self, images: Tensor) -> Tensor:
        """Returns what `forward` returns for `images`, (R, C, H, W), by torch's convolution."""
        weight, bias = (parameter.to(images.dtype) for parameter in (self.weight, self.bias))
        return functional.conv2d(images, weight, bias).relu().flatten(1)

    def _round_parameters(self, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Returns the weights as a matrix (F P, C H W), whose rows may be padded, and the bias of each of its rows, (F P,)."""
        filters, channels = self.weight.shape[:2]
        height, width = self.image_shape[1:]
        places = (height - KERNEL_SIZE + 1) * (width - KERNEL_SIZE + 1)
        # A product, since its gradient sums in a fixed order; the gradient of an index would use atomic additions.
        matrix = self.weight.view(filters * channels, -1) @ cast(Tensor, self.taps)
        matrix = matrix.view(filters, channels, places, height * width).transpose(1, 2).reshape(filters * places, -1)
        return pad_rows(matrix.to(dtype)), self.bias.to(dtype).repeat_interleave(places)


def find_taps(height: int, width: int) -> Tensor:
    """Returns (K, P H W): 1 where a pixel of the filter is on a pixel of the image at a place of the filter, otherwise 0.

    Args:
        height: H.
        width: W.
    """
    pixels = torch.eye(height * width).view(1, height * width, height, width)
    patches = functional.unfold(pixels, KERNEL_SIZE)  # (1, H W K, P)
    return patches.view(height * width, KERNEL_SIZE**2, -1).permute(1, 2, 0).flatten(1).contiguous()
