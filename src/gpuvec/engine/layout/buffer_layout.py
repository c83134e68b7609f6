"""The buffers of a vector environment, from its schema and the options of its kernels."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from gpuvec.engine.layout.buffers import SCALARS, Buffer, KernelOptions, Layout
from gpuvec.engine.layout.declared_schema import CRITIC_OUTPUT, make_critic_schema, make_schema
from gpuvec.engine.layout.schema import PACKED_BUFFERS, EnvSchema, MultiAgentSchema, SingleAgentSchema
from gpuvec.spec import Environment

STEP_OUTPUTS = {"reward": Buffer(np.float32), "terminated": Buffer(np.bool_), "truncated": Buffer(np.bool_)}


@dataclass(frozen=True)
class KernelSpec:
    """What kernels are compiled from. Two are equal if their options are, and the environment is the same object.

    Attributes:
        env: the environment.
        options: what the kernels are compiled for.
        schema: what follows from the declaration of `env`.
        split: whether a step is two or three kernels, the last of which writes the observations.
    """

    env: Any
    options: KernelOptions
    schema: EnvSchema = field(compare=False)
    split: bool = False

    @cached_property
    def layout(self) -> Layout:
        """The buffers of the kernels."""
        if isinstance(self.schema, SingleAgentSchema):
            num_floats = len(self.schema.float_fields)
            persistent = {"state": Buffer(np.float32, (num_floats,), wide=True)} if num_floats else {}
            persistent |= {f"state_{k}": Buffer(dtype) for k, dtype in self.schema.non_float_fields.items()}
            outputs, scratch = {"obs": Buffer(np.float32, (self.schema.num_features,), wide=True), **STEP_OUTPUTS}, {}
        else:
            persistent, scratch, outputs = _multi_agent_buffers(self.schema, self.options, self.split)
        parts = self.schema.parts if isinstance(self.schema, MultiAgentSchema) else (self.schema,)
        suffixes = [part.suffix if isinstance(part, MultiAgentSchema) else "" for part in parts]
        critic = make_critic_schema(self.env, self.schema)
        if critic is not None:
            shape, is_wide = (*self.schema.agents_shape, critic.num_features), critic.has_only_self_features
            outputs = outputs | {CRITIC_OUTPUT: Buffer(np.float32, shape, wide=is_wide)}
        if self.options.same_step:
            if critic is not None:  # The last outputs are the final observations and their mask.
                outputs = outputs | {f"final_{CRITIC_OUTPUT}": outputs[CRITIC_OUTPUT]}
            final = {f"final_obs{suffix}": outputs[f"obs{suffix}"] for suffix in suffixes}
            outputs = outputs | final | {"final_mask": Buffer(np.bool_)}
        bookkeeping = {f"param_{k}": Buffer(SCALARS[type(getattr(self.env.params, k))]) for k in self.options.per_env} | {
            "start": Buffer(np.uint32),
            "clock": Buffer(np.uint32, rows="block"),
            "rng_streams": Buffer(np.uint32, (4,)),  # seed, its high word, row, origin
            "shared": Buffer(np.uint32, (4,), rows="batch"),  # whether it is valid, seed, its high word, origin
            "faults": Buffer(np.uint64, (2,), rows="batch"),  # first invalid action, first step of an env that needs a reset
        }
        pool = {f"pool_{name}": self.schema.fields[name]._replace(rows="pool") for name in self.options.pool}
        # The actions of the roles but the first follow the inputs of a reset, before the outputs.
        actions = (Buffer(part.action.dtype, (*part.agents_shape, *part.action.shape)) for part in parts)
        first_action, *others = zip((f"action{suffix}" for suffix in suffixes), actions, strict=True)
        reset_inputs = {"mask": Buffer(np.bool_), "seeds": Buffer(np.uint32, (3,))}  # whether there is a seed, seed, high word
        return Layout(
            persistent=persistent | bookkeeping,
            scratch=scratch,
            pool=pool | {"pool_size": Buffer(np.int32, rows="batch")} if pool else {},
            inputs=dict((first_action, *reset_inputs.items(), *others)),
            outputs=outputs,
        )

    @property
    def batch(self) -> Any:
        """The NamedTuple class of a kernel's first argument."""
        return self.layout.batch

    def with_options(self, options: KernelOptions) -> KernelSpec:
        """Returns what the kernels of the same environment are compiled from for other options."""
        return replace(self, options=options)


def make_kernel_spec(env: Environment, options: KernelOptions, split: bool = False) -> KernelSpec:
    """Derives the schema of `env`, for kernels with these `options`, which are one kernel for a step or are `split`.

    Raises:
        AuthoringError: as `make_schema`.
    """
    return KernelSpec(env, options, make_schema(env), split)


def _multi_agent_buffers(schema: MultiAgentSchema, options: KernelOptions, split: bool) -> tuple[dict[str, Buffer], ...]:
    """Lists the buffers of the state, those that one kernel writes for the next, and those of a step's outputs."""
    shape, dtypes = schema.agents_shape, {name: dtype for dtype, name in PACKED_BUFFERS.items()}
    packed_buffers = {name: Buffer(dtypes[name], (len(fields), *shape)) for name, fields in schema.packed_fields.items()}
    packed = [name for fields in schema.packed_fields.values() for name in fields]
    separate_fields = {k: b for k, b in schema.array_fields.items() if k not in packed}
    scalar_buffers = {k: Buffer(dtype) for k, dtype in schema.stored_scalars.items()}
    persistent = packed_buffers | {f"state_{k}": b for k, b in separate_fields.items() if k not in schema.search_fields}
    persistent |= {f"state_{k}": b for k, b in scalar_buffers.items()}
    # The number of steps of the last episode, until the env is reset.
    persistent["last_time"] = Buffer(np.int32)
    scratch = {f"state_{k}": schema.array_fields[k] for k in schema.search_fields}
    if options.same_step and split:
        final = packed_buffers | {f"state_{k}": b for k, b in (separate_fields | scalar_buffers).items()}
        scratch |= {f"final_{name}": buffer for name, buffer in final.items()}
    if options.reward != "agents":
        scratch["agent_reward"] = Buffer(np.float32, shape)
    outputs = {
        f"obs{part.suffix}": Buffer(
            part.obs.dtype,
            (*part.agents_shape, *part.obs.shape),
            wide=part.has_only_self_features and not part.obs.is_image,
            pixels_per_word=part.obs.pixels_per_word,
        )
        for part in schema.parts
    }
    outputs |= STEP_OUTPUTS | {"reward": Buffer(np.float32, shape if options.reward == "agents" else ())}
    agent_flags = dict.fromkeys(("agent_mask", "agent_terminated"), Buffer(np.bool_, shape))
    if schema.metrics:
        persistent["metric_state"] = Buffer(np.float32, (len(schema.metrics),))
        outputs |= {f"metric_{name}": Buffer(np.float32) for name in schema.metrics}
    if schema.has_turns:
        scratch["agent_active"] = Buffer(np.bool_, shape)
        outputs |= {"to_move": Buffer(np.int32)}
    outputs |= {
        f"action_mask{part.suffix}": Buffer(np.bool_, (*part.agents_shape, part.mask_size))
        for part in schema.parts
        if part.mask_size
    }
    if schema.is_single_agent:  # The kernels write them, and they are no results.
        scratch |= agent_flags
    else:
        outputs |= agent_flags
    return persistent, scratch, outputs
