"""The search for the K nearest among all agents of an env: an agent visits all others and keeps the best in registers."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from gpuvec.engine.compiler.functions import device_function, generate_function, inline_function
from gpuvec.engine.compiler.types import DeviceFunction
from gpuvec.engine.multi_agent.context import MultiAgentContext, every_agent
from gpuvec.engine.multi_agent.neighbors.knn_source import NAMES, initial_lines, insert_lines, store_lines
from gpuvec.spec import NearestNeighbors

i32 = np.int32
KEYS_MAX_AGENTS = 1024  # with more agents, the bits of a distance that are left in a key hardly distinguish two
BATCH = 8  # agents whose keys are sorted at once
INFINITY_BITS = 0x7F800000  # of an infinite float32; those of finite nonnegative ones are less


class KnnFunctions(NamedTuple):
    """The functions that search for one agent; a row of the field holds the agents that it finds."""

    searches: DeviceFunction  # searches(i, s, p) -> whether agent i searches
    clear_row: DeviceFunction  # clear_row(i, s): sets agent i's row to no agents
    knn_by_distance: DeviceFunction  # knn_by_distance(i, s, p): writes agent i's row
    knn_by_key: DeviceFunction  # knn_by_key(i, s, p): the same, without a branch for each agent


def make_knn(ctx: MultiAgentContext, search: NearestNeighbors) -> KnnFunctions:
    """The functions of a search.

    Args:
        ctx: the context.
        search: the search.
    """
    agents, places = ctx.num_agents, ctx.schema.array_fields[search.field].shape[1]
    searches = every_agent if search.mask is None else device_function(search.mask)
    empty = "".join(f"    s.{search.field}[i, {k}] = i32(-1)\n" for k in range(places))
    clear_row = inline_function(generate_function("clear_row", f"def clear_row(i, s):\n{empty}", i32=i32))
    scope = {"distance": device_function(search.distance)} | NAMES
    source = "def knn_by_distance(i, s, p):\n" + initial_lines(places, "    ") + f"    for j in range({agents}):\n"
    source += "        d = f32(distance(i, j, s, p))\n" + insert_lines(places, "        ", in_order=True)
    source += store_lines(search.field, places, "    ")
    knn_by_distance = inline_function(generate_function("knn_by_distance", source, **scope))
    knn_by_key = knn_by_distance
    if agents <= KEYS_MAX_AGENTS:
        scope |= {"pack_key": ctx.array_ops.pack_key, "merge_k_smallest": ctx.array_ops.merge_k_smallest}
        scope |= {"add_nonnegative": ctx.array_ops.add_nonnegative, "knn_by_distance": knn_by_distance}
        knn_by_key = _knn_by_key(search, agents, places, scope)
    return KnnFunctions(searches, clear_row, knn_by_distance, knn_by_key)


def _knn_by_key(search: NearestNeighbors, agents: int, places: int, scope: dict[str, Any]) -> DeviceFunction:
    """The search by keys.

    A key is a distance's bits but for the last few, which are the agent: all keys differ, and their order is that of the
    distances unless two next to each other have the same bits left. In that case the search by distance writes the row. One
    key more than there are places tells whether the last place is certain.
    """
    low_bits = (1 << max(1, (agents - 1).bit_length())) - 1
    rest = agents % BATCH
    keys = [f"k{k}" for k in range(places + 1)]

    def merge_batch(margin: str, count: int) -> str:
        """Lines that merge the keys of `count` agents from j on."""
        lines = [f"n{n} = add_nonnegative(j, {n})" for n in range(count)]
        lines += [f"l{n} = pack_key(distance(i, n{n}, s, p), {low_bits}, n{n})" for n in range(count)]
        batch = [f"l{n}" for n in range(count)] + ["last_key"] * (BATCH - count)
        lines.append(f"best = merge_k_smallest(best, ({', '.join(batch)}))")
        return "".join(f"{margin}{line}\n" for line in lines)

    source = f"def knn_by_key(i, s, p):\n    best, j = ({'last_key, ' * len(keys)}), zero\n"
    source += merge_batch("    ", rest) + f"    j = i32({rest})\n" if rest else ""
    source += f"    while j < {agents}:\n{merge_batch('        ', BATCH)}        j = i32(j + i32({BATCH}))\n"
    source += f"    {', '.join(keys)} = best\n"
    differ = [f"(({a} ^ {b}) > low_bits) | ({a} >= infinity_bits)" for a, b in pairwise(keys)]
    source += "    is_certain = (k0 >= zero)" + "".join(f" & ({condition})" for condition in differ) + "\n"
    for k in range(places):
        source += f"    s.{search.field}[i, {k}] = k{k} & low_bits if k{k} < infinity_bits else i32(-1)\n"
    source += "    if not is_certain:\n        knn_by_distance(i, s, p)\n"
    constants = {"last_key": i32(2**31 - 1), "low_bits": i32(low_bits), "infinity_bits": i32(INFINITY_BITS), "zero": i32(0)}
    return inline_function(generate_function("knn_by_key", source, **scope, **constants))
