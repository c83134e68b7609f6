"""Writes the perceptron of a trained policy as one header in C99, which needs <math.h> alone and allocates no memory."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import gymnasium as gym
import numpy as np
from torch import nn

from gpuvec.errors import ExportError
from gpuvec.learners.networks.actor_critic import FORBIDDEN, ActorCritic
from gpuvec.learners.networks.deterministic import DeterministicActorCritic
from gpuvec.learners.networks.linear import Linear, LinearReLU
from gpuvec.learners.networks.mlp import SeparateMLP, SharedMLP
from gpuvec.learners.networks.normalizer import LIMIT, MIN_STD
from gpuvec.learners.policy_files.policy_file import num_features, num_outputs

if TYPE_CHECKING:
    from gpuvec.learners.policy_files.export import PolicyProgram

ACTIVATIONS = {nn.Tanh: "t", nn.ReLU: "r", nn.Identity: "i"}
PREFIX = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
LAYER = """\
/* y = activation(weight x + bias), with weights in rows; tanh, relu and identity are 't', 'r' and 'i'. */
static inline void {p}_layer(const float *weight, const float *bias, int inputs, int outputs, char activation, const float *x,
                             float *y) {{
    for (int i = 0; i < outputs; i++) {{
        float sum = bias[i];
        for (int j = 0; j < inputs; j++) sum += weight[i * inputs + j] * x[j];
        y[i] = activation == 't' ? tanhf(sum) : activation == 'r' && sum < 0.0f ? 0.0f : sum;
    }}
}}
"""
CHOICE = """\
/* The index of the most probable of `size` choices. */
static inline int {p}_best(const float *logits, int size) {{
    int best = 0;
    for (int k = 1; k < size; k++)
        if (logits[k] > logits[best]) best = k;
    return best;
}}

