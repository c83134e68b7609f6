#!/usr/bin/env bash
# Searches for settings of agents with four environments on a GPU, and writes them as defaults and into docs/tuned.md.
#
#     bash tools/search_tuned.sh OUT
#
# The folders of the searches are created in OUT. PYTHON is the interpreter.
set -euo pipefail
cd "$(dirname "$0")/.."

out=$(realpath -m "${1:?usage: bash tools/search_tuned.sh OUT}")
python=${PYTHON:-python3}
export PYTHONPATH=$PWD/src:$PWD/envs${PYTHONPATH:+:$PYTHONPATH}
ranges=(--param learning_rate log 1e-4 3e-2 --param gamma linear 0.9 0.9995 --param gae_lambda linear 0.8 1
    --param ent_coef linear 0 0.05)

# search ENV STEPS INTERVAL [OPTION ...]: an agent is evaluated after every INTERVAL iterations of 512 steps.
search() {
    local env=$1 steps=$2 interval=$3
    shift 3
    "$python" -m gpuvec sweep --env "gpuvec/$env" "${ranges[@]}" --device cuda --trials 4096 --num-envs 4 --num-steps 128 \
        --total-steps "$steps" --evaluate-every "$interval" --runs "$out" "$@"
}

search CartPole-v1 100000 2
search Acrobot-v1 400000 4 --params low -1 high 1
search MountainCar-v0 2000000 16 --params low -1.2 high 0.45
search Pendulum-v1 2000000 1024 # it has no threshold
"$python" tools/write_tuned.py "$out"/*__sweep__*
