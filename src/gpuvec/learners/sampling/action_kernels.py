"""What a thread does to draw the action of its row; `sampling` launches it.

A draw hangs on its key alone: seed, stream, row, iteration and step. So it is the same for any number of rows and any launch, a
captured graph draws anew in each replay, as `iteration` is read from the device, and no generator's state is to be saved.
An environment's own draws have other numbers, so that a policy with the same seed does not foresee them.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from gpuvec.engine.compiler.functions import device_function as compiled
from gpuvec.engine.compiler.functions import generate_function, inline_function
from gpuvec.engine.compiler.memory_ops import MemoryOps
from gpuvec.random import Key, normal, unit, word

f32, i64, u32, u64, b1 = np.float32, np.int64, np.uint32, np.uint64, np.bool_
Words: Any = Key  # of uint32, which are no ints to mypy
FIRST_DRAW, DRAWS = 2**31, 2**20  # beyond those of environments; numbers of a stream
LOG_TWO, LOG_SQRT_TWO_PI = f32(math.log(2.0)), f32(0.5 * math.log(2.0 * math.pi))
KEY = ("iteration", "step", "seed", "stream")  # members of a batch


def keys(ops: MemoryOps) -> tuple[Any, Any]:
    """(key, first): `key(b, row)` of a row's draws in this step, and the number `first(b)` of the first of them."""
    load = ops.load

    @inline_function
    def key(b: Any, row: int) -> Any:
        seed, iteration = u64(b.seed), load(b.iteration, 0, i64)
        return Words(u32(seed & u64(0xFFFFFFFF)), u32(seed >> u64(32)), u32(row), u32(iteration), u32(b.step))

    @inline_function
    def first(b: Any) -> Any:
        return i64(FIRST_DRAW) + i64(b.stream) * i64(DRAWS)

    return key, first


def categorical(ops: MemoryOps, sizes: tuple[int, ...], temperature: float, masked: bool, greedy: bool) -> Any:
    """H heads of logits: inverts the distribution function of each, in the order of its actions."""
    load, store, (key, first) = ops.load, ops.store, keys(ops)
    drawn, unit_of, width, heat = compiled(word), compiled(unit), sum(sizes), f32(temperature)

    @inline_function
    def allowed(b: Any, at: int) -> bool:
        return not masked or load(b.mask, at, b1)

    @inline_function
    def head(b: Any, row: int, at: int, size: int, number: int) -> Any:
        """(action, log-probability, entropy) of the head whose logits begin at `at`."""
        best, choice = f32(-np.inf), at
        for j in range(at, at + size):
            if allowed(b, j):
                x = load(b.logits, j, f32) / heat
                if x > best:
                    best, choice = x, j
        total, weighted = f32(0.0), f32(0.0)
        for j in range(at, at + size):
            if allowed(b, j):
                below = load(b.logits, j, f32) / heat - best
                weight = f32(math.exp(below))
                total += weight
                if weight > f32(0.0):  # of a logit of minus infinity the product would be nan
                    weighted += weight * below
        if not greedy:
            goal, passed, j = unit_of(drawn(key(b, row), first(b) + number)) * total, f32(0.0), at
            while j < at + size and passed <= goal:
                if allowed(b, j):
                    weight = f32(math.exp(load(b.logits, j, f32) / heat - best))
                    passed += weight
                    if weight > f32(0.0):
                        choice = j
                j += 1
        log_total = f32(math.log(total))
        return choice - at, load(b.logits, choice, f32) / heat - best - log_total, log_total - weighted / total

    source, at = "def draw(b, row):\n    log_prob, entropy = f32(0.0), f32(0.0)\n", 0
    for number, size in enumerate(sizes):
        source += f"    action, gained, chance = head(b, row, row * {width} + {at}, {size}, {number})\n"
        source += f"    store(b.action, row * {len(sizes)} + {number}, action, i64)\n"
        source += "    log_prob, entropy = log_prob + gained, entropy + chance\n"
        at += size
    source += "    store(b.log_prob, row, log_prob, f32)\n    store(b.entropy, row, entropy, f32)\n"
    return inline_function(generate_function("draw", source, head=head, store=store, f32=f32, i64=i64))


def gaussian(ops: MemoryOps, components: int, shared: bool, squashed: bool, greedy: bool) -> Any:
    """K normal components; where `squashed`, the density is that of their hyperbolic tangents."""
    load, store, (key, first) = ops.load, ops.store, keys(ops)
    normal_of = compiled(normal)

    @inline_function
    def draw(b: Any, row: int) -> None:
        log_prob, entropy = f32(0.0), f32(0.0)
        for k in range(components):
            at = row * components + k
            log_std = load(b.log_std, k if shared else at, f32)
            z = f32(0.0)
            if not greedy:
                z = f32(normal_of(key(b, row), first(b) + 2 * k))
            x = load(b.mean, at, f32) + f32(math.exp(log_std)) * z
            log_prob += f32(-0.5) * z * z - log_std - LOG_SQRT_TWO_PI
            entropy += log_std + (f32(0.5) + LOG_SQRT_TWO_PI)
            if squashed:  # log(1 - tanh(x)^2) without the loss of digits where tanh(x) is near 1
                y = f32(-2.0) * x
                softplus = max(y, f32(0.0)) + f32(math.log1p(f32(math.exp(-abs(y)))))
                log_prob -= f32(2.0) * (LOG_TWO - x - softplus)
            store(b.action, at, x, f32)
        store(b.log_prob, row, log_prob, f32)
        store(b.entropy, row, -log_prob if squashed else entropy, f32)  # which has no closed form then: an estimate

    return draw


def noisy(ops: MemoryOps, components: int, theta: float, sigma: float, dt: float) -> Any:
    """Actions with noise of Ornstein and Uhlenbeck; that with theta * dt = 1 remembers nothing."""
    load, store, (key, first) = ops.load, ops.store, keys(ops)
    normal_of, pull, push = compiled(normal), f32(theta * dt), f32(sigma * math.sqrt(dt))

    @inline_function
    def draw(b: Any, row: int) -> None:
        anew = load(b.ended, row, b1)
        for k in range(components):
            at = row * components + k
            x = f32(0.0)
            if not anew:
                x = load(b.noise, at, f32)
            x += push * f32(normal_of(key(b, row), first(b) + 2 * k)) - pull * x
            store(b.noise, at, x, f32)
            noisy = load(b.mean, at, f32) + x
            store(b.action, at, min(max(noisy, load(b.low, k, f32)), load(b.high, k, f32)), f32)

    return draw
