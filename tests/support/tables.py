"""Evaluation of a function for the rows of an array on every backend."""

import numpy as np

from gpuvec.engine.backends.device import parse_device
from gpuvec.engine.backends.device_arrays import address_of
from gpuvec.engine.backends.elementwise import make_elementwise_launcher
from gpuvec.engine.backends.elementwise_operation import Elementwise
from gpuvec.engine.compiler.functions import device_function, inline_function
from gpuvec.engine.compiler.memory_ops import row_of


def make_row_function(ops, function, columns):
    """Returns the device function of an element: it stores `function` of the uint32 of a row."""
    load_row, store_row, row_type = ops.load_row, ops.store_row, row_of(np.uint32, columns)
    compiled_function = device_function(function)

    @inline_function
    def row_function(b, e):
        store_row(b.out, e, compiled_function(load_row(b.rows, e, row_type)))

    return row_function


def table(backend, function, rows, width, dtype):
    """Returns `function` of each row.

    Args:
        backend: "python" for plain Python; on the others the function is compiled.
        function: called with a tuple of uint32.
        rows: (n, columns) uint32.
        width: how many numbers the function returns.
        dtype: of these numbers.

    Returns:
        (n, width) array.
    """
    rows = np.asarray(rows, np.uint32)
    if backend == "python":
        return np.array([function(tuple(row)) for row in rows], dtype)
    device = parse_device(backend)
    device_rows, out = device.arrays.asarray(rows), device.arrays.zeros((len(rows), width), dtype)
    elementwise = Elementwise(function.__name__, ("rows", "out"), make_row_function, (function, rows.shape[1]))
    make_elementwise_launcher(elementwise, device)(0, address_of(device_rows), address_of(out), len(rows))
    return out if isinstance(out, np.ndarray) else out.get()
