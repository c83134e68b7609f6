#!/usr/bin/env bash
# All that is to be shown on a GPU, in about twenty minutes: tests, compute-sanitizer, benchmarks, training, and the record of it.
#
#     bash tools/gpu_session.sh OUT [PART ...]
#
# Parts: tests env_step tag_step eager_latency sanitizer learner_kernels learners cold_start memory training solve record; all of
# them without a choice. Each has a time limit of its own, and a part that fails does not stop the next; the exit status is the
# number of parts that failed. Several calls with the same OUT add up, so that they can be short; record comes last. OUT gets
# session.log, summary.txt, figures.jsonl, tests.xml, memory.xml, sanitizer.log, solve.csv (curves, which belong into
# benchmarks/results/) and record.json, which belongs into gpu-results/. PYTHON names the interpreter, LIMIT the seconds that
# all parts together may take.
set -uo pipefail
cd "$(dirname "$0")/.."

out=$(realpath -m "${1:?usage: bash tools/gpu_session.sh OUT [PART ...]}")
shift
python=${PYTHON:-python3}
mkdir -p "$out"
log=$out/session.log figures=$out/figures.jsonl summary=$out/summary.txt
export PYTHONPATH=$PWD/src:$PWD/envs${PYTHONPATH:+:$PYTHONPATH}
export PYTHONUNBUFFERED=1 XLA_PYTHON_CLIENT_PREALLOCATE=false GPUVEC_REQUIRE_GPU=1
workers=$(nproc)
workers=$((workers > 12 ? 12 : workers))
failed=0

# part NAME SECONDS COMMAND...: runs the command, and notes how it ended and how long it took.
part() {
    local name=$1 limit=$2 start=$SECONDS status left
    shift 2
    left=$((${LIMIT:-1200} - SECONDS))
    [[ $name == record ]] || left=$((left - 30)) # the record is made whatever else there was time for
    limit=$((limit < left ? limit : left))
    if ((limit < 10)); then
        printf '%-14s no time left\n' "$name" | tee -a "$log" "$summary"
        failed=$((failed + 1))
        return
    fi
    echo "===== $name (at most $limit s): $*" | tee -a "$log"
    timeout --kill-after=10 "$limit" "$@" 2>&1 | tee -a "$log"
    status=${PIPESTATUS[0]}
    ((status == 0)) || failed=$((failed + 1))
    printf '%-14s status %3d   %4d s\n' "$name" "$status" $((SECONDS - start)) | tee -a "$log" "$summary"
}

run() {
    case $1 in
    tests) # single threads, since each of the workers would start one per core
        OMP_NUM_THREADS=1 part tests 240 "$python" -m pytest tests -m gpu -n "$workers" --dist worksteal --timeout 120 \
            -q --no-header -p no:cacheprovider -p no:benchmark --deselect tests/gpu/test_memory.py --junitxml "$out/tests.xml"
        ;;
    memory) # alone on the device, whose free memory it reads
        part memory 90 "$python" -m pytest tests/gpu/test_memory.py --timeout 100 -q --no-header -p no:cacheprovider -p no:benchmark \
            --junitxml "$out/memory.xml"
        ;;
    sanitizer) part sanitizer 360 "$python" tests/gpu/sanitize.py --seconds 340 --json "$figures" --log "$out/sanitizer.log" ;;
    env_step) part env_step 150 "$python" benchmarks/env_step.py --json "$figures" ;;
    tag_step) part tag_step 100 "$python" benchmarks/tag_step.py --json "$figures" ;;
    eager_latency) part eager_latency 60 "$python" benchmarks/eager_latency.py --json "$figures" ;;
    cold_start) part cold_start 70 "$python" benchmarks/cold_start.py --json "$figures" ;;
    learner_kernels) part learner_kernels 60 "$python" benchmarks/learner_kernels.py --json "$figures" ;;
    learners) part learners 200 "$python" benchmarks/learners.py --json "$figures" ;;
    training) part training 300 "$python" benchmarks/tag_training.py --json "$figures" ;;
    solve) part solve 300 "$python" benchmarks/solve.py --parallel 6 --to "$out/solve.csv" --json "$figures" ;;
    record)
        part record 60 "$python" benchmarks/record.py --figures "$figures" --tests "$out/tests.xml" "$out/memory.xml" \
            --to "$out/record.json"
        ;;
    *)
        echo "there is no part called $1" >&2
        failed=$((failed + 1))
        ;;
    esac
}

nvidia-smi --query-gpu=name,driver_version,memory.used --format=csv,noheader 2>&1 | tee -a "$log"
for name in "${@:-tests env_step tag_step eager_latency sanitizer learner_kernels learners cold_start memory training solve record}"; do
    for one in $name; do
        run "$one"
    done
done
echo "===== in all: $SECONDS s, $failed failed"
cat "$summary"
exit "$failed"