/* The probabilities of `size` choices in place of their logits. */
static inline void {p}_softmax(float *logits, int size) {{
    const float largest = logits[{p}_best(logits, size)];
    float sum = 0.0f;
    for (int k = 0; k < size; k++) sum += logits[k] = expf(logits[k] - largest);
    for (int k = 0; k < size; k++) logits[k] /= sum;
}}
"""


class Layer(NamedTuple):
    """A linear layer with its activation."""

    weight: Any  # (outputs, inputs)
    bias: Any  # (outputs,)
    activation: str  # "t", "r" or "i", as in `LAYER`


def c_prefix(stem: str) -> str:
    """Returns how the names in a header begin, so that a program can include several.

    Args:
        stem: the name of the file without its suffix.

    Raises:
        ValueError: it cannot be made a name of C.
    """
    prefix = re.sub(r"[-. ]", "_", stem)
    if not PREFIX.fullmatch(prefix):
        raise ValueError(
            "the names in a header begin with the name of its file, which must have letters, digits and _, a letter first: got "
            f"{stem!r}. Give a name such as cartpole.h."
        )
    return prefix


def to_c_header(program: PolicyProgram, prefix: str, description: Mapping[str, Any]) -> bytes:
    """Returns the header of a policy.

    Args:
        program: the policy.
        prefix: how its names begin, see `c_prefix`.
        description: what a comment says of the policy, the result of `describe_policies`.

    Raises:
        ExportError: its network has other parts than linear layers with tanh or relu, or takes images.
    """
    layers, is_deterministic = _layers(program), isinstance(program.network, DeterministicActorCritic)
    features, outputs = num_features(program.spaces.observation), num_outputs(program.spaces.action)
    p, parts = prefix, [LAYER.format(p=prefix)]
    for k, (weight, bias, _) in enumerate(layers):
        parts += [_array(f"{p}_weight{k}", weight), _array(f"{p}_bias{k}", bias)]
    sizes = [len(layer.bias) for layer in layers]
    body = [f"    float x[{max(features, *sizes)}], y[{max(sizes)}];"]
    body += _input_lines(program, parts, p, features)
    for k, (weight, _, activation) in enumerate(layers):
        rows, columns = weight.shape
        target = "outputs" if k == len(layers) - 1 else "y"
        body.append(f"    {p}_layer({p}_weight{k}, {p}_bias{k}, {columns}, {rows}, '{activation}', x, {target});")
        if target == "y":
            body.append(f"    for (int i = 0; i < {rows}; i++) x[i] = y[i];")
    if len(layers) == 1:
        body[0] = f"    float x[{features}];"
    what = "the logits" if not isinstance(program.spaces.action, gym.spaces.Box) else "the means"
    if is_deterministic:
        what = "the action before tanh"
    parts.append(
        f"/* Writes the outputs of the network, {what}, for the observation of an agent. */\n"
        f"static inline void {p}_outputs(const float obs[{features}], float outputs[{outputs}]) {{\n"
        + "\n".join(body)
        + "\n}\n"
    )
    parts += _box_parts(program, p) if isinstance(program.spaces.action, gym.spaces.Box) else _discrete_parts(program, p)
    text = json.dumps(description).replace("*/", "*\\u002f").replace("/*", "\\u002f*")
    guard = f"{p.upper()}_POLICY_H"
    begin = f"#ifndef {guard}\n#define {guard}\n\n#include <math.h>\n"
    defines = f"#define {p.upper()}_FEATURES {features}\n#define {p.upper()}_OUTPUTS {outputs}\n"
    head = f"/* A policy trained by gpuvec, as C99. Compile with -lm.\n{text}\n*/\n{begin}"
    return "\n".join([head, defines, *parts, f"#endif /* {guard} */\n"]).encode("ascii", "backslashreplace")


def _layers(program: PolicyProgram) -> list[Layer]:
    """The layers of a policy, without those of its value function."""
    network, space = program.network, program.spaces.observation
    body, layers = getattr(network, "body", None), list[Layer]()
    if type(network) is DeterministicActorCritic:
        modules = flat_modules(network.actor)
    elif type(network) is ActorCritic and type(body) is SeparateMLP:
        modules = flat_modules(body.actor)
    elif type(network) is ActorCritic and type(body) is SharedMLP:
        modules = [*flat_modules(body.trunk), body.head]
    else:
        modules = [network if body is None else body]
    unknown = None if space.dtype == np.float32 and len(space.shape or (1,)) == 1 else modules[0]
    for module in modules:
        if type(module) in (nn.Linear, Linear, LinearReLU) and module.bias is not None:
            weight, bias = module.weight.numpy(force=True), module.bias.numpy(force=True)
            layers.append(Layer(weight, bias, "r" if type(module) is LinearReLU else "i"))
        elif type(module) in ACTIVATIONS and layers and layers[-1].activation == "i":
            layers[-1] = layers[-1]._replace(activation=ACTIVATIONS[type(module)])
        else:
            unknown = module
    if unknown is not None or not layers:
        raise ExportError(
            "the format c is for linear layers with tanh or relu that take observations of shape (D,), and this policy has the "
            f"module {type(unknown or network).__name__} for {space}: export it by --format onnx."
        )
    outputs = num_outputs(program.spaces.action)  # a shared last layer has the value and zeros behind them
    return [*layers[:-1], Layer(layers[-1].weight[:outputs], layers[-1].bias[:outputs], layers[-1].activation)]


def flat_modules(module: Any) -> list[Any]:
    """Returns the modules that a sequence runs one after the other, or the module itself if it is no sequence.

    Args:
        module: the module.
    """
    return [part for each in module for part in flat_modules(each)] if type(module) is nn.Sequential else [module]


def _input_lines(program: PolicyProgram, parts: list[str], p: str, features: int) -> list[str]:
    """Statements that write the input of the first layer to `x`; arrays that they need are appended to `parts`."""
    normalizer = program.network.normalizer
    if normalizer is None:
        return [f"    for (int i = 0; i < {features}; i++) x[i] = obs[i];"]
    parts += [
        _array(f"{p}_mean", normalizer.mean.float().numpy()),
        _array(f"{p}_std", normalizer.var.sqrt().clamp(min=MIN_STD).float().numpy()),
    ]
    limit = _number(LIMIT)
    return [
        f"    for (int i = 0; i < {features}; i++) {{",
        f"        const float z = (obs[i] - {p}_mean[i]) / {p}_std[i];",
        f"        x[i] = z < -{limit} ? -{limit} : z > {limit} ? {limit} : z;",
        "    }",
    ]


def _box_parts(program: PolicyProgram, p: str) -> list[str]:
    """The function that returns a continuous action."""
    network, features, count = program.network, num_features(program.spaces.observation), num_outputs(program.spaces.action)
    if isinstance(network, DeterministicActorCritic):
        arrays = {"centre": network.centre, "half_range": network.half_range}
        line = f"        action[i] = {p}_centre[i] + {p}_half_range[i] * tanhf(action[i]);"
    else:
        arrays = {"low": network.low, "high": network.high}
        clipped = f"action[i] < {p}_low[i] ? {p}_low[i] : action[i] > {p}_high[i] ? {p}_high[i] : action[i]"
        line = f"        action[i] = {clipped};"
    function = (
        "/* Writes the most probable action, as the environment takes it. */\n"
        f"static inline void {p}_act(const float obs[{features}], float action[{count}]) {{\n    {p}_outputs(obs, action);\n"
        f"    for (int i = 0; i < {count}; i++)\n{line}\n}}\n"
    )
    return [*(_array(f"{p}_{name}", tensor.numpy(force=True)) for name, tensor in arrays.items()), function]


def _discrete_parts(program: PolicyProgram, p: str) -> list[str]:
    """The functions that return discrete actions, of one component or of several, and their probabilities."""
    space, features, count = program.spaces.action, num_features(program.spaces.observation), num_outputs(program.spaces.action)
    is_single = isinstance(space, gym.spaces.Discrete)
    sizes = [int(space.n)] if is_single else [int(n) for n in space.nvec]  # type: ignore[attr-defined]  # a MultiDiscrete
    starts = [int(x) for x in np.atleast_1d(space.start)]  # type: ignore[attr-defined]  # both have it
    mask = f", const unsigned char action_mask[{count}]" if program.spaces.has_masks else ""
    logits = [f"    {p}_outputs(obs, {{target}});"]
    if mask:
        logits += [
            f"    for (int i = 0; i < {count}; i++)",
            f"        if (!action_mask[i]) {{target}}[i] = {_number(FORBIDDEN)};",
        ]
    head = "\n".join(logits)
    offsets = [sum(sizes[:k]) for k in range(len(sizes))]
    choices = [f"{start} + {p}_best(logits + {o}, {n})" for start, o, n in zip(starts, offsets, sizes, strict=True)]
    if is_single:
        signature, lines = f"int {p}_act(const float obs[{features}]{mask})", [f"    return {choices[0]};"]
        what = "Returns the most probable action"
    else:
        signature = f"void {p}_act(const float obs[{features}]{mask}, int action[{len(sizes)}])"
        lines = [f"    action[{k}] = {choice};" for k, choice in enumerate(choices)]
        what = f"Writes the most probable action, of {len(sizes)} components"
    act = [f"static inline {signature} {{", f"    float logits[{count}];", head.format(target="logits"), *lines, "}\n"]
    softmax = [f"    {p}_softmax(probabilities + {o}, {n});" for o, n in zip(offsets, sizes, strict=True)]
    probabilities = [
        f"static inline void {p}_probabilities(const float obs[{features}]{mask}, float probabilities[{count}]) {{",
        head.format(target="probabilities"), *softmax, "}\n",
    ]  # fmt: skip
    masked = " Forbidden choices have 0 in action_mask." if mask else ""
    return [
        CHOICE.format(p=p),
        f"/* {what}, as the environment takes it.{masked} */\n" + "\n".join(act),
        f"/* Writes the probabilities of all choices, of one component after the other.{masked} */\n"
        + "\n".join(probabilities),
    ]


def _array(name: str, values: Any) -> str:
    """A constant array of float; the elements of a matrix are in rows."""
    flat = np.ravel(values)
    lines = [", ".join(map(_number, flat[k : k + 8])) for k in range(0, len(flat), 8)]
    return f"static const float {name}[{len(flat)}] = {{\n    " + ",\n    ".join(lines) + "};\n"


def _number(value: Any) -> str:
    """A constant of C that is read as the same float32."""
    number = np.float32(value)
    if np.isinf(number):
        return "INFINITY" if number > 0 else "-INFINITY"
    text = f"{number:.9g}"
    return f"{text}f" if set(text) & set(".e") else f"{text}.0f"
