"""A convolution of small images and the linear layer behind it on a GPU: a kernel for both layers, and one for their gradients.

With float32 results, layers one by one are bound by the memory that they write and read. The first kernel stores the results of
the convolution, which the gradient of the linear layer needs, but does not read them. The second one multiplies the gradient of
the linear layer by its weights, and the product at once by the pixels, so that the gradient of the results of the convolution
is neither written nor read (design/0040).

Letters: R rows, which are images, C channels, H rows and W columns of an image, F filters, P places of the filter in an image,
N outputs of the linear layer.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from gpuvec.engine.backends.cuda.nvrtc import CudaSource, max_shared_memory
from gpuvec.engine.backends.device import parse_device
from gpuvec.learners.cuda_graphs.launches import cached_launchers
from gpuvec.learners.networks import convolution_kernels
from gpuvec.learners.networks.convolution import KERNEL_SIZE
from gpuvec.learners.networks.convolution_kernels import FILTERS, ConvolutionShape, split_gradient
from gpuvec.learners.networks.linear import bias_gradient

IMAGES, WARPS = 32, 8  # images of a warp, warps of a block
# Of a multiprocessor. With fewer images most blocks would have none, and a block takes as long.
MIN_IMAGES = IMAGES * WARPS // 2
# Of an image, and of the linear layer. The weights of the convolution, the sums of all outputs, and the gradients of a warp's
# images are in registers.
MAX_CHANNELS, MAX_OUTPUTS = 5, 128
VECTOR_BYTES = 16  # of an asynchronous copy, to which images are aligned
STAGE_PLACES, STAGES = 4, 2  # places whose weights are copied at once, and how many of these copies are in shared memory
MEMBERS = {
    "images": "const unsigned char*", "weight": "const float*", "bias": "const float*", "packed": "const float*",
    "linear_bias": "const float*", "features": "float*", "is_positive": "void*", "out": "float*",
    "out_gradient": "const float*", "partial_gradients": "float*", "num_images": "i64", "scale": "double",
}  # fmt: skip


class LayersShape(NamedTuple):
    """The images, and the size of the linear layer, for which the kernels are compiled."""

    images: ConvolutionShape
    outputs: int  # N
    has_relu: bool  # whether a ReLU is behind the linear layer

    def image_distance(self, kernel: str) -> int:
        """Returns the bytes from one image to the next in shared memory.

        As words of 32 bits they are 4 modulo 16, so that lanes have different banks.

        Args:
            kernel: its name.
        """
        channels, height, width = self.images.image_shape
        bit_bytes = 2 * self.images.places if kernel == "convolution_linear_gradient" else 0
        return (channels * height * width + bit_bytes + 47) // 64 * 64 + 16

    def shared_bytes(self, images: int, kernel: str) -> int:
        """Returns the bytes of shared memory of a block.

        Args:
            images: those of a block.
            kernel: its name.
        """
        return STAGES * STAGE_PLACES * FILTERS * self.outputs * 4 + images * self.image_distance(kernel)


def layer_kernels(shape: LayersShape, images: int = IMAGES, warps: int = WARPS) -> dict[str, CudaSource]:
    """Returns {name: kernel} of both layers and of their gradient.

    Args:
        shape: of the layers.
        images: of a warp, a multiple of 16.
        warps: of a block.
    """
    channels, height, width = shape.images.image_shape
    constants: dict[str, int | str] = {
        "CHANNELS": channels, "HEIGHT": height, "WIDTH": width, "PIXEL": "unsigned char", "IS_BF16": 0,
        "OUTPUTS": shape.outputs, "HAS_RELU": int(shape.has_relu), "IMAGES": images, "THREADS": 32 * warps,
    }  # fmt: skip
    members, threads, kernels = tuple(MEMBERS.items()), 32 * warps, {}
    sums_bytes = 4 * warps * FILTERS * (shape.images.taps + 1)
    for name in ("convolution_linear", "convolution_linear_gradient"):
        shared_bytes = max(shape.shared_bytes(images * warps, name), sums_bytes)
        macros = tuple({**constants, "DISTANCE": shape.image_distance(name)}.items())
        kernels[name] = CudaSource(Path(__file__).with_name(f"{name}.cu"), name, members, macros, threads, shared_bytes)
    return kernels


def is_supported(shape: LayersShape, rows: int, device: torch.device) -> bool:
    """Returns whether the kernels compute these layers and their gradients, in less time than the layers one by one.

    Args:
        shape: of the layers.
        rows: R.
        device: of the tensors.
    """
    channels, height, width = shape.images.image_shape
    return (
        (shape.images.pixel_dtype, shape.images.dtype) == (torch.uint8, torch.float32)
        and channels <= MAX_CHANNELS
        and (width - KERNEL_SIZE + 1) % STAGE_PLACES == 0
        and shape.images.places % 8 == 0
        and channels * height * width % VECTOR_BYTES == 0
        and shape.outputs % 16 == 0
        and shape.outputs <= MAX_OUTPUTS
        and torch.get_float32_matmul_precision() != "highest"
        and convolution_kernels.is_supported(shape.images, FILTERS, device)
        and rows >= MIN_IMAGES * torch.cuda.get_device_properties(device).multi_processor_count
        and max(k.shared_bytes for k in layer_kernels(shape).values()) <= max_shared_memory(parse_device(str(device)))
    )


def pack_weights(weight: Tensor, places: int) -> Tensor:
    """Returns the weights of the linear layer in the order in which lanes load them, (P, N / 2, F / 2, 2, 2).

    The dimensions are a place, a pair of outputs, a pair of filters, the output, and the filter.

    Args:
        weight: (N, F P).
        places: P.
    """
    return weight.reshape(-1, 2, FILTERS // 2, 2, places).permute(4, 0, 2, 1, 3).contiguous()


def aligned_vectors(x: Tensor) -> Tensor:
    """Returns `x`, (R, ...), or a copy of it if `x` is not contiguous, or not aligned to vectors."""
    x = x.contiguous()
    return x.clone() if x.data_ptr() % VECTOR_BYTES else x


def _num_blocks(rows: int, device: torch.device) -> int:
    """The number of blocks of a launch; a multiprocessor has one."""
    return min(-(-rows // (IMAGES * WARPS)), torch.cuda.get_device_properties(device).multi_processor_count)


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
        images = aligned_vectors(images)
        (rows, channels, height, width), device = images.shape, images.device
        image_shape = ConvolutionShape((channels, height, width), images.dtype, torch.float32)
        shape, places = LayersShape(image_shape, len(linear_bias), has_relu), image_shape.places
        packed = pack_weights(linear_weight, places)
        features = torch.empty(rows, places * FILTERS, device=device)
        is_positive = torch.empty(rows, places, dtype=torch.int16, device=device)  # a bit for each filter
        out = torch.empty(rows, shape.outputs, device=device)
        cached_launchers(layer_kernels, device, shape)["convolution_linear"](
            _num_blocks(rows, device), images=images, weight=weight.contiguous(), bias=bias.contiguous(), packed=packed,
            linear_bias=linear_bias.contiguous(), features=features, is_positive=is_positive, out=out, num_images=rows,
            scale=scale,
        )  # fmt: skip
        ctx.save_for_backward(images, is_positive, features, packed, out if has_relu else None)
        ctx.shape, ctx.scale, ctx.num_finished_blocks = shape, scale, num_finished_blocks
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, out_gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Returns the gradients of the parameters of both layers.

        Args:
            ctx: what `forward` kept.
            out_gradient: the gradient of the results, (R, N).
        """
        images, is_positive, features, packed, out = ctx.saved_tensors
        shape, rows, device = ctx.shape, len(images), images.device
        gradient, linear_bias_gradient = bias_gradient(out_gradient, out, ctx.num_finished_blocks)
        blocks = _num_blocks(rows, device)
        partial_gradients = torch.empty(blocks, FILTERS * (shape.images.taps + 1), device=device)
        cached_launchers(layer_kernels, device, shape)["convolution_linear_gradient"](
            blocks, images=images, out_gradient=aligned_vectors(gradient), packed=packed, is_positive=is_positive,
            partial_gradients=partial_gradients, num_images=rows, scale=ctx.scale,
        )  # fmt: skip
        linear_gradient = None
        if ctx.needs_input_grad[4]:  # The features have the order (place, filter).
            linear_gradient = (gradient.t() @ features).view(shape.outputs, -1, FILTERS).transpose(1, 2).flatten(1)
        return None, *split_gradient(partial_gradients, shape.images), None, linear_gradient, linear_bias_gradient, None, None
