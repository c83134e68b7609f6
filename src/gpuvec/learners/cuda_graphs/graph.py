"""CUDA-graph capture of a function that reads and writes only tensors allocated before it, and copies of their values."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from gpuvec.engine.compiler.gc_pause import gc_paused
from gpuvec.errors import StaleGraphError, StateError

# The first call compiles kernels and creates library handles. The second one runs without both, as in the capture.
WARM_UPS = 2


class CapturedGraph:
    """A function that was captured in a CUDA graph; a call replays it with one launch.

    Args:
        graph: the graph.
        device: "cuda:0", ...
        version: as in `capture`.
    """

    def __init__(self, graph: torch.cuda.CUDAGraph, device: str, version: Callable[[], int]) -> None:
        self._graph, self._device, self._version = graph, device, version
        self._captured_version = version()

    def __call__(self) -> None:
        """Replays the graph, asynchronously.

        Raises:
            StaleGraphError: kernels were rebuilt since the capture.
        """
        if self._version() != self._captured_version:
            raise StaleGraphError(
                f"the environment's kernels were rebuilt (version {self._version()}, captured {self._captured_version}), so "
                "this graph would still run the old ones: set parameters before training, or name those that change in "
                "make_vec(per_env=...)."
            )
        with torch.cuda.device(self._device):
            self._graph.replay()

    def release(self) -> None:
        """Frees the graph, which cannot be replayed afterwards."""
        self._graph.reset()


def renew_gradient_nodes(parameters: Iterable[Tensor]) -> None:
    """Makes autograd create new nodes for the gradients of `parameters`, of any shapes (...), when they are used next.

    Such a node belongs to the stream on which it was created, and lives as long as any graph that leads to the parameter: that
    of a loss which a user keeps, or which is in the frames of an exception, or in frames that a tool for debugging keeps. In a
    capture the node of another stream would make that stream wait for the captured one, which CUDA refuses. Older graphs, and
    the values, addresses and hooks of the parameters, remain as they are.
    """
    for p in parameters:
        # A change of the type makes torch forget the node.
        values, other = p.data, torch.float32 if p.dtype == torch.float16 else torch.float16
        p.data = torch.empty(0, dtype=other, device=p.device)
        p.data = values


def capture(
    fn: Callable[[], object],
    device: str,
    generators: Iterable[torch.Generator],
    version: Callable[[], int],
    parameters: Iterable[Tensor] = (),
) -> CapturedGraph:
    """Captures `fn` in a CUDA graph.

    `fn` must not read tensors on the host or branch on them, and must write its results to tensors that it did not allocate. It
    is called `WARM_UPS` times before the capture: callers that need the state before it save and restore it.

    Args:
        fn: the function to capture.
        device: "cuda:0", ...
        generators: the random generators that `fn` uses; each replay advances them like a call of `fn`.
        version: returns a number that changes when a kernel that `fn` launches is rebuilt; called on the host at each replay.
        parameters: tensors, (...), that outlive `fn` and of whose gradients it computes some.
    """
    renew_gradient_nodes(parameters)
    # Garbage is collected before the capture, because the driver forbids freeing graphs and kernels during one.
    gc.collect()
    with torch.cuda.device(device), gc_paused():
        side_stream = torch.cuda.Stream()
        side_stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side_stream):
            for _ in range(WARM_UPS):
                fn()
        torch.cuda.current_stream().wait_stream(side_stream)
        graph = torch.cuda.CUDAGraph()
        for generator in generators:
            graph.register_generator_state(generator)
        # torch's own capture stream belongs to the device of its first capture, so `side_stream` is used for the capture too.
        # Calls of other threads are allowed, because JAX frees memory in its own threads at any time.
        with torch.cuda.graph(graph, stream=side_stream, capture_error_mode="thread_local"):
            fn()
    return CapturedGraph(graph, device, version)


def clone_tensors(tensors: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the same nesting with copies of the `tensors`, which have any shapes (...)."""
    return {name: x.detach().clone() if isinstance(x, Tensor) else clone_tensors(x) for name, x in tensors.items()}


@torch.no_grad()
def copy_into(tensors: Mapping[str, Any], saved: Mapping[str, Any]) -> None:
    """Copies `saved` into `tensors` in place, so that CUDA graphs and optimisers that hold their addresses stay valid.

    Args:
        tensors: nested dicts of tensors of any shapes (...).
        saved: the same nesting, shapes and dtypes.

    Raises:
        StateError: other names, shapes or dtypes; nothing is written then.
    """
    pairs = _pairs(tensors, saved, "")
    for own, other in pairs:
        own.copy_(other)


def _pairs(tensors: Mapping[str, Any], saved: Mapping[str, Any], path: str) -> list[tuple[Tensor, Tensor]]:
    if not isinstance(saved, Mapping) or tensors.keys() != saved.keys():
        names = list(saved) if isinstance(saved, Mapping) else type(saved).__name__
        raise StateError(
            f"this is no state of the learner: {path or 'it'} has {names}, expected {sorted(tensors)}; "
            "it was saved by another algorithm, network or environment."
        )
    pairs: list[tuple[Tensor, Tensor]] = []
    for name, own in tensors.items():
        other = saved[name]
        if not isinstance(own, Tensor):
            pairs += _pairs(own, other, f"{path}{name}.")
        elif not isinstance(other, Tensor):
            raise StateError(f"{path}{name} must be a tensor of shape {tuple(own.shape)}, got {type(other).__name__}.")
        elif own.shape != other.shape or own.dtype != other.dtype:
            raise StateError(
                f"{path}{name} must have shape {tuple(own.shape)} and dtype {own.dtype}, "
                f"got {tuple(other.shape)} and {other.dtype}: it was saved with other settings, or by another version."
            )
        else:
            pairs.append((own, other))
    return pairs
