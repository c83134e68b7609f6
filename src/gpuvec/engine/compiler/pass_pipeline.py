"""The passes of Numba's compiler, run without what Numba does around each of them.

Before and after each of some thirty passes Numba describes all options and types for listeners of its events, reads timers, and
searches the function for instructions that no pass of the pipeline emits there.
"""

from __future__ import annotations

import dis
from collections import Counter
from collections.abc import Callable, Iterable
from functools import wraps
from types import CodeType
from typing import Any

from gpuvec.engine.compiler.functions import has_plain_values
from gpuvec.engine.compiler.types import NumbaModule

DefinePipelines = Callable[[Any], list[Any]]
# Instructions of functions that the pass `InlineClosureLikes` may change, which inlines closures, comprehensions and `reduce`.
CLOSURE_INSTRUCTIONS = frozenset(dis.opmap.get(name) for name in ("MAKE_FUNCTION", "BUILD_LIST", "LOAD_CLOSURE"))


def _instructions(*words: str) -> frozenset[int | None]:
    """The numbers of the instructions whose names contain one of the words."""
    return frozenset(number for name, number in dis.opmap.items() if any(word in name for word in words))


WITH_INSTRUCTIONS = _instructions("WITH", "LOAD_SPECIAL")
DICT_INSTRUCTIONS = _instructions("DICT", "MAP")


def run_passes_directly(machinery: NumbaModule, errors: NumbaModule, define_pipelines: DefinePipelines) -> DefinePipelines:
    """Wraps the method `define_pipelines` of a class of compilers, such that its passes run one after the other.

    Generators keep Numba's own pass manager: a GPU does not support them, and Numba's errors say so.

    Args:
        machinery: the module `compiler_machinery` of Numba or of numba-cuda.
        errors: the module of errors of the same package.
        define_pipelines: takes the compiler and returns its pass managers.
    """

    class DirectPassManager(machinery.PassManager):  # type: ignore[misc]  # Numba has no types
        """A pass manager that runs the passes without events and timers. Its errors are those of Numba's own."""

        def run(self, state: Any) -> None:
            for compiler_pass, description in self.passes:
                instance = machinery._pass_registry.get(compiler_pass).pass_inst
                instance.analysis = self._analysis
                try:
                    with errors.new_error_context(f"Pass {instance.name()}"):
                        instance.run_pass(state)
                except errors.NumbaError as error:
                    step = f"Failed in {self.pipeline_name} mode pipeline (step: {description})"
                    raise self._patch_error(step, error) from error.__cause__

    def define_direct_pipelines(compiler: Any) -> list[Any]:
        managers, function = define_pipelines(compiler), compiler.state.func_id
        if function.is_generator:
            return managers
        direct_managers = []
        for manager in managers:
            direct = DirectPassManager(manager.pipeline_name)
            direct.passes = manager.passes
            if not may_have_closures(function.code):
                direct.passes = [entry for entry in manager.passes if entry[0].__name__ != "InlineClosureLikes"]
            direct.finalize()
            direct_managers.append(direct)
        return direct_managers

    return define_direct_pipelines


def analyze_pipelines_once(machinery: NumbaModule) -> None:
    """Makes numba-cuda find out once which passes depend on which, and not five times for each function.

    Args:
        machinery: numba-cuda's module `compiler_machinery`.
    """
    analyze = machinery.PassManager.dependency_analysis
    analyses: dict[tuple[type, ...], dict[type, set[type]]] = {}  # {passes: {pass: passes that it requires}}

    @wraps(analyze)
    def analyze_once(self: Any) -> dict[type, set[type]]:
        passes = tuple(compiler_pass for compiler_pass, _ in self.passes)
        if passes not in analyses:
            analyses[passes] = analyze(self)
        return analyses[passes]

    machinery.PassManager.dependency_analysis = analyze_once


def skip_steps_without_instructions(interpreter: NumbaModule, closures: NumbaModule) -> None:
    """Makes numba-cuda search for `with` statements, dictionaries and lists only where there are any.

    Two steps list the variables of all statements for the first two, and a pass looks up each call for arrays of lists.

    Args:
        interpreter: numba-cuda's module `core.interpreter`.
        closures: numba-cuda's module `core.inline_closurecall`.
    """

    def limit(step: Callable[[Any], Any], instructions: frozenset[int | None]) -> Callable[[Any], Any]:
        @wraps(step)
        def step_if_needed(function: Any) -> Any:
            return step(function) if has_instructions(function.func_id.code, instructions) else function

        return step_if_needed

    interpreter.peep_hole_delete_with_exit = limit(interpreter.peep_hole_delete_with_exit, WITH_INSTRUCTIONS)
    interpreter.peep_hole_fuse_dict_add_updates = limit(interpreter.peep_hole_fuse_dict_add_updates, DICT_INSTRUCTIONS)
    match = closures.RewriteArrayOfConsts.match

    @wraps(match)
    def match_lists(self: Any, function: Any, block: Any, *types: Any) -> bool:
        return any(block.find_exprs("build_list")) and match(self, function, block, *types)

    closures.RewriteArrayOfConsts.match = match_lists


