#!/bin/bash
# Trains on two machines without a scheduler. Start it on both within a minute:
#
#     bash two_machines.sh 0 10.0.0.1 8 --env gpuvec/CartPole-v1 --num-envs 524288    # on the machine with this address
#     bash two_machines.sh 1 10.0.0.1 8 --env gpuvec/CartPole-v1 --num-envs 524288    # on the other one
#
# The words are the number of the machine, the address of machine 0, the number of processes on each machine (its GPUs), and those
# of `gpuvec train`. Machine 0 prints, and writes the run folder. PORT must be open on machine 0.
set -euo pipefail

if (($# < 3)); then
    echo "usage: $0 MACHINE ADDRESS PROCESSES [OPTIONS OF gpuvec train]" >&2
    exit 2
fi
machine=$1 address=$2 processes=$3
shift 3

export OMP_NUM_THREADS=1
exec torchrun --nnodes 2 --node-rank "$machine" --nproc-per-node "$processes" \
    --rdzv-backend static --rdzv-endpoint "$address:${PORT:-29500}" --rdzv-id two-machines \
    -m gpuvec train --shards "$((2 * processes))" "$@"
