"""CUDA-graph capture of a function that only reads and writes tensors which are there before it."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable

import torch

from gpuvec.engine.compiler.gc_pause import gc_paused
from gpuvec.errors import StaleGraphError

WARM_UPS = 2  # the first call compiles kernels and creates library handles, the second finds them there


def capture(
    fn: Callable[[], object], device: str, generators: Iterable[torch.Generator], version: Callable[[], int]
) -> Callable[[], None]:
    """`fn` recorded once, and replayed as one launch at each call of what is returned.

    `fn` must read no tensor on the host, branch on none, and leave its results in tensors that it did not allocate. It
    runs `WARM_UPS` times for real beforehand, so whoever wants to begin where it was saves its state and loads it again.

    Args:
        fn: what to record.
        device: "cuda:0", ...
        generators: of the random numbers that `fn` draws; each replay goes on in their streams as a call of `fn` would.
        version: a number that changes when a kernel that `fn` launches is rebuilt; asked at each replay, on the host.

    Raises:
        StaleGraphError: in a replay, when kernels were rebuilt since the capture.
    """
    gc.collect()  # garbage goes before and none within: to free a graph or a kernel is what the driver forbids meanwhile
    with torch.cuda.device(device), gc_paused():
        ahead = torch.cuda.Stream()
        ahead.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(ahead):
            for _ in range(WARM_UPS):
                fn()
        torch.cuda.current_stream().wait_stream(ahead)
        graph = torch.cuda.CUDAGraph()
        for generator in generators:
            graph.register_generator_state(generator)
        # On our stream: torch's lies on the device on which it first captured anything. What other threads ask of the driver is
        # their own affair: JAX gives memory back on threads of its own, at any time.
        with torch.cuda.graph(graph, stream=ahead, capture_error_mode="thread_local"):
            fn()
    captured = version()

    def replay() -> None:
        if version() != captured:
            raise StaleGraphError(
                f"the environment's kernels were rebuilt (version {version()}, captured {captured}), so this graph would still "
                "run the old ones: set parameters before training, or name those that change in make_vec(per_env=...)."
            )
        with torch.cuda.device(device):
            graph.replay()

    return replay
