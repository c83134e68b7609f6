"""Rows of a tensor by their numbers.

Letters: R rows, B rows that are gathered.
"""

from __future__ import annotations

import torch
from torch import Tensor

# In decreasing order of their size. torch's `index_select` computes an address for each element, so an image of uint8 takes
# fewer instructions as a row of wider elements.
WIDE_DTYPES = (torch.complex128, torch.int64, torch.int32, torch.int16)


def gather_rows(x: Tensor, index: Tensor) -> Tensor:
    """Returns the rows `index`, (B,) int64, of `x`, (R, ...), as a new tensor, (B, ...)."""
    if not x.is_contiguous() or x.dim() == 1:
        return x.index_select(0, index)
    rows = x.flatten(1)
    for dtype in WIDE_DTYPES:
        size = dtype.itemsize
        if size > x.element_size() and not (rows.shape[1] * x.element_size() % size or x.data_ptr() % size):
            return rows.view(dtype).index_select(0, index).view(x.dtype).view(len(index), *x.shape[1:])
    return x.index_select(0, index)
