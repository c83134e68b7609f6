"""Tables of what a function makes of rows, on every backend."""

import numpy as np

from gpuvec.engine.backends.device import device
from gpuvec.engine.backends.elementwise import Rowwise, launcher
from gpuvec.engine.compiler.functions import device as compiled
from gpuvec.engine.compiler.functions import inline
from gpuvec.engine.compiler.memory_ops import like
from gpuvec.engine.simulation import address


def each(access, function, columns):
    """What is done to a row: `function` of its uint32."""
    load_row, store_row, take, f = access.load_row, access.store_row, like(np.uint32, columns), compiled(function)

    @inline
    def one(b, e):
        store_row(b.out, e, f(load_row(b.given, e, take)))

    return one


def table(backend, function, rows, width, dtype):
    """(n, width) array: `function` of each row of uint32, computed in plain Python or, compiled, on a backend."""
    rows = np.asarray(rows, np.uint32)
    if backend == "python":
        return np.array([function(tuple(row)) for row in rows], dtype)
    place = device(backend)
    given, out = place.arrays.asarray(rows), place.arrays.zeros((len(rows), width), dtype)
    work = Rowwise(function.__name__, ("given", "out"), each, (function, rows.shape[1]))
    launcher(work, place)(0, address(given), address(out), len(rows))
    return out if isinstance(out, np.ndarray) else out.get()
