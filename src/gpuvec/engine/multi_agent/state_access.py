"""The state of many agents in composed code: where its fields are while a kernel runs, and how they come and go."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from gymnasium.vector import AutoresetMode

from gpuvec.engine.compiler.array_ops import ArrayOps
from gpuvec.engine.compiler.functions import device_function, generate_function, inline_function
from gpuvec.engine.compiler.memory_ops import MemoryOps
from gpuvec.engine.layout.buffers import Buffer, KernelOptions
from gpuvec.engine.layout.rng_streams import POOL_DRAW
from gpuvec.engine.layout.schema import ENGINE_FIELDS, PACKED_BUFFERS, MultiAgentSchema
from gpuvec.engine.multi_agent.launch_mapping import MultiAgentLaunch
from gpuvec.engine.multi_agent.neighbors.knn import Look, search
from gpuvec.random import randint
from gpuvec.spec import MultiAgentEnv, Reduction


class StateAccess(NamedTuple):
    """The functions of composed code that deal with the state.

    `b` the batch, `w` the work, `e` an env, `k` its place in the block, `i` an agent of its env.
    """

    row: Any  # row(b, w, e, k) -> the State of env e, as the author's functions get it
    outside: Any  # outside(b, e) -> likewise from its buffers, in a kernel that only observes
    load_final: Any  # load_final(b, e) -> likewise the last state of an episode that ended in this step
    either: Any  # either(b, e, last) -> `load_final` if it is the last, else `outside`
    load_to_shared: Any  # load_to_shared(b, w, e, k, i): agent i's elements, from their buffers
    store_to_global: Any  # store_to_global(b, w, e, k, i): and back
    pull_scalars: Any  # pull_scalars(b, w, e, k)
    push_scalars: Any  # push_scalars(b, w, e, k)
    save_final: Any  # save_final(b, w, e, k, i): agent i's elements, for `load_final`
    put_scalars_by: Any  # put_scalars_by(b, w, e, k)
    clear: Any  # clear(w, k): zeroes the scalars
    stage_copy: Any  # stage_copy(w, k, i): copies agent i's elements to where `row` finds them for the place `aside + k`
    lay_scalars_aside: Any  # lay_scalars_aside(w, k): likewise the scalars, and the time
    aside: int  # 0: there are no such places
    pooled: Any  # pooled(b, s, i, key): agent i's elements of the state from the pool that the key draws
    look: Look | None  # the search
    role: Any  # role(s, i) -> the number of agent i's role
    slots: dict[str, str]  # {scalar: where it is in the work}
    rows: dict[str, tuple[Any, tuple[int]]]  # {name in the work: (dtype, shape for each env)}
    flat: dict[str, tuple[Any, int]]  # {name in the work: (dtype, number of elements)}


# Columns of `w.now`. From STREAM on are the four words of the env's stream of random numbers, AGAINST counts agents that do not
# want the end, and from COUNTERS on are the counters of reductions.
START, TIME, IDLE, CLOCK, STREAM, OVER, AGAINST, COUNTERS = 0, 1, 2, 3, 4, 8, 9, 10


def state_access(
    env: MultiAgentEnv,
    schema: MultiAgentSchema,
    options: KernelOptions,
    ops: MemoryOps,
    array_ops: ArrayOps,
    given: MultiAgentLaunch,
) -> StateAccess:
    """Their versions for `env`: if `given` stages the state, fields with elements for each agent are in the work, else in their
    buffers.

    Scalars are always in the work, as row `k` of one array for each dtype. Few arrays make up the work, because each is seven
    values that are handed to every function.
    """
    (A,) = schema.agents_shape
    at_once = schema.search is None and not isinstance(
        schema.observation.neighbors, Reduction
    )  # nothing comes before an observation
    aside = given.envs if given.stage and given.aside and at_once and options.autoreset is AutoresetMode.SAME_STEP else 0
    staged = given.envs + aside if given.stage else 0
    searched = (schema.search.field,) if schema.search and not given.split else ()  # by the kernel that plays
    own = {k: b for k, b in schema.array_fields.items() if k not in schema.search_fields or k in searched}
    carried = {k: b for k, b in own.items() if k not in searched}  # a search runs anew before every observation
    changing = {k: b for k, b in carried.items() if k not in ENGINE_FIELDS}
    # Of the members all agents ask for the same few; blocks that share a multiprocessor's registers leave them where they are.
    staying = ("agents_by_role",) if given.resident > 1 else ()
    held = {k: b for k, b in own.items() if k not in staying} if staged else {}
    pulled = {k: b for k, b in held.items() if k not in searched}
    scope: dict[str, Any] = {"State": env.state, "view": array_ops.view, "part": array_ops.part, "load": ops.load, "A": A}
    scope |= {f"t_{k}": b.dtype for k, b in schema.array_fields.items()} | {
        f"t_{k}": dtype for k, dtype in schema.scalar_fields.items()
    }
    scope |= {
        "numbers": array_ops.assume_below(A),
        "randint": device_function(randint),
        "draw": POOL_DRAW,
        "i32": np.int32,
        "store": ops.store,
    }

    def made(name: str, arguments: str, lines: list[str]) -> Any:
        body = "".join(f"    {line}\n" for line in lines) or "    pass\n"
        return inline_function(generate_function(name, f"def {name}({arguments}):\n{body}", **scope))

    def state(name: str, arguments: str, array: dict[str, str], scalar: dict[str, str]) -> Any:
        places = array | scalar | {k: f"numbers({place})" for k, place in array.items() if k == "agents_by_role"}
        parts = ", ".join(places[k] for k in env.state._fields)
        return made(name, arguments, [f"return State({parts})"])

    homes = {k: (name, len(names), names.index(k)) for name, names in schema.packed_fields.items() for k in names}

    # Addresses of what is `now` and of what was `last` put away. Of a choice between what lies at either the compiler would not
    # know in which memory that is.
    def of_now(now: str, last: str) -> str:
        return f"b.{now}"

    def of_last(now: str, last: str) -> str:
        return f"b.{last}"

    def of_either(now: str, last: str) -> str:
        return f"(b.{last} if last else b.{now})"

    def viewed(at: Callable[[str, str], str]) -> dict[str, str]:
        found = {k: f"view({at(f'state_{k}', f'final_{k}')}, e, {b.shape}, t_{k})" for k, b in schema.array_fields.items()}
        for k, (name, count, number) in homes.items():  # what the engine owns never changes
            place = at(name, name if k in ENGINE_FIELDS else f"final_{name}")
            found[k] = f"view({place}, e * {count} + {number}, (A,), t_{k})"
        return found

    def loaded(at: Callable[[str, str], str]) -> dict[str, str]:
        return {k: f"load({at(f'state_{k}', f'final_{k}')}, e, t_{k})" for k in schema.scalar_fields}

    sizes, begin = dict.fromkeys(PACKED_BUFFERS, 0), {}
    for k, b in held.items():
        begin[k] = sizes[b.dtype]
        sizes[b.dtype] += staged * int(np.prod(b.shape))
    widths = {k: int(np.prod(b.shape)) for k, b in own.items()}
    scalars = schema.scalar_fields
    columns = {k: f"w.scalar_{PACKED_BUFFERS[dtype]}[{{}}, {sum(scalars[o] is dtype for o in list(scalars)[:n])}]"
               for n, (k, dtype) in enumerate(scalars.items())}  # fmt: skip
    slots = {k: column.format("k") for k, column in columns.items()}
    places = {k: f"part(w.{PACKED_BUFFERS[own[k].dtype]}, {begin[k]} + k * {widths[k]}, {own[k].shape})" for k in begin}

    def each(fields: dict[str, Buffer], text: str, pool: bool = False) -> list[str]:
        """One line for each element of agent i: `text` with its place in a buffer, in the work, aside and in the state.

        What places have in common is reckoned first, as the compiler takes its time over every sum.
        """
        common: dict[str, str] = {}
        lines = []
        for k, b in fields.items():
            name, count, number = homes[k] if k in homes and not pool else (f"state_{k}", 1, 0)
            final = f"final_{name}" if k in homes else f"final_{k}"
            extra = b.shape[1] if len(b.shape) > 1 else 1
            common |= {f"v{count}": f"e * {count * A} + i"} if "{at}" in text else {}
            common |= {"u": f"k * {A} + i"} if "{work}" in text else {}
            for j in range(extra):
                at, place = (f"{x} * {extra}" if extra > 1 else x for x in (f"v{count}", "u"))
                work, kept = (
                    f"w.{PACKED_BUFFERS[b.dtype]}[{place} + {begin.get(k, 0) + j + m}]" for m in (0, aside * A * extra)
                )
                element = f"s.{k}[i, {j}]" if len(b.shape) > 1 else f"s.{k}[i]"
                of_field = {"field": k, "home": name, "final": final, "at": f"{at} + {number * A + j}"}
                lines.append(text.format(**of_field, work=work, aside=kept, element=element))
        return [*(f"{name} = {value}" for name, value in common.items()), *lines]

    laid = each({k: b for k, b in pulled.items() if k not in changing}, "{aside} = {work}") if aside else []
    known = [*columns.values(), f"w.now[{{}}, {TIME}]"]
    source = "{work}" if staged else "load(b.{home}, {at}, t_{field})"
    pool = {k: b for k, b in schema.array_fields.items() if k in options.pool}
    pooled = ["e = randint(key, draw, 0, load(b.pool_size, 0, i32))"] if pool else []
    pooled += each(pool, "{element} = load(b.pool_{field}, {at}, t_{field})", pool=True)
    zeros = {k: dtype(0).item() for k, dtype in schema.scalar_fields.items()}
    look = schema.search
    dtypes = list(schema.scalar_fields.values())
    rows = {f"scalar_{name}": (dtype, (dtypes.count(dtype),)) for dtype, name in PACKED_BUFFERS.items() if dtype in dtypes}
    flat = {PACKED_BUFFERS[dtype]: (dtype, size) for dtype, size in sizes.items() if size}
    return StateAccess(
        row=state("row", "b, w, e, k", viewed(of_now) | places, slots),
        outside=state("outside", "b, e", viewed(of_now), loaded(of_now)),
        load_final=state("load_final", "b, e", viewed(of_last), loaded(of_last)),
        either=state("either", "b, e, last", viewed(of_either), loaded(of_either)),
        load_to_shared=made("load_to_shared", "b, w, e, k, i", each(pulled, "{work} = load(b.{home}, {at}, t_{field})") + laid),
        store_to_global=made("store_to_global", "b, w, e, k, i", each(changing, "store(b.{home}, {at}, {work}, t_{field})")),
        pull_scalars=made("pull_scalars", "b, w, e, k", [f"{slots[k]} = load(b.state_{k}, e, t_{k})" for k in zeros]),
        push_scalars=made("push_scalars", "b, w, e, k", [f"store(b.state_{k}, e, {slots[k]}, t_{k})" for k in zeros]),
        save_final=made("save_final", "b, w, e, k, i", each(changing, "store(b.{final}, {at}, " + source + ", t_{field})")),
        put_scalars_by=made("put_scalars_by", "b, w, e, k", [f"store(b.final_{k}, e, {slots[k]}, t_{k})" for k in zeros]),
        clear=made("clear", "w, k", [f"{slots[k]} = {value!r}" for k, value in zeros.items()]),
        stage_copy=made("stage_copy", "w, k, i", each(changing, "{aside} = {work}")),
        lay_scalars_aside=made(
            "lay_scalars_aside", "w, k", [f"{at.format(f'{aside} + k')} = {at.format('k')}" for at in known]
        ),
        aside=aside,
        pooled=made("pooled", "b, s, i, key", pooled),
        look=search(look, A, schema.array_fields[look.field].shape[1], array_ops) if look is not None else None,
        role=made("role", "s, i", ["return s.role[i]" if "role" in schema.array_fields else "return 0"]),
        slots=slots,
        rows=rows,
        flat=flat,
    )
