"""The gate for environments, a user's own included: `check_env` passes, or says what is wrong, where, and what to do.

Nothing in it needs a GPU. With NUMBA_ENABLE_CUDASIM=1 set before Python starts it also runs the CUDA kernels, in Numba's
simulator; without, it compiles them to machine code where NVIDIA's compiler libraries are installed.
"""

from __future__ import annotations

import importlib
import inspect
import linecache
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FunctionType
from typing import Any, NamedTuple, get_type_hints
from unittest import mock

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode
from numba import typeof, types
from numba.core import ir
from numba.core.errors import NumbaError, UnsupportedBytecodeError

from gpuvec import random
from gpuvec.engine import cuda
from gpuvec.engine.batch import SCALARS, Variant, layout, signature
from gpuvec.engine.jit import constants, device
from gpuvec.errors import AuthoringError
from gpuvec.random import Key
from gpuvec.registration import load_env
from gpuvec.spec import Single
from gpuvec.vector.env import VectorEnv
from gpuvec.vector.parameters import apply

TOLERANCE = 1e-5  # between plain Python, which computes in float64, and a compiled step; relative for values above 1
REFUSALS = (NumbaError, UnsupportedBytecodeError, NotImplementedError, TypeError)  # what compiling raises
DIFFERENT = 0.01  # the share of steps that may differ more: a comparison near its threshold, an angle near its wrap


class Check(NamedTuple):
    """One thing that was looked at."""

    name: str
    ran: bool
    detail: str  # what was found, or what it takes to run this check


def check_env(env: Single | str, num_envs: int = 33, steps: int = 64, seed: int = 0, **params: Any) -> list[Check]:
    """Checks an environment: its types, draws, spaces and seeds, and that it does the same wherever it runs.

    Args:
        env: the environment, its place as "module:NAME", or its id.
        num_envs: E, the rows that are played with random actions.
        steps: T, the steps that are played; episodes are truncated so that each row is reset several times.
        seed: of the rows and of the actions.
        params: parameters of the environment, other than its defaults.

    Returns:
        What was checked, and which checks could not run here and why.

    Raises:
        AuthoringError: the first fault, with its place and the remedy.
        ValueError: `num_envs` or `steps` below 1.
    """
    if steps < 1:
        raise ValueError(f"steps must be at least 1, got {steps!r}.")
    env = _resolve(env, params)
    checks = [Check("types", True, check_types(env)), Check("draws", True, _check_draws(env))]
    actions = _actions(env, steps, 2 * num_envs, seed)
    run, again = _play(env, num_envs, actions, (seed, seed))
    checks += [Check("spaces", True, _check_spaces(env, run)), Check("plain Python", True, _check_plain(env, run, seed))]
    _same(env, run, again, f"two runs with seed {seed}")
    _same(env, run, _play(env, 2 * num_envs, actions, (seed,))[0], f"runs of {num_envs} and of {2 * num_envs} environments")
    checks.append(Check("seeds", True, "a seed repeats its run, and no row depends on how many there are"))
    if cuda.SIMULATED:
        _same(env, run, _play(env, num_envs, actions, (seed,), "simulator")[0], "the CPU and the CUDA simulator")
    todo = "set NUMBA_ENABLE_CUDASIM=1 before Python starts, in a process of its own"
    checks.append(Check("simulator", cuda.SIMULATED, "equals the CPU bit for bit" if cuda.SIMULATED else todo))
    return [*checks, _check_compiles(env)]


def _resolve(env: Single | str, params: dict[str, Any]) -> Single:
    if isinstance(env, str) and not re.fullmatch(r"[\w.]+:\w+", env):  # an id has a version or a namespace
        kwargs = gym.spec(env).kwargs
        if "env" not in kwargs:
            raise AuthoringError(f"{env!r} is no gpuvec environment; register one with gpuvec.register(id, env).")
        env = load_env(kwargs["env"])
        params = {k: v for k, v in kwargs.items() if k in env.params._fields} | params
    return apply(load_env(env), params, (), 1)[0]


# What is drawn


