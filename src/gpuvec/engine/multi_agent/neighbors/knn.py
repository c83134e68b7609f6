"""The search for the K nearest among all agents of an env: an agent visits all others and keeps the nearest in registers."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from gpuvec.engine.compiler.functions import device_function, generate_function, inline_function
from gpuvec.engine.compiler.types import DeviceFunction
from gpuvec.engine.multi_agent.context import MultiAgentContext, every_agent
from gpuvec.engine.multi_agent.neighbors.knn_source import SOURCE_NAMES, initial_lines, insert_lines, store_lines
from gpuvec.observations import NearestNeighbors

i32 = np.int32
# With more agents, too few bits of a key are left for the distance to distinguish most agents.
KEYS_MAX_AGENTS = 1024
BATCH_SIZE = 8  # agents whose keys are merged together
INFINITY_BITS = 0x7F800000  # of the float32 infinity; the bits of finite nonnegative numbers are less


class KnnFunctions(NamedTuple):
    """The compiled functions that search for one agent, and write its row of the field."""

    searches: DeviceFunction  # searches(i, s, p) -> whether agent i searches
    clear_row: DeviceFunction  # clear_row(i, s): writes a row without neighbors for agent i
    knn_by_distance: DeviceFunction  # knn_by_distance(i, s, p): searches, and writes agent i's row
    knn_by_key: DeviceFunction  # knn_by_key(i, s, p): as `knn_by_distance`, without a branch for each agent


def make_knn(ctx: MultiAgentContext, search: NearestNeighbors) -> KnnFunctions:
    """Compiles the functions of a search.

    Args:
        ctx: the context.
        search: the author's declaration of the search.
    """
    agents, num_nearest = ctx.num_agents, ctx.schema.array_fields[search.field].shape[1]
    searches = every_agent if search.mask is None else device_function(search.mask)
    clear_lines = "".join(f"    s.{search.field}[i, {k}] = i32(-1)\n" for k in range(num_nearest))
    clear_row = inline_function(generate_function("clear_row", f"def clear_row(i, s):\n{clear_lines}", i32=i32))
    scope = {"distance": device_function(search.distance)} | SOURCE_NAMES
    source = "def knn_by_distance(i, s, p):\n" + initial_lines(num_nearest, "    ") + f"    for j in range({agents}):\n"
    source += "        d = f32(distance(i, j, s, p))\n" + insert_lines(num_nearest, "        ", in_order=True)
    source += store_lines(search.field, num_nearest, "    ")
    knn_by_distance = inline_function(generate_function("knn_by_distance", source, **scope))
    knn_by_key = knn_by_distance
    if agents <= KEYS_MAX_AGENTS:
        scope |= {"pack_key": ctx.array_ops.pack_key, "merge_k_smallest": ctx.array_ops.merge_k_smallest}
        scope |= {"add_nonnegative": ctx.array_ops.add_nonnegative, "knn_by_distance": knn_by_distance}
        knn_by_key = _knn_by_key(search, agents, num_nearest, scope)
    return KnnFunctions(searches, clear_row, knn_by_distance, knn_by_key)


def _knn_by_key(search: NearestNeighbors, agents: int, num_nearest: int, scope: dict[str, Any]) -> DeviceFunction:
    """`knn_by_key` as in `KnnFunctions`.

    A key has the bits of a distance, except for the lowest bits, which hold the agent. All keys are different. Their order is
    that of the distances, unless two successive keys have the same bits of the distance: then the search by distance writes
    the row. One key more than the row has agents shows whether the last one is certain.
    """
    low_bits = (1 << max(1, (agents - 1).bit_length())) - 1
    remainder = agents % BATCH_SIZE
    keys = [f"k{k}" for k in range(num_nearest + 1)]

    def merge_batch(margin: str, count: int) -> str:
        """Lines that merge the keys of `count` agents from j on."""
        lines = [f"n{n} = add_nonnegative(j, {n})" for n in range(count)]
        lines += [f"l{n} = pack_key(distance(i, n{n}, s, p), {low_bits}, n{n})" for n in range(count)]
        batch = [f"l{n}" for n in range(count)] + ["last_key"] * (BATCH_SIZE - count)
        lines.append(f"best = merge_k_smallest(best, ({', '.join(batch)}))")
        return "".join(f"{margin}{line}\n" for line in lines)

    source = f"def knn_by_key(i, s, p):\n    best, j = ({'last_key, ' * len(keys)}), zero\n"
    source += merge_batch("    ", remainder) + f"    j = i32({remainder})\n" if remainder else ""
    source += f"    while j < {agents}:\n{merge_batch('        ', BATCH_SIZE)}        j = i32(j + i32({BATCH_SIZE}))\n"
    source += f"    {', '.join(keys)} = best\n"
    distinct = [f"(({a} ^ {b}) > low_bits) | ({a} >= infinity_bits)" for a, b in pairwise(keys)]
    source += "    is_certain = (k0 >= zero)" + "".join(f" & ({condition})" for condition in distinct) + "\n"
    for k in range(num_nearest):
        source += f"    s.{search.field}[i, {k}] = k{k} & low_bits if k{k} < infinity_bits else i32(-1)\n"
    source += "    if not is_certain:\n        knn_by_distance(i, s, p)\n"
    constants = {"last_key": i32(2**31 - 1), "low_bits": i32(low_bits), "infinity_bits": i32(INFINITY_BITS), "zero": i32(0)}
    return inline_function(generate_function("knn_by_key", source, **scope, **constants))
