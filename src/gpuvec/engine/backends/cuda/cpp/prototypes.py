"""The C++ types of the functions that an author may write in CUDA C++, and of the wrappers that kernels call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from gpuvec.engine.layout.declared_schema import feature_parts, metric_kinds
from gpuvec.engine.layout.schema import EnvSchema, MultiAgentSchema, SingleAgentSchema
from gpuvec.phases import AGENTS, PAIRS, WORLD, Assign, Each, Reduction
from gpuvec.spec import MultiAgentEnv, SingleAgentEnv

CPP_TYPES: dict[Any, str] = {
    np.float32: "float", np.int32: "int", np.bool_: "bool", np.uint32: "unsigned", np.int8: "signed char",
    np.uint8: "unsigned char",
}  # fmt: skip
MAX_AXES = 16  # of an index set


class Parameter(NamedTuple):
    """A parameter of the author's function, and of the wrapper with C linkage that calls it."""

    declaration: str  # in the author's function
    argument: str  # what the wrapper passes to the author's function
    wrapper_declaration: str  # in the wrapper

    @property
    def type(self) -> str:
        """The type of the parameter in the author's function."""
        return self.declaration.rpartition(" ")[0]


# The parts of an index: {key of PARAMETERS: source of its value in Python}. A set with two axes has rows and columns.
INDICES = {"i": "i", "j": "j", "pair_i": "pair[0]", "pair_j": "pair[1]", "row": "cell[0]", "column": "cell[1]"}
INDICES |= {f"index{axis}": f"cell[{axis}]" for axis in range(MAX_AXES)}
# The parts of an action that a mask allows, in a MultiDiscrete space
CHOICES = {"component": "action[0]", "value": "action[1]"}
PARAMETERS = {
    "key": Parameter("const Key& key", "*key", "const Key* key"),
    "params": Parameter("const Params& p", "*p", "const Params* p"),
    "state": Parameter("State s", "*s", "const State* s"),
    "const_state": Parameter("const State& s", "*s", "const State* s"),
    "mutable_state": Parameter("State& s", "*s", "State* s"),
    "time": Parameter("Time t", "*t", "const Time* t"),
    "action": Parameter("Action action", "*action", "const Action* action"),
} | {k: Parameter(f"int {name}", name, f"int {name}") for k in (*INDICES, *CHOICES) for name in (k.removeprefix("pair_"),)}


class Prototype(NamedTuple):
    """The type of a function that an author may write."""

    name: str
    parameters: tuple[str, ...]  # keys of PARAMETERS
    returns: str  # a C++ type
    # (type, source) of the numbers of a result `r` that has arrays as well, which are not returned to kernels
    numbers: tuple[tuple[str, str], ...] | None = None

    @property
    def declaration(self) -> str:
        """The declaration of the function in C++."""
        return f"{self.returns} {self.name}({', '.join(PARAMETERS[k].declaration for k in self.parameters)})"

    @property
    def pointer_type(self) -> str:
        """The type of a pointer to the function in C++."""
        return f"{self.returns} (*)({', '.join(PARAMETERS[k].type for k in self.parameters)})"


def index_parameters(schema: MultiAgentSchema, index_set: str) -> tuple[str, ...]:
    """Returns the parameters that are the index of an element of a set, one for each axis.

    Args:
        schema: the schema of the environment.
        index_set: the name of the set.
    """
    axes = len(schema.sets[index_set])
    if index_set == PAIRS:
        return "pair_i", "pair_j"
    return {0: (), 1: ("i",), 2: ("row", "column")}.get(axes, tuple(f"index{axis}" for axis in range(axes)))


def single_agent_prototypes(env: SingleAgentEnv, schema: EnvSchema) -> dict[Callable[..., Any], Prototype]:
    """Returns {Python function of `env`: its prototype in C++}; `schema` is that of `env`."""
    # A state with arrays exists before `reset`, which writes them in place.
    first_state = () if isinstance(schema, SingleAgentSchema) else ("state",)
    pixel_index = ("row", "column") if schema.obs.is_image else ()
    state_numbers, step_numbers = None, None
    if isinstance(schema, MultiAgentSchema):
        scalars = {k: CPP_TYPES[dtype] for k, dtype in schema.stored_scalars.items()}
        state_numbers = tuple((cpp_type, f"r.{k}") for k, cpp_type in scalars.items())
        step_numbers = (*((cpp_type, f"r.s.{k}") for k, cpp_type in scalars.items()), ("float", "r.reward"))
        step_numbers += (("bool", "r.terminated"),)
    prototypes = {
        env.reset: Prototype("reset", (*first_state, "key", "params"), "State", state_numbers),
        env.step: Prototype("step", ("state", "action", "key", "params"), "Step", step_numbers),
        env.observe: Prototype("observe", (*pixel_index, "const_state", "params"), observation_type(schema)),
    }
    if env.allowed is not None:
        prototypes[env.allowed] = Prototype("allowed", (*_choice_parameters(schema), "const_state", "params"), "bool")
    if env.metrics is not None:
        prototypes[env.metrics] = Prototype("metrics", ("const_state", "params"), f"Floats<{len(metric_kinds(env))}>")
    return prototypes