def compute_lifetimes_on_demand(postproc: NumbaModule) -> None:
    """Makes the post-processor of numba-cuda compute lifetimes of variables only where something reads them.

    Five passes for each function run the post-processor, and it computes each time which variables live at the start of each
    block. Generators alone need that. Two of them insert a statement where the lifetime of a variable ends, for counts of
    references, which values in functions and kernels of this package do not have. It also gives each loop one jump to its
    start, which changes nothing where there are no loops.

    Args:
        postproc: numba-cuda's module `postproc`.
    """
    processor_class = postproc.PostProcessor
    run_completely = processor_class.run

    @wraps(run_completely)
    def run(self: Any, emit_dels: bool = False, extend_lifetimes: bool = False) -> None:
        function = self.func_ir
        if function.is_generator:
            run_completely(self, emit_dels, extend_lifetimes)
            return
        if has_loops(function.blocks):
            function.blocks = postproc.transforms.canonicalize_cfg(function.blocks)
        function.variable_lifetime, function.generator_info = postproc.VariableLifetime(function.blocks), None
        if emit_dels and not has_plain_values(function.func_id.func):
            self._insert_var_dels(extend_lifetimes=extend_lifetimes)

    processor_class.run = run


def list_variables_directly(ir: NumbaModule) -> None:
    """Makes statements and expressions of numba-cuda list their variables in one loop over their members.

    Numba calls a method for each value, which tests it for five kinds of values.

    Args:
        ir: numba-cuda's module `core.ir`.
    """
    no_variables = frozenset((str, int, bool, type(None), ir.Loc))

    def list_variables(statement: Any, values: Iterable[Any]) -> list[Any]:
        variables: list[Any] = []
        for value in values:
            kind = type(value)
            if kind is ir.Var:
                variables.append(value)
            elif kind is tuple or kind is list:
                variables += list_variables(statement, value)
            elif kind not in no_variables:
                variables += statement._rec_list_vars(value)
        return variables

    @wraps(ir.Stmt.list_vars)
    def list_variables_of_statement(self: Any) -> list[Any]:
        return list_variables(self, self.__dict__.values())

    @wraps(ir.Expr.list_vars)
    def list_variables_of_expression(self: Any) -> list[Any]:
        return list_variables(self, self._kws.values())

    ir.Stmt.list_vars, ir.Expr.list_vars = list_variables_of_statement, list_variables_of_expression


def count_assignments_once(lowering: NumbaModule) -> None:
    """Makes numba-cuda count the assignments of a function once when it looks for variables that need no memory.

    Numba searches all statements of a block for each variable in it.

    Args:
        lowering: numba-cuda's module `lowering`.
    """
    lowering_class, ir = lowering.Lower, lowering.ir
    find_singly_assigned = lowering_class._find_singly_assigned_variable

    @wraps(find_singly_assigned)
    def find_by_counts(self: Any) -> None:
        function = self.func_ir
        if function.func_id.is_generator:
            find_singly_assigned(self)
            return
        statements = (statement for block in function.blocks.values() for statement in block.body)
        counts = Counter(statement.target.name for statement in statements if isinstance(statement, ir.assign_types))
        # A variable that a block uses and does not define is defined in another block.
        used_in_other_blocks: set[str] = set()
        if len(function.blocks) > 1:
            used_in_other_blocks.update(*lowering.compute_use_defs(function.blocks).usemap.values())
        excluded = used_in_other_blocks | set(lowering.must_use_alloca(function.blocks))
        self._singly_assigned_vars = {name for name, count in counts.items() if count == 1 and name not in excluded}
        self._blk_local_varmap = {}

    lowering_class._find_singly_assigned_variable = find_by_counts


def may_have_closures(code: CodeType) -> bool:
    """Whether a function may contain closures or comprehensions, or call `reduce`, which a pass of Numba inlines.

    Args:
        code: of the function.
    """
    return "reduce" in code.co_names or has_instructions(code, CLOSURE_INSTRUCTIONS)


def has_loops(blocks: dict[int, Any]) -> bool:
    """Whether a block jumps to itself or to a block before it.

    Args:
        blocks: {offset of the first instruction: block} of a function.
    """
    offsets: set[int] = set()
    for offset, block in blocks.items():
        offsets.add(offset)
        if not offsets.isdisjoint(block.terminator.get_targets()):
            return True
    return False


def has_instructions(code: CodeType, numbers: frozenset[int | None]) -> bool:
    """Whether the code of a function has an instruction with one of the `numbers`."""
    # Each instruction has two bytes, and the first is its number.
    return not numbers.isdisjoint(code.co_code[::2])
