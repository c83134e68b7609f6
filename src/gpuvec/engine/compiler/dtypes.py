"""Short names of the scalar types that kernel code casts to."""

from __future__ import annotations

import numpy as np

f32, i32, i64, b1 = np.float32, np.int32, np.int64, np.bool_
u8, u32, u64 = np.uint8, np.uint32, np.uint64