def _check_draws(env: Single) -> str:
    """Runs `reset` and `step` as plain Python, and listens to the draw numbers that they use."""
    action = _action(_actions(env, 1, 1, 0)[0, 0])
    start = _plainly(env.reset, Key(0, 0, 0, 0, 0), env.params)
    found = {}
    for function, before in ((env.reset, ()), (env.step, (start, action))):
        numbers: list[int] = []

        def heard(key: Key, draw: int, numbers: list[int] = numbers, word: Callable[..., int] = random.word) -> int:
            numbers.append(draw)
            return word(key, draw)

        with mock.patch.object(random, "word", heard):
            _plainly(function, *before, Key(0, 0, 0, 0, 1), env.params)
        twice = [draw for draw, times in Counter(numbers).items() if times > 1]
        if twice:
            what = f"draw number {twice[0]} is used twice and gives the same twice; give each draw its own, normal() two"
            raise fault(function, what)
        found[function.__name__] = len(numbers)
    if found[env.reset.__name__] and all(_plainly(env.reset, Key(0, 0, row, 0, 0), env.params) == start for row in range(8)):
        raise fault(env.reset, "all rows begin alike although it draws numbers; draw with the key that it is given")
    return ", ".join(f"{name} draws {count} numbers" for name, count in found.items())


# What is played


class Run(NamedTuple):
    """T steps of E rows."""

    actions: Any  # (T, E) or (T, E, K)
    obs: list[Any]  # T + 1 of (E, D)
    states: list[dict[str, Any]]  # T + 1 of {field: (E,)}
    reward: list[Any]  # T of (E,), as are the flags
    terminated: list[Any]
    truncated: list[Any]


def _actions(env: Single, steps: int, rows: int, seed: int) -> Any:
    space = gym.vector.utils.batch_space(env.spaces(env.params)[1], rows)
    space.seed(seed)
    return np.stack([space.sample() for _ in range(steps)])


def _action(values: Any) -> Any:
    """One row's action as an author gets it."""
    return tuple(values.tolist()) if values.ndim else values.item()


