"""Kernels of a convolution of 3 x 3 with a ReLU for small images on a GPU, and its gradient.

Letters: R rows, which are images, C channels, H rows and W columns of an image, F filters, P places of the filter in an image.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from gpuvec.engine.backends.cuda.nvrtc import CudaSource
from gpuvec.engine.backends.device import parse_device
from gpuvec.learners.cuda_graphs.tensor_launches import make_tensor_launcher
from gpuvec.learners.networks.convolution import KERNEL_SIZE

FILTERS = 16  # of a layer, as convolve.cu has them
MIN_COMPUTE_CAPABILITY = (8, 0)  # of products of TF32 numbers
THREADS, MAX_IMAGES = 128, 8  # of a block
GRADIENT_BLOCKS_PER_MULTIPROCESSOR = 4
# Of the images of a block. A block has at most 48 KiB of memory without dynamic allocation, and the gradient has sums in it.
MAX_SHARED_BYTES = 24 * 1024
PIXEL_TYPES = {torch.uint8: "unsigned char", torch.float32: "float"}
MEMBERS = {
    "images": "const {pixel}*", "weight": "const float*", "bias": "const float*", "out": "void*", "out_gradient": "const void*",
    "is_positive": "void*", "partial_gradients": "float*", "num_images": "i64", "scale": "double",
}  # fmt: skip


class ConvolutionShape(NamedTuple):
    """The images and results for which the kernels are compiled."""

    image_shape: tuple[int, int, int]  # (C, H, W)
    pixel_dtype: torch.dtype  # uint8 or float32
    dtype: torch.dtype  # float32 or bfloat16, of the results

    @property
    def places(self) -> int:
        """P."""
        _, height, width = self.image_shape
        return (height - KERNEL_SIZE + 1) * (width - KERNEL_SIZE + 1)

    @property
    def taps(self) -> int:
        """Weights of a filter."""
        return self.image_shape[0] * KERNEL_SIZE**2

    @property
    def images_per_block(self) -> int:
        """Images in the shared memory of a block; 0 if they are too large."""
        channels, height, width = self.image_shape
        return min(MAX_IMAGES, MAX_SHARED_BYTES // (4 * channels * height * width))


def convolution_kernels(shape: ConvolutionShape) -> dict[str, CudaSource]:
    """Returns {name: kernel} of the layer and of its gradient for a `shape`."""
    channels, height, width = shape.image_shape
    pixel = PIXEL_TYPES[shape.pixel_dtype]
    constants: dict[str, int | str] = {
        "CHANNELS": channels, "HEIGHT": height, "WIDTH": width, "PIXEL": pixel,
        "IS_BF16": int(shape.dtype == torch.bfloat16), "IMAGES": shape.images_per_block, "THREADS": THREADS,
    }  # fmt: skip
    members = tuple((name, kind.format(pixel=pixel)) for name, kind in MEMBERS.items())
    return {
        name: CudaSource(Path(__file__).with_name(f"{name}.cu"), name, members, tuple(constants.items()), THREADS)
        for name in ("convolve", "convolution_gradient")
    }


def is_supported(shape: ConvolutionShape, filters: int, device: torch.device) -> bool:
    """Returns whether the kernels compute a layer of so many `filters` for images of `shape` on `device`."""
    return (
        device.type == "cuda"
        and filters == FILTERS
        and shape.images_per_block > 0
        and shape.pixel_dtype in PIXEL_TYPES
        and torch.cuda.get_device_capability(device) >= MIN_COMPUTE_CAPABILITY
    )


@lru_cache(maxsize=64)
def _launchers(shape: ConvolutionShape, device: torch.device) -> dict[str, Any]:
    """The launchers of the kernels, which are loaded once for a device."""
    gpu = parse_device(str(device))
    return {name: make_tensor_launcher(kernel, gpu) for name, kernel in convolution_kernels(shape).items()}


class ConvolveReLU(torch.autograd.Function):
    """The results max(0, w * x + b), (R, F P), of images x, whose gradient is not computed, and the gradients of w and b."""

    @staticmethod
    def forward(ctx: Any, images: Tensor, weight: Tensor, bias: Tensor, scale: float, dtype: torch.dtype) -> Tensor:
        """Returns max(0, w * x + b), filter by filter.

        Args:
            ctx: keeps what the gradient needs.
            images: x / scale, (R, C, H, W) uint8 or float32.
            weight: w, (F, C, 3, 3) float32.
            bias: b, (F,) float32.
            scale: factor of the pixels.
            dtype: of the results.
        """
        images = images.contiguous()
        rows, channels, height, width = images.shape
        shape = ConvolutionShape((channels, height, width), images.dtype, dtype)
        tiles = -(-shape.places // 8)
        out = torch.empty(rows, FILTERS * shape.places, dtype=dtype, device=images.device)
        is_positive = torch.empty(rows, tiles, 4, dtype=torch.int32, device=images.device)  # a bit for each result
        _launchers(shape, images.device)["convolve"](
            max(1, -(-rows // shape.images_per_block)), images=images, weight=weight.contiguous(), bias=bias, out=out,
            is_positive=is_positive, num_images=rows, scale=scale,
        )  # fmt: skip
        ctx.save_for_backward(images, is_positive)
        ctx.shape, ctx.scale = shape, scale
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, out_gradient: Tensor) -> tuple[None, Tensor, Tensor, None, None]:
        """Returns the gradients of w and b.

        Args:
            ctx: what `forward` kept.
            out_gradient: the gradient of the results, (R, F P).
        """
        images, is_positive = ctx.saved_tensors
        shape, rows, device = ctx.shape, len(images), images.device
        multiprocessors = torch.cuda.get_device_properties(device).multi_processor_count
        blocks = min(max(1, -(-rows // shape.images_per_block)), GRADIENT_BLOCKS_PER_MULTIPROCESSOR * multiprocessors)
        columns = (shape.taps + 8) // 8 * 8  # the taps, the bias, and a rest that is not used
        partial_gradients = torch.empty(blocks, FILTERS, columns, device=device)
        _launchers(shape, device)["convolution_gradient"](
            blocks, images=images, out_gradient=out_gradient.contiguous(), is_positive=is_positive,
            partial_gradients=partial_gradients, num_images=rows, scale=ctx.scale,
        )  # fmt: skip
        gradient = partial_gradients.sum(0)
        weight_gradient, bias_gradient = (x.contiguous() for x in (gradient[:, : shape.taps], gradient[:, shape.taps]))
        return None, weight_gradient.view(FILTERS, -1, KERNEL_SIZE, KERNEL_SIZE), bias_gradient, None, None
