"""Counts instructions in the machine code of a kernel."""

from __future__ import annotations

import struct

INSTRUCTION_BYTES = 16  # since Volta
# The lowest nine bits of an instruction are its operation; those above say where its operands are.
LDG = 0x181  # a load of global memory
LDL, STL = 0x183, 0x187  # loads and stores of local memory
LDS = 0x184  # a load of shared memory
BAR = 0x11D  # a barrier of a block, or of some of its warps
HGMMA = 0x1F0  # a product of a warpgroup on Hopper's tensor cores, wgmma


def count_instructions(cubin: bytes, operation: int) -> int:
    """Returns how often an operation occurs in the text sections of a cubin, which is a 64-bit ELF file.

    Args:
        cubin: the machine code.
        operation: the lowest nine bits of the instruction.
    """
    section_table, section_bytes, count, names = *struct.unpack_from("<Q", cubin, 40), *struct.unpack_from("<HHH", cubin, 58)
    sections = [struct.unpack_from("<IIQQQQ", cubin, section_table + k * section_bytes) for k in range(count)]
    name_table = sections[names][4]
    number = 0
    for name, _, _, _, offset, size in sections:
        if cubin[name_table + name :].startswith(b".text."):
            words = struct.unpack_from(f"<{size // 8}Q", cubin, offset)
            number += sum(word & 0x1FF == operation for word in words[:: INSTRUCTION_BYTES // 8])
    return number
