#!/usr/bin/env bash
# Runs everything that needs a GPU: tests, compute-sanitizer and benchmarks, which include trainings, and makes the record of it.
#
#     bash tools/gpu_session.sh OUT [PART ...]
#
# Parts are tests, memory, sanitizer, record, and the benchmarks that `python benchmarks/tools/suite.py --list` prints with their
# time limits; by default all of them run. If a part fails, the next one runs; the exit status is the number of parts that failed.
# Several short calls can share the folder OUT; record must be the last part. The script writes session.log, summary.txt,
# figures.jsonl, tests.xml, memory.xml, sanitizer.log, record.json and results/ to OUT. record.json is then copied to gpu-results/,
# and the tables and curves in results/ to benchmarks/results/. PYTHON is the interpreter, LIMIT the seconds for all parts together.
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

# part NAME SECONDS COMMAND...: runs the command for at most so many seconds; logs its exit status and its duration.
part() {
    local name=$1 limit=$2 start=$SECONDS status left
    shift 2
    left=$((${LIMIT:-6000} - SECONDS))
    [[ $name == record ]] || left=$((left - 30)) # keeps time for the record
    limit=$((limit < left ? limit : left))
    if ((limit < 10)); then
        printf '%-20s no time left\n' "$name" | tee -a "$log" "$summary"
        failed=$((failed + 1))
        return
    fi
    echo "===== $name (at most $limit s): $*" | tee -a "$log"
    timeout --kill-after=10 "$limit" "$@" 2>&1 | tee -a "$log"
    status=${PIPESTATUS[0]}
    ((status == 0)) || failed=$((failed + 1))
    printf '%-20s status %3d   %4d s\n' "$name" "$status" $((SECONDS - start)) | tee -a "$log" "$summary"
}

run() {
    case $1 in
    tests) # one thread per worker; each would start as many as there are cores
        OMP_NUM_THREADS=1 part tests 330 "$python" -m pytest tests -m gpu -n "$workers" --dist worksteal --timeout 120 \
            -q --no-header -p no:cacheprovider -p no:benchmark --deselect tests/gpu/test_memory.py --junitxml "$out/tests.xml"
        ;;
    memory) # runs alone, since it reads the free memory of the device
        part memory 90 "$python" -m pytest tests/gpu/test_memory.py --timeout 100 -q --no-header -p no:cacheprovider -p no:benchmark \
            --junitxml "$out/memory.xml"
        ;;
    sanitizer)
        part sanitizer 420 "$python" tests/gpu/sanitize.py --seconds 200 --together 390 --json "$figures" --log "$out/sanitizer.log"
        ;;
    record)
        part record 60 "$python" benchmarks/tools/record.py --figures "$figures" --tests "$out/tests.xml" "$out/memory.xml" \
            --to "$out/record.json" --csv "$out/results"
        ;;
    *) part "$1" 600 "$python" benchmarks/tools/suite.py "$1" --json "$figures" --to "$out/results" ;; # has its own time limit
    esac
}

nvidia-smi --query-gpu=name,driver_version,memory.used --format=csv,noheader 2>&1 | tee -a "$log"
if (($# == 0)); then
    mapfile -t names < <("$python" benchmarks/tools/suite.py --list | awk '{ print $1 }')
    set -- tests memory sanitizer "${names[@]}" record
fi
for name in "$@"; do
    run "$name"
done
echo "===== in all: $SECONDS s, $failed failed"
cat "$summary"
exit "$failed"
