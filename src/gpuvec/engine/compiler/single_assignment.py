"""The pass of Numba that gives each assignment a variable of its own, without work for blocks that lack the variable.

The form that results is that of static single assignment (SSA).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from functools import wraps
from typing import Any

from gpuvec.engine.compiler.types import NumbaModule

Blocks = dict[int, Any]  # {offset of the first instruction: block}


def rewrite_blocks_with_variable(ssa: NumbaModule) -> None:
    """Makes the pass read only the blocks in which a variable with several assignments occurs.

    Numba reads all statements of a function twice for each such variable, and copies all blocks.

    Args:
        ssa: numba-cuda's module `core.ssa`.
    """
    assign_types = ssa.ir.assign_types

    @wraps(ssa._run_ssa)
    def rewrite(blocks: Blocks) -> Blocks:
        defined_in, used_in, num_definitions = _find_variables(blocks, assign_types)
        graph = ssa.compute_cfg_from_blocks(blocks)
        dominators = graph.dominators()
        # Variables with several definitions, then those that are used where their definition may not have been reached.
        names = [name for name, count in num_definitions.items() if count > 1]
        names += [
            name
            for name, offsets in used_in.items()
            if num_definitions[name] <= 1 and any(defined_in[name].isdisjoint(dominators[offset]) for offset in offsets)
        ]
        if not names:
            return blocks
        frontiers, variables = ssa._iterated_domfronts(graph), ssa._CacheListVars()
        for name in names:
            offsets = defined_in[name] | used_in[name]
            renamed, definitions = ssa._fresh_vars(_select(blocks, offsets), name)
            blocks = {**blocks, **renamed}
            # Where definitions meet, a statement that selects one of them may be inserted.
            offsets |= ssa._compute_phi_locations(frontiers, definitions)
            blocks |= ssa._fix_ssa_vars(_select(blocks, offsets), name, definitions, graph, frontiers, variables)
        return blocks

    ssa._run_ssa = rewrite


def _find_variables(
    blocks: Blocks, assign_types: tuple[Any, ...]
) -> tuple[dict[str, set[int]], dict[str, set[int]], Counter[str]]:
    """Finds where variables are defined and used.

    Args:
        blocks: of a function.
        assign_types: Numba's classes of assignments.

    Returns:
        ({name: offsets of blocks that define it}, {name: offsets of blocks that use it}, {name: number of definitions}). A
        statement that changes a variable is not a use of it.
    """
    defined_in: dict[str, set[int]] = defaultdict(set)
    used_in: dict[str, set[int]] = defaultdict(set)
    num_definitions: Counter[str] = Counter()
    for offset, block in blocks.items():
        for statement in block.body:
            target = None
            if isinstance(statement, assign_types):
                target = statement.target.name
                defined_in[target].add(offset)
                num_definitions[target] += 1
            for variable in statement.list_vars():
                if variable.name != target:
                    used_in[variable.name].add(offset)
    return defined_in, used_in, num_definitions


def _select(blocks: Blocks, offsets: set[int]) -> Blocks:
    """The blocks with these offsets, in their order."""
    return {offset: block for offset, block in blocks.items() if offset in offsets}
