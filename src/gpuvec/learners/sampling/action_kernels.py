"""Functions that draw the action of one row; `sampler` launches them as elementwise kernels.

A draw depends on its key alone: seed, stream, row, iteration and step. It is therefore the same for any number of rows and any
launch. A captured graph draws new numbers in each replay, because `iteration` is read from the device, and there is no state of
a generator to save. Draws of environments have other numbers, so that a policy with the same seed does not predict them.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from gpuvec.engine.compiler.functions import device_function, generate_function, inline_function
from gpuvec.engine.compiler.memory_ops import MemoryOps
from gpuvec.engine.compiler.types import Batch, DeviceFunction
from gpuvec.random import Key, normal, uniform, unit, word

f32, i64, u32, u64, b1 = np.float32, np.int64, np.uint32, np.uint64, np.bool_
DeviceKey: Any = Key  # of uint32, which are not int for mypy
FIRST_DRAW = 2**31  # environments use the numbers below it
DRAWS_PER_STREAM = 2**20
LOG_TWO, LOG_SQRT_TWO_PI = f32(math.log(2.0)), f32(0.5 * math.log(2.0 * math.pi))
# Of a batch. `seeds` has one int64 for each `rows_per_seed` rows, whose numbers begin at `first_row` for each seed.
KEY_MEMBERS = ("seeds", "iteration", "step", "rows_per_seed", "stream", "first_row")


def make_key_functions(ops: MemoryOps) -> tuple[DeviceFunction, DeviceFunction]:
    """Returns (make_key, first_draw): the functions of the key of a row in this step, and of the number of its first draw.

    Args:
        ops: the memory operations of the target.
    """
    load = ops.load

    @inline_function
    def make_key(b: Batch, batch_row: int) -> Any:
        owner = i64(batch_row) // i64(b.rows_per_seed)
        row = i64(batch_row) - owner * i64(b.rows_per_seed) + i64(b.first_row)
        seed, iteration = u64(load(b.seeds, owner, i64)), load(b.iteration, 0, i64)
        return DeviceKey(u32(seed & u64(0xFFFFFFFF)), u32(seed >> u64(32)), u32(row), u32(iteration), u32(b.step))

    @inline_function
    def first_draw(b: Batch) -> Any:
        return i64(FIRST_DRAW) + i64(b.stream) * i64(DRAWS_PER_STREAM)

    return make_key, first_draw


def make_categorical_draw(
    ops: MemoryOps, sizes: tuple[int, ...], temperature: float, has_mask: bool, greedy: bool
) -> DeviceFunction:
    """Returns the function that draws from H heads of logits, by inversion of the distribution function of each.

    Args:
        ops: the memory operations of the target.
        sizes: number of logits of each head.
        temperature: divisor of the logits.
        has_mask: whether a mask says which actions are allowed.
        greedy: whether to take the likeliest action instead of drawing one.
    """
    load, store, (make_key, first_draw) = ops.load, ops.store, make_key_functions(ops)
    draw_word, to_unit, width, divisor = device_function(word), device_function(unit), sum(sizes), f32(temperature)

    @inline_function
    def allowed(b: Batch, index: int) -> bool:
        return not has_mask or load(b.mask, index, b1)

    @inline_function
    def draw_head(b: Batch, row: int, first: int, size: int, head: int) -> Any:
        """Returns (action, log-probability, entropy) of the head whose logits are `first` to `first + size - 1`."""
        max_logit, choice = f32(-np.inf), first
        for j in range(first, first + size):
            if allowed(b, j):
                logit = load(b.logits, j, f32) / divisor
                if logit > max_logit:
                    max_logit, choice = logit, j
        total, weighted_sum = f32(0.0), f32(0.0)
        for j in range(first, first + size):
            if allowed(b, j):
                shifted = load(b.logits, j, f32) / divisor - max_logit
                weight = f32(math.exp(shifted))
                total += weight
                if weight > f32(0.0):  # of a logit of minus infinity the product would be nan
                    weighted_sum += weight * shifted
        if not greedy:
            threshold = to_unit(draw_word(make_key(b, row), first_draw(b) + head)) * total
            cumulative, j = f32(0.0), first
            while j < first + size and cumulative <= threshold:
                if allowed(b, j):
                    weight = f32(math.exp(load(b.logits, j, f32) / divisor - max_logit))
                    cumulative += weight
                    if weight > f32(0.0):
                        choice = j
                j += 1
        log_total = f32(math.log(total))
        log_prob = load(b.logits, choice, f32) / divisor - max_logit - log_total
        return choice - first, log_prob, log_total - weighted_sum / total

    source, offset = "def draw(b, row):\n    log_prob, entropy = f32(0.0), f32(0.0)\n", 0
    for head, size in enumerate(sizes):
        source += f"    action, head_log_prob, head_entropy = draw_head(b, row, row * {width} + {offset}, {size}, {head})\n"
        source += f"    store(b.action, row * {len(sizes)} + {head}, action, i64)\n"
        source += "    log_prob, entropy = log_prob + head_log_prob, entropy + head_entropy\n"
        offset += size
    source += "    store(b.log_prob, row, log_prob, f32)\n    store(b.entropy, row, entropy, f32)\n"
    return inline_function(generate_function("draw", source, draw_head=draw_head, store=store, f32=f32, i64=i64))


def make_gaussian_draw(ops: MemoryOps, components: int, shared_std: bool, squashed: bool, greedy: bool) -> DeviceFunction:
    """Returns the function that draws K normal components.

    Args:
        ops: the memory operations of the target.
        components: K.
        shared_std: whether all rows have the same standard deviations.
        squashed: whether the log-probability is that of the hyperbolic tangents of the components.
        greedy: whether to take the mean instead of drawing.
    """
    load, store, (make_key, first_draw) = ops.load, ops.store, make_key_functions(ops)
    draw_normal = device_function(normal)

    @inline_function
    def draw(b: Batch, row: int) -> None:
        log_prob, entropy = f32(0.0), f32(0.0)
        for k in range(components):
            index = row * components + k
            log_std = load(b.log_std, k if shared_std else index, f32)
            z = f32(0.0)
            if not greedy:
                z = f32(draw_normal(make_key(b, row), first_draw(b) + 2 * k))
            x = load(b.mean, index, f32) + f32(math.exp(log_std)) * z
            log_prob += f32(-0.5) * z * z - log_std - LOG_SQRT_TWO_PI
            entropy += log_std + (f32(0.5) + LOG_SQRT_TWO_PI)
            # This is log(1 - tanh(x)^2) without the loss of digits where tanh(x) is near 1.
            if squashed:
                y = f32(-2.0) * x
                softplus = max(y, f32(0.0)) + f32(math.log1p(f32(math.exp(-abs(y)))))
                log_prob -= f32(2.0) * (LOG_TWO - x - softplus)
            store(b.action, index, x, f32)
        store(b.log_prob, row, log_prob, f32)
        # The entropy of hyperbolic tangents has no closed form; minus the log-probability is an estimate of it.
        store(b.entropy, row, -log_prob if squashed else entropy, f32)

    return draw


def make_ornstein_uhlenbeck_draw(
    ops: MemoryOps, components: int, theta: float, sigma: float, dt: float, uniform_iterations: int
) -> DeviceFunction:
    """Returns the function that adds Ornstein-Uhlenbeck noise to K components; with theta * dt = 1 it is white noise.

    Args:
        ops: the memory operations of the target.
        components: K.
        theta: rate at which the noise decays.
        sigma: standard deviation of the noise that a step of length 1 adds.
        dt: length of a step.
        uniform_iterations: iterations below it draw uniformly distributed numbers, and leave the noise at 0.
    """
    load, store, (make_key, first_draw) = ops.load, ops.store, make_key_functions(ops)
    draw_uniform, draw_normal = device_function(uniform), device_function(normal)
    decay, noise_std, first_iteration = f32(theta * dt), f32(sigma * math.sqrt(dt)), i64(uniform_iterations)

    @inline_function
    def draw(b: Batch, row: int) -> None:
        is_first, is_uniform = load(b.episode_start, row, b1), load(b.iteration, 0, i64) < first_iteration
        for k in range(components):
            index, low, high = row * components + k, load(b.low, k, f32), load(b.high, k, f32)
            key, number, noise = make_key(b, row), first_draw(b) + 2 * k, f32(0.0)
            if is_uniform:
                action = f32(draw_uniform(key, number, low, high))
            else:
                if not is_first:
                    noise = load(b.noise, index, f32)
                noise += noise_std * f32(draw_normal(key, number)) - decay * noise
                action = load(b.mean, index, f32) + noise
            store(b.noise, index, noise, f32)
            store(b.action, index, min(max(action, low), high), f32)

    return draw
