"""Seeds of independent random numbers, derived from the one seed of a training.

`seed + 1` for a second purpose is the first purpose's stream of the next seed: runs with seeds 1 and 2 would share numbers. A
hash of seed, purpose and role has no such neighbours. The environments of a training take its seed as it is, so that
`env.reset(seed=seed)` shows what the training starts with.
"""

from __future__ import annotations

import hashlib

from gpuvec.learners.algorithms import ALL

WEIGHTS, ACTIONS, MINIBATCHES = "weights", "actions", "minibatches"  # purposes of a policy's random numbers
CONFIRMATION, EVALUATION = "confirmation", "evaluation"  # of the environments that are played without learning


def stream_seed(seed: int, purpose: str, role: str = ALL) -> int:
    """A seed from 0 to 2**63 - 1 that depends on all three, so that different ones give independent random numbers.

    Args:
        seed: of the training, from 0 to 2**63 - 1.
        purpose: one of the constants above.
        role: whose random numbers, if several policies play.
    """
    parts = (str(seed), purpose, role)
    text = "".join(f"{len(part)}:{part}" for part in parts)  # lengths, so that no two triples give one text
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") >> 1
