"""The intrinsics that copy data between global and shared memory (see `copy_types`).

An intrinsic emits the LLVM instructions of all copies of a segment. As Python source, with a call for each load and each store
and a condition for each word that may not exist, copies took a fifth of the time in which Numba compiled an environment.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

from llvmlite import ir

from gpuvec.engine.compiler.copy_emitter import CopyEmitter
from gpuvec.engine.compiler.copy_types import BlockCopy, CopyLaunch
from gpuvec.engine.compiler.numba_api import NumbaApi
from gpuvec.engine.compiler.types import DeviceFunction, Intrinsic, NumbaType, Signature, TargetContext, TypingContext


def make_block_copies(numba: NumbaApi) -> Callable[[tuple[BlockCopy, ...], CopyLaunch], DeviceFunction]:
    """Declares `ArrayOps.block_copies` to `numba`."""

    @cache
    def block_copies(copies: tuple[BlockCopy, ...], launch: CopyLaunch) -> DeviceFunction:
        @numba.intrinsic
        def copy_words(
            typingctx: TypingContext,
            batch: NumbaType,
            work: NumbaType,
            first_env: NumbaType,
            num_envs: NumbaType,
            thread: NumbaType,
            store: NumbaType,
        ) -> Intrinsic:
            sig = numba.types.void(batch, work, first_env, num_envs, thread, store)
            return sig, _code_generator(numba, typingctx, sig, copies, launch)

        return copy_words

    return block_copies


def _code_generator(
    numba: NumbaApi, typingctx: TypingContext, sig: Signature, copies: tuple[BlockCopy, ...], launch: CopyLaunch
) -> Callable[..., None]:
    """Returns the code generator of the intrinsic with the signature `sig`, which compiles the function that stores, if any."""
    _, work, *_, store = sig.args
    store_sig = None
    if store != numba.types.none:
        arguments = work, numba.types.int64, copies[0].word.item_type(numba)
        store_sig = typingctx.resolve_function_type(store, arguments, {})

    def codegen(context: TargetContext, builder: ir.IRBuilder, sig: Signature, args: Sequence[ir.Value]) -> None:
        CopyEmitter(numba, context, builder, sig, args, launch, store_sig).emit_block(copies)

    return codegen
