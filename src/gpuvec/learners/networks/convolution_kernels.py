"""Kernels of a convolution of 3 x 3 with a ReLU for small images on a GPU, and its gradient.

Letters: R rows, which are images, C channels, H rows and W columns of an image, F filters, P places of the filter in an image.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from gpuvec.engine.backends.cuda.nvrtc import CudaSource
from gpuvec.learners.cuda_graphs.launches import cached_launchers
from gpuvec.learners.networks.convolution import KERNEL_SIZE

FILTERS = 16  # of a layer, as image_tiles.cuh has them
MAX_CHANNELS = 16  # the weights, or their gradient, are in registers
MIN_COMPUTE_CAPABILITY = (8, 0)  # of products of TF32 numbers
MAX_WARPS = {"convolve": 4, "convolution_gradient": 8}  # of a block; each has an image
MAX_SHARED_BYTES = 48 * 1024  # of a block, without dynamic allocation
MAX_BLOCKS = {"convolve": 12, "convolution_gradient": 2}  # of a multiprocessor; a block of the gradient has a partial sum
GROUP_PLACES = 32  # of the filter, as image_tiles.cuh has them
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
    def groups(self) -> int:
        """Groups of places that a warp processes one after the other."""
        return -(-self.places // GROUP_PLACES)

    @property
    def taps(self) -> int:
        """Weights of a filter."""
        return self.image_shape[0] * KERNEL_SIZE**2

    @property
    def warp_bytes(self) -> int:
        """Shared memory of a warp: an image, with the strides of image_tiles.cuh, or its part of the gradient."""
        channels, height, width = self.image_shape
        row_stride = (width + 7) // 32 * 32 + 24
        channel_stride = (height * row_stride + 23) // 32 * 32 + 8
        return 4 * max(channels * channel_stride, FILTERS * (self.taps + 1))

    def warps(self, kernel: str) -> int:
        """Returns the number of warps of a block of the `kernel`; 0 if an image does not fit into shared memory."""
        return min(MAX_WARPS[kernel], MAX_SHARED_BYTES // self.warp_bytes)


def convolution_kernels(shape: ConvolutionShape) -> dict[str, CudaSource]:
    """Returns {name: kernel} of the layer and of its gradient for a `shape`."""
    channels, height, width = shape.image_shape
    pixel = PIXEL_TYPES[shape.pixel_dtype]
    constants: dict[str, int | str] = {
        "CHANNELS": channels, "HEIGHT": height, "WIDTH": width, "PIXEL": pixel,
        "IS_BF16": int(shape.dtype == torch.bfloat16),
    }  # fmt: skip
    members = tuple((name, kind.format(pixel=pixel)) for name, kind in MEMBERS.items())
    kernels = {}
    for name in MAX_WARPS:
        threads = 32 * shape.warps(name)
        names = members, (*constants.items(), ("THREADS", threads))
        kernels[name] = CudaSource(Path(__file__).with_name(f"{name}.cu"), name, *names, threads)
    return kernels


def is_supported(shape: ConvolutionShape, filters: int, device: torch.device) -> bool:
    """Returns whether the kernels compute a layer of so many `filters` for images of `shape` on `device`."""
    return (
        device.type == "cuda"
        and filters == FILTERS
        and shape.image_shape[0] <= MAX_CHANNELS
        and shape.pixel_dtype in PIXEL_TYPES
        and shape.warp_bytes <= MAX_SHARED_BYTES
        and torch.cuda.get_device_capability(device) >= MIN_COMPUTE_CAPABILITY
    )


def _num_blocks(shape: ConvolutionShape, kernel: str, rows: int, device: torch.device) -> int:
    """The number of blocks of a launch."""
    multiprocessors = torch.cuda.get_device_properties(device).multi_processor_count
    return max(1, min(-(-rows // shape.warps(kernel)), MAX_BLOCKS[kernel] * multiprocessors))


def convolve(images: Tensor, weight: Tensor, bias: Tensor, scale: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Returns max(0, w * x + b), filter by filter, (R, F P), and a bit for each result, which the gradient needs.

    Args:
        images: x / scale, (R, C, H, W) uint8 or float32, contiguous.
        weight: w, (F, C, 3, 3) float32.
        bias: b, (F,) float32.
        scale: factor of the pixels.
        dtype: of the results.
    """
    rows, channels, height, width = images.shape
    shape, device = ConvolutionShape((channels, height, width), images.dtype, dtype), images.device
    out = torch.empty(rows, FILTERS * shape.places, dtype=dtype, device=device)
    is_positive = torch.empty(rows, shape.groups, 32, dtype=torch.int16, device=device)
    cached_launchers(convolution_kernels, device, shape)["convolve"](
        _num_blocks(shape, "convolve", rows, device), images=images, weight=weight.contiguous(), bias=bias, out=out,
        is_positive=is_positive, num_images=rows, scale=scale,
    )  # fmt: skip
    return out, is_positive


def split_gradient(partial_gradients: Tensor, shape: ConvolutionShape) -> tuple[Tensor, Tensor]:
    """Returns the gradients of w, (F, C, 3, 3), and b, (F,).

    Args:
        partial_gradients: those of each block, (blocks, F C 9 + F), in the order of convolution_gradient.cu.
        shape: of the images.
    """
    weight_gradient, bias_gradient = partial_gradients.sum(0).split([FILTERS * shape.taps, FILTERS])
    return weight_gradient.view(FILTERS, -1, KERNEL_SIZE, KERNEL_SIZE), bias_gradient


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
        out, is_positive = convolve(images, weight, bias, scale, dtype)
        ctx.save_for_backward(images, is_positive)
        _, channels, height, width = images.shape
        ctx.shape, ctx.scale = ConvolutionShape((channels, height, width), images.dtype, dtype), scale
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
        blocks = _num_blocks(shape, "convolution_gradient", rows, device)
        partial_gradients = torch.empty(blocks, FILTERS * (shape.taps + 1), device=device)
        cached_launchers(convolution_kernels, device, shape)["convolution_gradient"](
            blocks, images=images, out_gradient=out_gradient.contiguous(), is_positive=is_positive,
            partial_gradients=partial_gradients, num_images=rows, scale=ctx.scale,
        )  # fmt: skip
        return None, *split_gradient(partial_gradients, shape), None, None
