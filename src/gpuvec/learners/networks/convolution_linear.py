"""A convolution of small images and the linear layer behind it on a GPU, with one kernel for the gradient of the convolution.

With float32 results, layers one by one are bound by the memory that they write and read. A kernel that multiplies the gradient
of the linear layer by its weights, and the product at once by the pixels, neither writes nor reads the gradient of the results
of the convolution (design/0040).

Letters: R rows, which are images, C channels, H rows and W columns of an image, F filters, P places of the filter in an image,
N outputs of the linear layer.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from gpuvec.engine.backends.cuda.nvrtc import CudaSource, max_shared_memory
from gpuvec.engine.backends.device import parse_device
from gpuvec.learners.cuda_graphs.tensor_launches import make_tensor_launcher
from gpuvec.learners.networks import convolution_kernels
from gpuvec.learners.networks.bias_gradient import bias_gradient
from gpuvec.learners.networks.convolution import KERNEL_SIZE
from gpuvec.learners.networks.convolution_kernels import FILTERS, ConvolutionShape, convolve, split_gradient

TILES, WARPS = 4, 8  # tiles of 8 images of a warp, warps of a block
# A block has so many images that fewer of a multiprocessor take as long.
MIN_IMAGES = 4 * TILES * WARPS
MAX_OUTPUTS = 128  # N; the gradients of a warp's images are in registers
VECTOR_BYTES = 16  # of an asynchronous copy
STAGE_PLACES, STAGES = 4, 2  # places whose weights are copied at once, and how many of these copies are in shared memory
MEMBERS = {
    "images": "const unsigned char*", "out_gradient": "const float*", "packed": "const void*", "is_positive": "const void*",
    "partial_gradients": "float*", "num_images": "i64", "scale": "double",
}  # fmt: skip


def gradient_kernel(shape: ConvolutionShape, outputs: int, tiles: int = TILES, warps: int = WARPS) -> CudaSource:
    """Returns the kernel.

    Args:
        shape: of the images.
        outputs: N.
        tiles: of 8 images of a warp.
        warps: of a block.
    """
    channels, height, width = shape.image_shape
    constants: dict[str, int | str] = {
        "CHANNELS": channels, "HEIGHT": height, "WIDTH": width, "PIXEL": "unsigned char", "IS_BF16": 0, "OUTPUTS": outputs,
        "TILES": tiles, "THREADS": 32 * warps,
    }  # fmt: skip
    image_bytes = (channels * height * width + 47) // 64 * 64 + 16  # in shared memory, as in the source
    weight_bytes = STAGES * STAGE_PLACES * FILTERS * outputs * 4
    shared_bytes = max(weight_bytes + 8 * tiles * warps * image_bytes, 4 * warps * FILTERS * (shape.taps + 1))
    file = Path(__file__).with_name("convolution_linear_gradient.cu")
    return CudaSource(
        file, "convolution_linear_gradient", tuple(MEMBERS.items()), tuple(constants.items()), 32 * warps, shared_bytes
    )


def is_supported(shape: ConvolutionShape, outputs: int, rows: int, device: torch.device) -> bool:
    """Returns whether the kernel computes the gradient, and in less time than the layers one by one.

    Args:
        shape: of the images.
        outputs: N.
        rows: R.
        device: of the tensors.
    """
    channels, height, width = shape.image_shape
    return (
        (shape.pixel_dtype, shape.dtype) == (torch.uint8, torch.float32)
        and (width - KERNEL_SIZE + 1) % STAGE_PLACES == 0
        and channels * height * width % VECTOR_BYTES == 0
        and outputs % 16 == 0
        and outputs <= MAX_OUTPUTS
        and convolution_kernels.is_supported(shape, FILTERS, device)
        and rows >= MIN_IMAGES * torch.cuda.get_device_properties(device).multi_processor_count
        and gradient_kernel(shape, outputs).shared_bytes <= max_shared_memory(parse_device(str(device)))
    )


def pack_weights(weight: Tensor, places: int) -> Tensor:
    """Returns the weights of the linear layer in the order in which the kernel loads them, (P, N / 8, 32, 4).

    Args:
        weight: (N, F P).
        places: P.
    """
    # The dimensions are a pair of steps, t, the step, the half of its outputs, the half of the filters, g, and the place.
    x = weight.view(-1, 4, 2, 2, 2, 8, places)
    return x.permute(6, 0, 2, 5, 1, 3, 4).reshape(places, -1, 32, 4)


@lru_cache(maxsize=64)
def _launcher(shape: ConvolutionShape, outputs: int, device: torch.device) -> Any:
    """The launcher of the kernel, which is loaded once for a device."""
    return make_tensor_launcher(gradient_kernel(shape, outputs), parse_device(str(device)))


class ConvolutionLinear(torch.autograd.Function):
    """The results of a linear layer behind max(0, w * x + b), (R, N), of images x, whose gradient is not computed."""

    @staticmethod
    def forward(
        ctx: Any, images: Tensor, weight: Tensor, bias: Tensor, scale: float, linear_weight: Tensor, linear_bias: Tensor,
        has_relu: bool, num_finished_blocks: Tensor | None,
    ) -> Tensor:  # fmt: skip
        """Returns the results of the linear layer.

        Args:
            ctx: keeps what the gradient needs.
            images: x / scale, (R, C, H, W) uint8.
            weight: w, (F, C, 3, 3) float32.
            bias: b, (F,) float32.
            scale: factor of the pixels.
            linear_weight: (N, F P) float32.
            linear_bias: (N,) float32.
            has_relu: whether a ReLU is behind the linear layer.
            num_finished_blocks: the counter of `bias_gradient`.
        """
        images = images.contiguous()
        features, is_positive = convolve(images, weight, bias, scale, torch.float32)
        product = torch._addmm_activation if has_relu else torch.addmm
        out: Tensor = product(linear_bias, features, linear_weight.t())
        ctx.save_for_backward(images, is_positive, features, linear_weight, out if has_relu else None)
        ctx.scale, ctx.num_finished_blocks = scale, num_finished_blocks
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, out_gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Returns the gradients of the parameters of both layers.

        Args:
            ctx: what `forward` kept.
            out_gradient: the gradient of the results, (R, N).
        """
        images, is_positive, features, linear_weight, out = ctx.saved_tensors
        rows, device = len(images), images.device
        gradient, linear_bias_gradient = bias_gradient(out_gradient, out, ctx.num_finished_blocks)
        shape = ConvolutionShape(tuple(images.shape[1:]), images.dtype, torch.float32)
        multiprocessors = torch.cuda.get_device_properties(device).multi_processor_count
        blocks = min(-(-rows // (8 * TILES * WARPS)), multiprocessors)
        partial_gradients = torch.empty(blocks, FILTERS * (shape.taps + 1), device=device)
        _launcher(shape, linear_weight.shape[0], device)(
            blocks, images=images, out_gradient=gradient.contiguous(), packed=pack_weights(linear_weight, shape.places),
            is_positive=is_positive, partial_gradients=partial_gradients, num_images=rows, scale=ctx.scale,
        )  # fmt: skip
        linear_gradients = gradient.t() @ features, linear_bias_gradient
        return None, *split_gradient(partial_gradients, shape), None, *linear_gradients, None, None
