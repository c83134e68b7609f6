#!/usr/bin/env python3
"""Compiles every kernel of the bundled environments for a GPU, which may be absent, and for this CPU, and hashes the code.

    tools/machine_code.py --save FILE           writes a line of JSON for each kernel: its name, hash and size
    tools/machine_code.py --against FILE        prints which kernels differ from those that another commit saved
    tools/machine_code.py --only TEXT           compiles the kernels whose names contain the text

The hash is that of the sections with instructions and constants, so names of functions do not change it. Equal hashes show that
a change leaves the kernels as they are. The exit status is the number of kernels that differ, 100 at most.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
import os
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

os.environ["GPUVEC_CACHE"] = "off"  # compiles all kernels, also those in the cache

from gymnasium.spaces import Discrete
from gymnasium.vector import AutoresetMode

import gpuvec
from gpuvec.engine.backends.cache.key import frozen_environment
from gpuvec.engine.backends.cpu.threads import load_or_compile_loop
from gpuvec.engine.backends.cuda import kernels, nvrtc
from gpuvec.engine.backends.cuda.cpp.source import source_text
from gpuvec.engine.backends.cuda.launch_config import make_launch_config
from gpuvec.engine.backends.cuda.linked_functions import link_env_functions
from gpuvec.engine.layout.buffer_layout import KernelSpec, make_kernel_spec
from gpuvec.engine.layout.buffers import KernelOptions
from gpuvec.engine.layout.declared_schema import make_schema
from gpuvec.engine.layout.schema import SingleAgentSchema, default_action_dtype
from gpuvec.engine.single_agent.rollout_options import RANDOM, rollout_kernel_options
from gpuvec.learners.fused_ppo.fused_rollout import rollout_kernel
from gpuvec.learners.fused_ppo.network_shape import NetworkShape
from gpuvec.registration import registered_envs
from gpuvec.spec import SingleAgentEnv

CC = (9, 0)
CUDA_SECTIONS = (".text", ".nv.constant2")
CPU_SECTIONS = (".text", ".ltext", ".rodata", ".lrodata")
# Numbers of envs that are launched in different ways, for environments with one agent and with many agents.
SINGLE_AGENT_SIZES = (4096, 65_536)
MULTI_AGENT_SIZES = (50, 2000)


class Kernel(NamedTuple):
    """The name of a kernel, and the bytes of the sections with its instructions."""

    name: str
    code: bytes


def read_sections(elf: bytes, prefixes: tuple[str, ...]) -> bytes:
    """Returns the content of the sections of a 64-bit ELF file.

    Args:
        elf: the file.
        prefixes: of the names of the sections.
    """
    (offset,) = struct.unpack_from("<Q", elf, 40)
    size, count, names = struct.unpack_from("<HHH", elf, 58)
    headers = [struct.unpack_from("<IIQQQQ", elf, offset + size * k) for k in range(count)]
    texts = headers[names][4]
    content = b""
    for name, kind, _, _, start, length in headers:
        end = elf.index(b"\0", texts + name)
        if elf[texts + name : end].decode().startswith(prefixes) and kind == 1:  # SHT_PROGBITS
            content += elf[start : start + length]
    return content


def list_options(env: Any) -> Iterator[tuple[str, KernelOptions]]:
    """Yields (name, options) of what `env` is compiled for."""
    dtype = default_action_dtype(make_schema(env))
    for mode in AutoresetMode:
        yield mode.name.lower(), KernelOptions(mode, env.max_episode_steps, action_dtype=dtype)
    yield "validated", KernelOptions(AutoresetMode.SAME_STEP, env.max_episode_steps, validate=True, action_dtype=dtype)
    if not isinstance(env, SingleAgentEnv):
        yield "summed", KernelOptions(AutoresetMode.SAME_STEP, env.max_episode_steps, reward="sum", action_dtype=dtype)
    if env.cuda_c is not None:
        yield "cuda_c", KernelOptions(AutoresetMode.SAME_STEP, env.max_episode_steps, cuda_c=True, action_dtype=dtype)


def list_variants(name: str, env: Any) -> Iterator[tuple[str, Any]]:
    """Yields (name, environment): `env` as declared, and the games with other numbers of agents and other observations.

    Args:
        name: of the environment.
        env: the environment.
    """
    yield name, env
    if name == "TagContinuous-v0":
        large = env.params._replace(num_taggers=5, num_runners=100)
        yield f"{name}/105", dataclasses.replace(env, params=large)
        nearest = large._replace(use_full_observation=False, num_other_agents_observed=10)
        yield f"{name}/105/nearest", dataclasses.replace(env, params=nearest)
        many = nearest._replace(num_taggers=50, num_runners=950)
        yield f"{name}/1000/nearest", dataclasses.replace(env, params=many)
    if name == "TagGridWorld-v0":
        yield f"{name}/partial", dataclasses.replace(env, params=env.params._replace(use_full_observation=False))


def compile_all(only: str) -> Iterator[Kernel]:
    """Yields every kernel whose name contains `only`."""
    for name, bundled in sorted(registered_envs("gpuvec").items()):
        for variant, declared in list_variants(name, bundled):
            env = frozen_environment(declared)
            for case, options in list_options(env):
                for part, code in compile_case(env, options, f"{variant} {case}", only):
                    yield Kernel(f"{variant} {case} {part}", code)


def compile_case(env: Any, options: KernelOptions, name: str, only: str) -> Iterator[tuple[str, bytes]]:
    """Yields (part, instructions) of the kernels for one set of options.

    Args:
        env: the environment.
        options: what its kernels are compiled for.
        name: of the variant and the options.
        only: a text that the name of a kernel must contain.
    """
    spec = make_kernel_spec(env, options)
    is_single_agent = isinstance(spec.schema, SingleAgentSchema)
    text = source_text(env, options.cuda_c)
    rollout = spec.with_options(rollout_kernel_options(env, options, RANDOM)) if is_single_agent else spec
    for num_envs in SINGLE_AGENT_SIZES if is_single_agent else MULTI_AGENT_SIZES:
        launch_config = make_launch_config(spec.schema, num_envs)
        for part in ("reset", "step"):
            if only in f"{name} cuda {num_envs} {part}":
                for number, kernel in enumerate(kernels.make_kernels(spec, launch_config, part)):
                    yield f"cuda {num_envs} {part} {number}", read_sections(kernel.binary(CC).code, CUDA_SECTIONS)
        if is_single_agent and not options.validate and only in f"{name} cuda {num_envs} rollout":
            (kernel,) = kernels.make_kernels(rollout, launch_config, "rollout", RANDOM)
            yield f"cuda {num_envs} rollout", read_sections(kernel.binary(CC).code, CUDA_SECTIONS)
    if is_single_agent and isinstance(env.spaces(env.params)[1], Discrete) and only in f"{name} cuda fused":
        yield "cuda fused", compile_fused_rollout(spec)
    for part in ("reset", "step"):
        if only in f"{name} cpu {part}":
            yield f"cpu {part}", read_sections(load_or_compile_loop(part, spec, text).code, CPU_SECTIONS)
    if is_single_agent and not options.validate and only in f"{name} cpu rollout":
        yield "cpu rollout", read_sections(load_or_compile_loop("rollout", rollout, text, RANDOM).code, CPU_SECTIONS)


def compile_fused_rollout(spec: KernelSpec) -> bytes:
    """Returns the instructions of PPO's fused rollout, which is linked with the functions of an environment."""
    count, features = int(spec.env.spaces(spec.env.params)[1].n), spec.schema.num_features
    shape = NetworkShape(
        features, 32, 1, count, action_size=1, head_sizes=(count,), relu=False, has_mask=False, clip_value=False
    )
    binary = nvrtc.compile_cuda_source(rollout_kernel(shape, link_env_functions(spec, CC), 8, (0,)), CC)
    return read_sections(binary.code, CUDA_SECTIONS)


def main() -> int:
    """Prints which kernels differ; returns how many."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--save", type=Path, metavar="FILE")
    parser.add_argument("--against", type=Path, metavar="FILE")
    parser.add_argument("--only", default="", metavar="TEXT")
    arguments = parser.parse_args()
    before = {}
    if arguments.against:
        before = {name: (digest, size) for name, digest, size in map(json.loads, arguments.against.read_text().splitlines())}
    lines, different = [], 0
    for name, code in compile_all(arguments.only):
        digest = hashlib.sha256(code).hexdigest()[:16]
        lines.append(json.dumps((name, digest, len(code))))
        if before and before.get(name, ("",))[0] != digest:
            different += 1
            print(f"{name:60} {before[name][1] if name in before else 'new':>8} -> {len(code):>8} bytes", flush=True)
    if arguments.save:
        arguments.save.write_text("\n".join(lines) + "\n")
    print(f"{len(lines)} kernels of gpuvec {gpuvec.__version__}, {different} differ")
    return min(different, 100)


if __name__ == "__main__":
    sys.exit(main())