def _choice_parameters(schema: EnvSchema) -> tuple[str, ...]:
    """The parameters that are an element of an action mask."""
    return ("component", "value") if schema.action.components else ("action",)


def observation_type(schema: EnvSchema) -> str:
    """Returns the C++ type of all features of an observation, or of all channels of a pixel of an image.

    Args:
        schema: the schema of the environment.
    """
    if schema.obs.is_image:
        return f"{'Ints' if schema.obs.dtype is np.uint8 else 'Floats'}<{schema.obs.shape[0]}>"
    return f"Floats<{schema.num_features}>"


def multi_agent_prototypes(env: MultiAgentEnv, schema: MultiAgentSchema) -> dict[Callable[..., Any], Prototype]:
    """Returns {Python function of `env`: its prototype in C++, of the same name}; `schema` is that of `env`."""
    widths = {part.name: part.width for part in feature_parts(env, schema)}
    prototypes: dict[Callable[..., Any], Prototype] = {}

    def add(function: Callable[..., Any] | None, parameters: tuple[str, ...], returns: str) -> None:
        if function is not None:
            prototypes[function] = Prototype(function.__name__, parameters, returns)

    resets = env.reset if isinstance(env.reset, tuple) else (env.reset,)
    before_observations = (schema.neighbors,) if isinstance(schema.neighbors, Reduction) else ()
    for number, phase in enumerate((*resets, *env.phases, *before_observations)):
        add(*_phase_prototype(schema, phase, has_action=number >= len(resets)))
        add(*_target_prototype(schema, phase))
    add(env.reward, ("i", "const_state", "time", "params"), "float")
    add(env.terminated, ("i", "const_state", "params"), "bool")
    add(env.active, ("i", "const_state", "params"), "bool")
    add(env.allowed, ("i", *_choice_parameters(schema), "const_state", "params"), "bool")
    add(env.metrics, ("const_state", "params"), f"Floats<{len(schema.metrics)}>")
    add(schema.observation.self_features, ("i", "const_state", "time", "params"), f"Floats<{widths.get('self_features', 0)}>")
    add(schema.observation.pixel, ("i", "row", "column", "const_state", "time", "params"), observation_type(schema))
    if widths.get("other_features"):
        returns = f"Floats<{widths['other_features']}>"
        add(schema.observation.other_features, ("i", "j", "const_state", "time", "params"), returns)
    if schema.search is not None:
        add(schema.search.distance, ("i", "j", "const_state", "params"), "float")
        add(schema.search.mask, ("i", "const_state", "params"), "bool")
    return prototypes


def _phase_prototype(schema: MultiAgentSchema, phase: Any, has_action: bool) -> tuple[Callable[..., Any], tuple[str, ...], str]:
    """(the author's function of a phase, its parameters, the type of its result).

    Args:
        schema: the schema of the environment.
        phase: a function, or the result of `each`, `assign` or a reduction.
        has_action: whether functions of agents and pairs receive an action, as in a step.
    """
    if isinstance(phase, Reduction):
        index = index_parameters(schema, phase.over)
        returns = {"count": "bool", "any": "bool", "all": "bool", "argmin": "float"}.get(phase.kind)
        dtypes = {k: b.dtype for k, b in schema.array_fields.items()} | schema.scalar_fields
        return phase.function, (*index, "const_state", "params"), returns or CPP_TYPES[dtypes[phase.field]]
    if isinstance(phase, Assign):
        types = [CPP_TYPES[schema.scalar_fields[field]] for field in phase.fields]
        returns = types[0] if len(types) == 1 else f"Tuple<{', '.join(types)}>"
        return phase.function, ("const_state", "key", "params"), returns
    index_set, function = (phase.index_set, phase.function) if isinstance(phase, Each) else (AGENTS, phase)
    action = ("action",) if has_action and index_set in (AGENTS, PAIRS) else ()
    index = () if index_set == WORLD else index_parameters(schema, index_set)
    return function, (*index, "mutable_state", *action, "key", "params"), "void"


def _target_prototype(schema: MultiAgentSchema, phase: Any) -> tuple[Callable[..., Any] | None, tuple[str, ...], str]:
    """(the function `at` of a reduction, its parameters, the type of its result); None for any other phase."""
    if not isinstance(phase, Reduction) or phase.at is None:
        return None, (), ""
    num_axes = len(schema.sets[schema.field_sets[phase.field]])
    parameters = (*index_parameters(schema, phase.over), "const_state", "params")
    return phase.at, parameters, "int" if num_axes == 1 else f"Ints<{num_axes}>"
