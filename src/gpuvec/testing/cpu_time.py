"""A limit on the CPU time of this process, for compiled code that does not return."""

from __future__ import annotations

import math
import time
import warnings

try:
    import resource
except ModuleNotFoundError:  # Windows
    resource = None  # type: ignore[assignment]


def allow_cpu_time(seconds: float) -> None:
    """Sets the CPU time after which SIGXCPU ends this process, counted from now. Where there are no such limits, it warns.

    Args:
        seconds: the CPU time of all threads together, rounded up; infinity for no limit.
    """
    if resource is None:
        if not math.isinf(seconds):
            warnings.warn("this system has no limit of CPU time: end a call that does not return yourself.", stacklevel=2)
        return
    hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
    if math.isinf(seconds):
        resource.setrlimit(resource.RLIMIT_CPU, (hard, hard))
        return
    soft = math.ceil(time.process_time() + seconds) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (soft if hard == resource.RLIM_INFINITY else min(soft, hard), hard))
