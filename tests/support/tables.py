"""Tables of what a function makes of rows, on every backend."""

import numpy as np

from gpuvec.engine.backends.device import parse_device
from gpuvec.engine.backends.device_arrays import address_of
from gpuvec.engine.backends.elementwise import Elementwise, make_elementwise_launcher
from gpuvec.engine.compiler.functions import device_function as compiled
from gpuvec.engine.compiler.functions import inline_function
from gpuvec.engine.compiler.memory_ops import row_of


def each(ops, function, columns):
    """What is done to a row: `function` of its uint32."""
    load_row, store_row, take, f = ops.load_row, ops.store_row, row_of(np.uint32, columns), compiled(function)

    @inline_function
    def one(b, e):
        store_row(b.out, e, f(load_row(b.given, e, take)))

    return one


def table(backend, function, rows, width, dtype):
    """(n, width) array: `function` of each row of uint32, computed in plain Python or, compiled, on a backend."""
    rows = np.asarray(rows, np.uint32)
    if backend == "python":
        return np.array([function(tuple(row)) for row in rows], dtype)
    place = parse_device(backend)
    given, out = place.arrays.asarray(rows), place.arrays.zeros((len(rows), width), dtype)
    work = Elementwise(function.__name__, ("given", "out"), each, (function, rows.shape[1]))
    make_elementwise_launcher(work, place)(0, address_of(given), address_of(out), len(rows))
    return out if isinstance(out, np.ndarray) else out.get()