def _play(env: Single, num_envs: int, actions: Any, seeds: tuple[int, ...], device: str = "cpu") -> list[Run]:
    """A run for each seed, with short episodes."""
    limit = max(2, len(actions) // 4)
    runs = []
    try:
        rows = VectorEnv(env, num_envs, device=device, output="numpy", max_episode_steps=limit)
        for seed in seeds:
            run = Run(actions[:, :num_envs], [rows.reset(seed=seed)[0]], [rows.get_state()], [], [], [])
            for action in run.actions:
                obs, reward, terminated, truncated, _ = rows.step(action)
                for kept, new in zip(run[1:], (obs, rows.get_state(), reward, terminated, truncated), strict=True):
                    kept.append(new)
            runs.append(run)
    except NumbaError as error:
        raise explained(env.step, error) from error
    rows.close()
    return runs


def _check_spaces(env: Single, run: Run) -> str:
    space = env.spaces(env.params)[0]
    low, high = space.low, space.high
    for t, obs in enumerate(run.obs):
        for wrong, rule in (
            (~np.isfinite(obs), "which is not finite: guard divisions, roots and logarithms"),
            ((obs < low) | (obs > high), "outside its space, {:.7g} to {:.7g}: widen the space, or clip"),
        ):
            if wrong.any():
                row, k = np.argwhere(wrong)[0]
                value = f"after {t} steps observation {k} of environment {row} is {obs[row, k]:.7g}, "
                raise fault(env.observe, value + rule.format(low[k], high[k]))
    for t, reward in enumerate(run.reward):
        if not np.isfinite(reward).all():
            row = np.flatnonzero(~np.isfinite(reward))[0]
            what = f"the reward of environment {row} in step {t + 1} is {reward[row]}: guard divisions, roots and logarithms"
            raise fault(env.step, what)
    return f"{len(run.obs) * len(run.obs[0]):,} observations are finite and within their bounds, all rewards finite"


def _check_plain(env: Single, run: Run, seed: int) -> str:
    """Every compiled reset, step and observation against the same functions run as plain Python, from the same state."""
    rows, fields = len(run.obs[0]), env.state._fields
    episode, time = np.zeros(rows, int), np.zeros(rows, int)
    different = []
    for t, row in np.ndindex(len(run.obs), rows):
        if row == 0 and t > 0:  # an episode is numbered by the step that resets it
            over = (run.terminated[t - 2] | run.truncated[t - 2]) if t > 1 else np.zeros(rows, bool)
            episode, time = np.where(over, t, episode), np.where(over, 0, time + 1)
        key = Key(seed & 0xFFFFFFFF, seed >> 32, row, int(episode[row]), int(time[row]))
        state = env.state(*(run.states[t][k][row].item() for k in fields))
        got = state._asdict() | {f"observation {k}": x.item() for k, x in enumerate(run.obs[t][row])}
        if key.step == 0:
            plain = _plainly(env.reset, key, env.params)._asdict()
        else:
            before = env.state(*(run.states[t - 1][k][row].item() for k in fields))
            after, reward, over = _plainly(env.step, before, _action(run.actions[t - 1, row]), key, env.params)
            plain = after._asdict() | {"reward": reward, "terminated": over}
            got |= {"reward": run.reward[t - 1][row].item(), "terminated": run.terminated[t - 1][row].item()}
        plain |= {f"observation {k}": x for k, x in enumerate(_plainly(env.observe, state, env.params))}
        for name, value in plain.items():
            if abs(float(value) - float(got[name])) > TOLERANCE * max(1.0, abs(float(value))):
                different.append((env.step if key.step else env.reset, t, row, name, float(value), got[name]))
                break
    compared = len(run.obs) * rows
    if len(different) > DIFFERENT * compared:
        function, t, row, name, value, compiled = different[0]
        raise fault(
            function,
            f"{len(different)} of {compared} results are not plain Python's: after {t} steps {name} of environment {row} is "
            f"{compiled}, in plain Python {value}; use nothing that changes between calls, nor what float32 cannot resolve",
        )
    return f"{compared:,} resets and steps agree to {TOLERANCE}, but for {len(different)}"


def _plainly(function: Callable[..., Any], *arguments: Any) -> Any:
    try:
        with np.errstate(all="ignore"):
            return function(*arguments)
    except Exception as error:
        frame = error.__traceback__.tb_next if error.__traceback__ else None
        what = f"does not run as plain Python, {type(error).__name__}: {error}; it must, in any state that it can reach"
        raise fault(function, what, frame.tb_lineno if frame else None) from error


def _same(env: Single, run: Run, other: Run, which: str) -> None:
    """Raises unless both runs are equal, bit for bit, in the rows that both have."""
    n = min(len(run.obs[0]), len(other.obs[0]))

    def bits(array: Any) -> Any:
        return np.ascontiguousarray(array[:n]).view(np.uint8).reshape(n, -1)

    for t in range(len(run.obs)):
        pairs = {"observation": (run.obs[t], other.obs[t])}
        pairs |= {k: (run.states[t][k], other.states[t][k]) for k in run.states[t]}
        if t:
            pairs |= {k: (getattr(run, k)[t - 1], getattr(other, k)[t - 1]) for k in Run._fields[3:]}
        for name, (a, b) in pairs.items():
            unequal = np.flatnonzero((bits(a) != bits(b)).any(1))
            if len(unequal):
                row = unequal[0]
                what = f"{which} differ: after {t} steps {name} of environment {row} is {a[row]} and {b[row]}"
                raise fault(env.step if t else env.reset, f"{what}; results must depend on nothing but the arguments")


def _check_compiles(env: Single) -> Check:
    """Compiles kernels for an H100 or H200."""
    if cuda.SIMULATED:
        return Check("sm_90", False, "the simulator compiles no kernels")
    try:
        pathfinder = importlib.import_module("cuda.pathfinder")
        for library in ("nvvm", "nvJitLink"):
            pathfinder.load_nvidia_dynamic_lib(library)
    except (ImportError, RuntimeError) as error:
        return Check("sm_90", False, f"needs gpuvec[compile]: {str(error).splitlines()[0]}")
    dtype, compiled = np.int32 if signature(env).discrete else np.float32, 0
    for mode in (AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP):
        variant = Variant(mode, env.max_episode_steps, action_dtype=dtype)
        try:
            with cuda.offline((9, 0)):
                for body, types_ in zip(cuda.kernels(env, variant), cuda.signatures(env, layout(env, variant)), strict=True):
                    cuda.link(cuda.intermediate(body, types_, (9, 0), "ltoir"), (9, 0))
                    compiled += 1
        except REFUSALS as error:
            raise explained(env.step, error) from error
    return Check("sm_90", True, f"{compiled} kernels compiled")


# The dialect of device code: types


def check_types(env: Single) -> str:
    """Compiles the author's functions as kernels do, and looks at the type of every value in them.

    Raises:
        AuthoringError: a function that cannot be compiled, a value that no kernel should hold, or a wrong result.
    """
    s = signature(env)
    for name, expected in {"reset": "key, p", "step": "s, action, key, p", "observe": "s, p"}.items():
        function = getattr(env, name)
        if not isinstance(function, FunctionType):
            raise AuthoringError(f"{name} is a {type(function).__name__}; it must be a plain function {name}({expected}).")
        if len(inspect.signature(function).parameters) != expected.count(",") + 1:
            raise fault(function, f"{name}{inspect.signature(function)} must be {name}({expected})")
    number = np.int32(0) if s.discrete else np.float32(0)
    action = typeof((number,) * s.components if s.components else number)
    key = typeof(Key._make([*(np.uint32(0),) * 4, np.int32(0)]))
    p = typeof(constants(env.params))
    state = typeof(env.state(*(SCALARS[hint](0) for hint in get_type_hints(env.state).values())))

    _check_state(env, env.reset, _typed(env.reset, (key, p)))
    result = _typed(env.step, (state, action, key, p))
    if not isinstance(result, types.BaseTuple) or len(result) != 3:
        raise fault(env.step, f"it returns {result}; it must return (State, reward, terminated), on every path")
    after, reward, terminated = result
    _check_state(env, env.step, after)
    if not isinstance(reward, types.Float):
        raise fault(env.step, f"the reward is {types.unliteral(reward)}; it must be a float on every path: write 1.0, not 1")
    if not isinstance(terminated, types.Boolean):
        raise fault(env.step, f"terminated is {types.unliteral(terminated)}; it must be a bool, as a comparison is")

    seen = _typed(env.observe, (state, p))
    if not isinstance(seen, types.BaseTuple):
        raise fault(env.observe, f"it returns {seen}; it must return a tuple of {s.features} floats: (a, b), or (a,) for one")
    if len(seen) != s.features:
        raise fault(env.observe, f"it returns {len(seen)} values, but the observation space has shape ({s.features},)")
    for k, kind in enumerate(seen):
        if not isinstance(kind, types.Number | types.Boolean):
            raise fault(env.observe, f"value {k} of those it returns is {kind}; it must be a number")
    return "every value is a float32, an integer or a bool"


def _check_state(env: Single, function: Any, given: Any) -> None:
    state = env.state.__name__
    if not isinstance(given, types.BaseNamedTuple) or given.instance_class is not env.state:
        raise fault(function, f"the state that it returns is {given}; it must be a {state}, on every path")
    allowed = {float: (types.Float, "0.0, not 0"), int: (types.Integer, "np.int32(x)"), bool: (types.Boolean, "a comparison")}
    for (name, hint), kind in zip(get_type_hints(env.state).items(), given, strict=True):
        if not isinstance(kind, allowed[hint][0]):
            what = f"field {name!r} of {state} is a {hint.__name__} and is given {kind}: write {allowed[hint][1]}"
            raise fault(function, what)


def _typed(function: Any, arguments: tuple[Any, ...]) -> Any:
    """The type that `function` returns for arguments of these types."""
    try:
        dispatcher = device(function)
        dispatcher.compile(arguments)
    except AuthoringError:
        raise
    except REFUSALS as error:
        raise explained(function, error) from error
    _check_values(dispatcher, arguments, set())
    return dispatcher.overloads[arguments].signature.return_type


def _check_values(dispatcher: Any, arguments: tuple[Any, ...], seen: set[Any]) -> None:
    """Raises for the first line with a container, or with a float64 that is made of nothing that is one."""
    if (dispatcher, arguments) in seen:
        return
    seen.add((dispatcher, arguments))
    dispatcher.compile(arguments)
    typed = dispatcher.overloads[arguments].type_annotation
    statements = [statement for block in typed.blocks.values() for statement in block.body]
    for inst in sorted(statements, key=lambda statement: statement.loc.line):
        line = inst.loc.line
        if isinstance(inst, ir.Raise | ir.StaticRaise | ir.DynamicRaise):
            raise fault(dispatcher.py_func, "raises an error, which a GPU cannot; clip, or end the episode", line)
        if not isinstance(inst, ir.Assign):
            continue
        value, kind = inst.value, typed.typemap[inst.target.name]
        text = isinstance(kind, types.UnicodeType) or (isinstance(kind, types.StringLiteral) and isinstance(value, ir.Expr))
        if text or isinstance(kind, types.List | types.Set | types.DictType):
            what = "makes a list, set, dict or string, which device code does not have; use a tuple, or fields of the state"
            raise fault(dispatcher.py_func, what, line)
        called = typed.typemap[value.func.name] if isinstance(value, ir.Expr) and value.op == "call" else None
        if isinstance(called, types.Dispatcher) and not called.dispatcher.py_func.__module__.startswith("gpuvec."):
            _check_values(called.dispatcher, tuple(typed.calltypes[value].args), seen)
        operands = value.list_vars() if isinstance(value, ir.Expr) else [value] if isinstance(value, ir.Var) else []
        made_of = [typed.typemap[v.name] for v in operands]
        if _wide(kind) and not isinstance(value, ir.Arg) and not any(map(_wide, made_of)):
            raise fault(dispatcher.py_func, f"makes a float64; {_remedy(value, made_of)}", line)


def _wide(kind: Any) -> bool:
    """Whether a value of that Numba type holds a float64."""
    parts = tuple(kind) if isinstance(kind, types.BaseTuple) else ()
    parts += (kind.dtype,) if isinstance(kind, types.Array) else (kind.type,) if isinstance(kind, types.Optional) else ()
    return kind == types.float64 or any(map(_wide, parts))


def _remedy(value: Any, made_of: list[Any]) -> str:
    """What to do about a float64 that comes from `value`, an expression of parts of those types."""
    if isinstance(value, ir.Var):
        return "a variable is an int on one path and a float on another: write 0.0, not 0"
    if isinstance(value, ir.Expr) and value.op == "getattr" and isinstance(made_of[0], types.Module):
        name = f"{made_of[0].pymod.__name__}.{value.attr}"
        return f"only names of the module are read as float32: put {value.attr.upper()} = {name} there, and use that"
    if any(isinstance(kind, types.Integer) for kind in made_of):
        return "an int met a float: write 2.0, not 2, and np.float32(k) for an int k"
    if isinstance(value, ir.Expr):
        return "convert it with np.float32(...)"
    return "make it a float32: np.array(..., np.float32) for a table"


# The dialect of device code: words

REMEDIES = {  # what Numba says, and what an author can do about it
    r">>> float\(bool\)": "write 1.0 if c else 0.0",
    r">>> getitem\(int": "the action of a Discrete space is an int, that of a Box or MultiDiscrete a tuple",
    r"No implementation of function": "use functions of math, other plain functions, and min(max(x, low), high) for a clip",
    r"Unknown attribute '\w+' of type Module": "import the function by its name, as in `from gpuvec import uniform`",
    r"Unknown attribute '_replace'": "build a new State, with every field",
    r"Unknown attribute": "use a field that the NamedTuple has",
    r"NameError|Untyped global name": "use numbers, tuples, NumPy tables and functions that the module defines or imports",
    r"No definition for lowering": "a NamedTuple does not change: build a new one",
    r"[Cc]annot unify": "give the variable, or the field, the same type on every path",
    r"yield": "device code has no generators or comprehensions: write a loop",
    r"exception|opcode|bytecode": "device code has no try, with, class or import statement",
    r"\blist|\bdict|\bset\(": "device code has no lists, sets, dicts or strings: use a tuple, or fields of the state",
}


def explained(function: Any, error: Exception) -> AuthoringError:
    """Numba's error in plain words: the author's line that it is about, what is wrong there, and the remedy."""
    text = re.sub("\x1b\\[[0-9;]*m", "", str(error))  # Numba may colour its messages
    found = re.findall(r'(?:File "([^"]+)", line |(\S+\.py) \()(\d+)', text)
    places = [(Path(a or b).resolve(), int(line)) for a, b, line in found if not {"numba", "engine"} & set(Path(a or b).parts)]
    if not places and getattr(error, "loc", None) is not None:
        places = [(Path(error.loc.filename).resolve(), error.loc.line)]  # type: ignore[attr-defined]  # of Numba's errors
    said = next((line.strip() for line in text.splitlines() if line.strip() and not line.startswith("Failed in")), text)
    call = re.search(r">>> (.+)", text)
    said = f"there is no {call[1]} in device code" if call else said.partition(" Raised from ")[0].rstrip(". ")
    remedy = next((r for pattern, r in REMEDIES.items() if re.search(pattern, text)), "write it with numbers, tuples and math")
    file, line = places[0] if places else (function.__code__.co_filename, function.__code__.co_firstlineno)
    return AuthoringError(f"{file}, line {line}, `{linecache.getline(str(file), line).strip()}`: {said}; {remedy}.")


def fault(function: Any, what: str, line: int | None = None) -> AuthoringError:
    """What is wrong in `function`, in that line or as a whole."""
    code = function.__code__
    line = line or code.co_firstlineno
    return AuthoringError(f"{code.co_filename}, line {line}, `{linecache.getline(code.co_filename, line).strip()}`: {what}.")
