#!/usr/bin/env bash
# All that is to be shown on a GPU: tests, compute-sanitizer, benchmarks with training among them, and the record of it.
#
#     bash tools/gpu_session.sh OUT [PART ...]
#
# Parts: tests memory sanitizer record, and the benchmarks that `python benchmarks/tools/suite.py --list` names with the time that each
# may take; all of them without a choice. A part that fails does not stop the next; the exit status is the number of parts that
# failed. Several calls with the same OUT add up, so that they can be short; record comes last. OUT gets session.log, summary.txt,
# figures.jsonl, tests.xml, memory.xml, sanitizer.log, record.json, which belongs into gpu-results/, and results/ with the tables and
# curves, which belong into benchmarks/results/. PYTHON names the interpreter, LIMIT the seconds that all parts together may take.
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
    left=$((${LIMIT:-6000} - SECONDS))
    [[ $name == record ]] || left=$((left - 30)) # the record is made whatever else there was time for
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
    tests) # single threads, since each of the workers would start one per core
        OMP_NUM_THREADS=1 part tests 240 "$python" -m pytest tests -m gpu -n "$workers" --dist worksteal --timeout 120 \
            -q --no-header -p no:cacheprovider -p no:benchmark --deselect tests/gpu/test_memory.py --junitxml "$out/tests.xml"
        ;;
    memory) # alone on the device, whose free memory it reads
        part memory 90 "$python" -m pytest tests/gpu/test_memory.py --timeout 100 -q --no-header -p no:cacheprovider -p no:benchmark \
            --junitxml "$out/memory.xml"
        ;;
    sanitizer) part sanitizer 360 "$python" tests/gpu/sanitize.py --seconds 340 --json "$figures" --log "$out/sanitizer.log" ;;
    record)
        part record 60 "$python" benchmarks/tools/record.py --figures "$figures" --tests "$out/tests.xml" "$out/memory.xml" \
            --to "$out/record.json" --csv "$out/results"
        ;;
    *) part "$1" 600 "$python" benchmarks/tools/suite.py "$1" --json "$figures" --to "$out/results" ;; # which knows how long it may take
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
