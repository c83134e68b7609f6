"""What an author's file in CUDA C++ is compiled with: the environment's types before it, and after it what kernels call.

Types are named as in Python: `State`, `Params`, `Key`, `Time`, and `Action`. A state of one agent is a structure of numbers;
one of many agents has an address for each field with elements. Parameters that are the same for all envs are constants.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from gpuvec.engine.layout.buffers import SCALARS, Buffer
from gpuvec.engine.layout.params import kernel_params
from gpuvec.engine.layout.schema import MultiAgentSchema, SingleAgentSchema
from gpuvec.engine.layout.space_layout import ActionLayout
from gpuvec.spec import Environment

SHARED = Path(__file__).with_name("authoring.cuh")
TYPES: dict[Any, str] = {np.float32: "float", np.int32: "int", np.bool_: "bool", np.uint32: "unsigned"}
PARAMETERS = {  # {kind: (in the author's prototype, in the call, as it is handed over by kernels)}
    "key": ("const Key& key", "*key", "const Key* key"),
    "params": ("const Params& p", "*p", "const Params* p"),
    "state": ("State s", "*s", "const State* s"),
    "shown": ("const State& s", "*s", "const State* s"),
    "written": ("State& s", "*s", "State* s"),
    "time": ("Time t", "*t", "const Time* t"),
    "action": ("Action action", "*action", "const Action* action"),
    "i": ("int i", "i", "int i"),
    "j": ("int j", "j", "int j"),
}
SAME = "template <typename A, typename B> struct Same { static constexpr bool value = false; };\n"
SAME += "template <typename A> struct Same<A, A> { static constexpr bool value = true; };\n"


class Prototype(NamedTuple):
    """A function that an author may write."""

    name: str
    parameters: tuple[str, ...]  # kinds, as in PARAMETERS
    gives: str  # a type of C++

    @property
    def text(self) -> str:
        """As an author writes it."""
        return f"{self.gives} {self.name}({', '.join(PARAMETERS[kind][0] for kind in self.parameters)})"


def header(env: Environment, s: SingleAgentSchema | MultiAgentSchema, running: Iterable[str]) -> str:
    """What stands before the file; parameters in `running` have their values at run time."""
    sizes = f"FEATURES = {s.num_features}" + (
        f", AGENTS = {s.agents_shape[0]}, SLOTS = {s.observation.max_neighbors}" if isinstance(s, MultiAgentSchema) else ""
    )
    lines = [SHARED.read_text(), f"[[maybe_unused]] constexpr int {sizes};", f"using Action = {action_type(s.action)};"]
    if isinstance(s, MultiAgentSchema):
        fields = [
            f"{pointer(k, s.array_fields[k]) if k in s.array_fields else f'{TYPES[s.scalar_fields[k]]} {k}'};"
            for k in env.state._fields
        ]
        lines.append(f"struct State {{ {' '.join(fields)} }};")
    else:
        lines.append(structure("State", {k: TYPES[s.non_float_fields.get(k, np.float32)] for k in env.state._fields}))
        lines.append(structure("Step", {"s": "State", "reward": "float", "terminated": "bool"}))
    members, p = [], kernel_params(env)
    for name, value in zip(p._fields, p, strict=True):
        if isinstance(value, np.ndarray):
            members.append(f"const {TYPES[value.dtype.type]}* {name};")
        elif name in running:
            members.append(f"{TYPES[SCALARS[type(getattr(env.params, name))]]} {name};")
        else:
            members.append(f"static constexpr {literal(name, value)};")
    lines.append(f"struct Params {{ {' '.join(members)} }};")
    return "\n".join(lines) + "\n"


def structure(name: str, members: Mapping[str, str]) -> str:
    """The declaration of a structure, {member: type}, that is made of all its members or not at all.

    Without a constructor C++ would accept too few of them, and a variable whose members have no value.
    """
    fields = " ".join(f"{kind} {member};" for member, kind in members.items())
    parameters = ", ".join(f"{kind} {member}" for member, kind in members.items())
    initialisers = ", ".join(f"{member}({member})" for member in members)
    return f"struct {name} {{ {fields} __device__ {name}({parameters}) : {initialisers} {{}} }};"


def action_type(actions: ActionLayout) -> str:
    """What an action is to an author."""
    if not actions.components:
        return "int" if actions.discrete else "float"
    return f"{'Ints' if actions.discrete else 'Floats'}<{actions.components}>"


def pointer(name: str, field: Buffer) -> str:
    """The declaration of a field with elements for each agent."""
    kind = TYPES[field.dtype]
    return f"{kind}* {name}" if len(field.shape) == 1 else f"{kind} (*{name})[{field.shape[1]}]"


def literal(name: str, value: Any) -> str:
    """A constant with its value, exactly, which is finite."""
    if isinstance(value, bool):
        return f"bool {name} = {str(value).lower()}"
    if isinstance(value, np.integer):
        return f"int {name} = {int(value)}" if value > np.iinfo(np.int32).min else f"int {name} = {int(value) + 1} - 1"
    return f"float {name} = {float(value).hex()}f"


def calls(file: Path, found: Mapping[str, tuple[Prototype, int]]) -> str:
    """What stands behind the file: for each function, {what kernels call it: (it, the line of its definition)}, a look at its
    type, and a function in C that calls it.
    """
    lines = [SAME]
    for f, line in found.values():
        types = ", ".join(PARAMETERS[kind][0].rpartition(" ")[0] for kind in f.parameters)
        lines.append(f'#line {line} "{file}"')
        lines.append(f'static_assert(Same<decltype(&{f.name}), {f.gives} (*)({types})>::value, "{f.name} is to be: {f.text}");')
    lines.append('#line 1 "what kernels call"')
    for symbol, (f, _) in found.items():
        given = [PARAMETERS[kind] for kind in f.parameters]
        # A bool would be a byte in memory, which no register of a GPU is.
        out = [] if f.gives == "void" else [f"{'int' if f.gives == 'bool' else f.gives}* out"]
        sure = "".join(f"__builtin_assume({kind} >= 0); " for kind in f.parameters if kind in ("i", "j"))
        result = "" if f.gives == "void" else "*out = "
        lines.append(f'extern "C" __device__ void {symbol}({", ".join([*(g[2] for g in given), *out])}) {{')
        lines.append(f"    {sure}{result}{f.name}({', '.join(g[1] for g in given)});\n}}")
    return "\n".join(lines) + "\n"
