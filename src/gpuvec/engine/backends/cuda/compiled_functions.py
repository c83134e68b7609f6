"""Changes of numba-cuda's classes, by which work that does not depend on a function is not repeated for each function.

`numba_cuda`, which alone imports numba-cuda, applies them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from types import FunctionType, SimpleNamespace
from typing import Any

from gpuvec.engine.compiler.functions import is_inline, without_literals
from gpuvec.engine.compiler.types import NumbaModule, NumbaType

# Of what numba-cuda replaces in the text of an LLVM module for NVVM: its atomic operations, and attributes of newer versions.
REPLACED_TEXTS = ("___numba_atomic_", "immarg", "attributes #")
_is_verified = ContextVar("_is_verified", default=False)


@contextmanager
def verified_modules() -> Iterator[None]:
    """A context in which NVVM verifies the modules of a kernel before it compiles them."""
    token = _is_verified.set(True)
    try:
        yield
    finally:
        _is_verified.reset(token)


def verify_on_request(unit_class: type) -> None:
    """Makes NVVM verify modules in debug builds and in the context `verified_modules` alone.

    The verifier parses all modules, as the compiler does afterwards, which reports errors of syntax, names and types itself.
    Other errors that the verifier finds, such as the use of a value where it is not defined, are faults of code generation, and
    not of an author's functions, which Numba has checked. Checks and tests of kernels request it.

    Args:
        unit_class: numba-cuda's class of the modules of a kernel, for NVVM.
    """
    verify = unit_class.verify  # type: ignore[attr-defined]  # numba-cuda has no annotations

    @wraps(verify)
    def verify_if_requested(self: Any) -> None:
        if _is_verified.get() or "-g" in self._options_str:
            verify(self)

    unit_class.verify = verify_if_requested  # type: ignore[attr-defined]  # numba-cuda has no annotations


def replace_where_needed(nvvm: NumbaModule) -> None:
    """Makes numba-cuda replace declarations and attributes only in modules that have them.

    It searches each module for each of some fifteen declarations, and divides it into lines.

    Args:
        nvvm: numba-cuda's module `cudadrv.nvvm`.
    """
    replace = nvvm.llvm_replace

    @wraps(replace)
    def replace_if_needed(text: str) -> str:
        return str(replace(text)) if any(replaced in text for replaced in REPLACED_TEXTS) else text

    nvvm.llvm_replace = replace_if_needed


def widen_literals(dispatcher_class: type) -> None:
    """Compiles inlined functions once for all literal arguments of a type, as `inline_function` does on a CPU.

    For further calls with the same types, numba-cuda would bind the arguments and declare a class of signatures again.

    Args:
        dispatcher_class: the class into which numba-cuda wraps functions that Numba has compiled for the CPU.
    """
    template = dispatcher_class.get_call_template  # type: ignore[attr-defined]  # numba-cuda has no annotations

    def get_call_template(self: Any, args: Sequence[NumbaType], kws: dict[str, NumbaType]) -> Any:
        if not is_inline(self.py_func):
            return template(self, args, kws)
        args, kws = without_literals(args, kws)
        if kws:
            return template(self, args, kws)
        templates = self.__dict__.setdefault("_templates_by_types", {})
        stored = templates.get(args)
        if stored is None:
            stored = templates[args] = template(self, args, kws)
        return stored

    dispatcher_class.get_call_template = get_call_template  # type: ignore[attr-defined]  # numba-cuda has no annotations


def compile_for_caller(dispatcher: NumbaModule, config_stack: type) -> None:
    """Compiles a function that another one calls for the compute capability that its caller is compiled for.

    numba-cuda compiles it for the current device. For that it initializes its own driver, and queries it for each function.

    Args:
        dispatcher: numba-cuda's module `dispatcher`.
        config_stack: numba-cuda's class of the options of all functions that are being compiled.
    """
    current_device = dispatcher.get_current_device

    @wraps(current_device)
    def device_of_caller() -> Any:
        options = config_stack.top_or_none()  # type: ignore[attr-defined]  # numba-cuda has no annotations
        return current_device() if options is None else SimpleNamespace(compute_capability=options.compute_capability)

    dispatcher.get_current_device = device_of_caller


def name_options_once(options_class: Any) -> None:
    """Makes numba-cuda compress the options of functions, which are a part of their symbols, once for equal options.

    Args:
        options_class: numba-cuda's class of the options of a function.
    """
    compress = options_class.get_mangle_string
    names: dict[str, str] = {}  # {text of the options: text for a symbol}

    @wraps(compress)
    def get_mangle_string(self: Any) -> str:
        options = self.summary()
        if options not in names:
            names[options] = compress(self)
        return names[options]

    options_class.get_mangle_string = get_mangle_string


def link_modules_once(library_class: type) -> None:
    """Passes each LLVM module to NVVM once, and not once for each chain of calls that leads to its function.

    The text of a module that a reset and a step share is made once.

    Args:
        library_class: numba-cuda's class of a function's LLVM module with the libraries that it calls.
    """

    def llvm_strs(self: Any) -> list[str]:
        if self._llvm_strs is None:
            unique_libraries: dict[Any, None] = {}
            pending = list(self._linking_libraries)
            while pending:
                library = pending.pop()
                if library not in unique_libraries:
                    unique_libraries[library] = None
                    pending += getattr(library, "_linking_libraries", ())  # Libraries of external code have none.
            self._llvm_strs = [str(self._module), *(text for library in unique_libraries for text in module_text(library))]
        return self._llvm_strs  # type: ignore[no-any-return]  # numba-cuda has no annotations

    def module_text(library: Any) -> list[str]:
        if not hasattr(library, "_module"):
            return []
        if not hasattr(library, "_module_text"):
            library._module_text = str(library._module)
        return [library._module_text]

    library_class.llvm_strs = property(llvm_strs)  # type: ignore[attr-defined]  # numba-cuda has no annotations


def refresh_changed_registries(context_class: type) -> None:
    """Reads the registries of functions and types again only if something was added to them.

    A context reads some twenty registries, three times for each function that is compiled.

    Args:
        context_class: numba-cuda's class of typing contexts, or of contexts that generate code.
    """
    refresh = context_class.refresh  # type: ignore[attr-defined]  # numba-cuda has no annotations

    def list_registrations(context: Any) -> list[list[Any]]:
        loaders = context._registries.items()
        return [getattr(registry, name) for registry, loader in loaders for name in loader.registry_items]

    @wraps(refresh)
    def refresh_if_changed(self: Any) -> None:
        registrations, count = getattr(self, "_counted_registrations", ((), 0))
        if not registrations or sum(map(len, registrations)) != count:
            # What is added while the registries are read may not be among what is read, so the next call reads them again.
            count = sum(map(len, list_registrations(self)))
            refresh(self)
            self._counted_registrations = list_registrations(self), count

    context_class.refresh = refresh_if_changed  # type: ignore[attr-defined]  # numba-cuda has no annotations


def find_location_arguments_in_code(base: NumbaModule) -> None:
    """Makes numba-cuda find out from the code of an implementation whether it takes the location of the call.

    numba-cuda parses the whole signature of the implementation of each operator and each call in a function.

    Args:
        base: numba-cuda's module `core.base`.
    """
    has_location = base._has_loc

    @wraps(has_location)
    def has_location_argument(function: Callable[..., Any]) -> bool:
        if type(function) is not FunctionType or hasattr(function, "__wrapped__"):
            return bool(has_location(function))
        code = function.__code__
        return "loc" in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]

    base._has_loc = has_location_argument
