"""Seeds of independent random numbers, derived from the one seed of a training.

If a second purpose had the seed `seed + 1`, runs with seeds 1 and 2 would share random numbers. Seeds that are hashes of seed,
purpose and role are independent. The environments of a training take its seed unchanged, so that `env.reset(seed=seed)` returns
the observations with which the training starts.
"""

from __future__ import annotations

import hashlib

from gpuvec.learners.algorithms import ALL

WEIGHTS, ACTIONS, MINIBATCHES = "weights", "actions", "minibatches"  # purposes of a policy's random numbers
# Purposes of an evaluation's environments and actions: during the training, and at its end
INTERMEDIATE_EVALUATION, EVALUATION = "intermediate evaluation", "evaluation"


def stream_seed(seed: int, purpose: str, role: str = ALL, index: int = 0) -> int:
    """Returns a seed from 0 to 2**63 - 1 that is a hash of all arguments, so that random numbers are independent.

    Args:
        seed: of the training, from 0 to 2**63 - 1.
        purpose: one of the constants above.
        role: the role of the policy that uses the random numbers, if there are several.
        index: the number of the shard, or of the iteration, that uses them, if each has its own.
    """
    parts = (str(seed), purpose, role, *([str(index)] if index else []))
    text = "".join(f"{len(part)}:{part}" for part in parts)  # the lengths make the text unique
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") >> 1
