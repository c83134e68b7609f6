"""The C++ types of the functions that an author may write in CUDA C++, and of the wrappers that kernels call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from gpuvec.engine.layout.schema import MultiAgentSchema, SingleAgentSchema, feature_widths
from gpuvec.phases import Reduction
from gpuvec.spec import MultiAgentEnv, NearestNeighbors, SingleAgentEnv


class Parameter(NamedTuple):
    """A parameter of the author's function, and of the wrapper with C linkage that calls it."""

    declaration: str  # in the author's function
    argument: str  # what the wrapper passes to the author's function
    wrapper_declaration: str  # in the wrapper

    @property
    def type(self) -> str:
        """The type of the parameter in the author's function."""
        return self.declaration.rpartition(" ")[0]


PARAMETERS = {
    "key": Parameter("const Key& key", "*key", "const Key* key"),
    "params": Parameter("const Params& p", "*p", "const Params* p"),
    "state": Parameter("State s", "*s", "const State* s"),
    "const_state": Parameter("const State& s", "*s", "const State* s"),
    "mutable_state": Parameter("State& s", "*s", "State* s"),
    "time": Parameter("Time t", "*t", "const Time* t"),
    "action": Parameter("Action action", "*action", "const Action* action"),
    "i": Parameter("int i", "i", "int i"),
    "j": Parameter("int j", "j", "int j"),
}


class Prototype(NamedTuple):
    """The type of a function that an author may write."""

    name: str
    parameters: tuple[str, ...]  # keys of PARAMETERS
    returns: str  # a C++ type

    @property
    def declaration(self) -> str:
        """The declaration of the function in C++."""
        return f"{self.returns} {self.name}({', '.join(PARAMETERS[k].declaration for k in self.parameters)})"

    @property
    def pointer_type(self) -> str:
        """The type of a pointer to the function in C++."""
        return f"{self.returns} (*)({', '.join(PARAMETERS[k].type for k in self.parameters)})"


def single_agent_prototypes(env: SingleAgentEnv, schema: SingleAgentSchema) -> dict[Callable[..., Any], Prototype]:
    """Returns {Python function of `env`: its prototype in C++}; `schema` is that of `env`."""
    return {
        env.reset: Prototype("reset", ("key", "params"), "State"),
        env.step: Prototype("step", ("state", "action", "key", "params"), "Step"),
        env.observe: Prototype("observe", ("const_state", "params"), f"Floats<{schema.num_features}>"),
    }


def multi_agent_prototypes(env: MultiAgentEnv, schema: MultiAgentSchema) -> dict[Callable[..., Any], Prototype]:
    """Returns {Python function of `env`: its prototype in C++, of the same name}; `schema` is that of `env`."""
    observation, neighbors = schema.observation, schema.observation.neighbors
    features_per_neighbor, num_self_features = feature_widths(env, schema)
    prototypes: dict[Callable[..., Any], Prototype] = {}

    def add(function: Callable[..., Any] | None, parameters: tuple[str, ...], returns: str) -> None:
        if function is not None:
            prototypes[function] = Prototype(function.__name__, parameters, returns)

    for phase in env.reset if isinstance(env.reset, tuple) else (env.reset,):
        add(phase, ("i", "mutable_state", "key", "params"), "void")
    for phase in [*env.phases, *([neighbors] if isinstance(neighbors, Reduction) else [])]:
        if isinstance(phase, Reduction):
            add(phase.function, ("i", "const_state", "params"), "float" if phase.kind == "argmin" else "bool")
        else:
            add(phase, ("i", "mutable_state", "action", "key", "params"), "void")
    add(env.reward, ("i", "const_state", "time", "params"), "float")
    add(env.terminated, ("i", "const_state", "params"), "bool")
    add(env.active, ("i", "const_state", "params"), "bool")
    add(observation.self_features, ("i", "const_state", "time", "params"), f"Floats<{num_self_features}>")
    if features_per_neighbor:
        add(observation.other_features, ("i", "j", "const_state", "time", "params"), f"Floats<{features_per_neighbor}>")
    if isinstance(neighbors, NearestNeighbors):
        add(neighbors.distance, ("i", "j", "const_state", "params"), "float")
        add(neighbors.mask, ("i", "const_state", "params"), "bool")
    return prototypes
