#!/bin/sh
# Comparisons of recipes on a machine with a GPU that may have no network, within a time limit.
#
#     benchmarks/recipes_gpu.sh RESULTS MINUTES [STEP...]
#
# A STEP is `timing` (seconds of an epoch of each translation score, for the rows at equal time), `tests` (those of
# recorded steps), or `RECIPE:SET` for a comparison, in the order of importance: what the time does not suffice for
# is left to the next call, which goes on where this one stopped. By default all of translate's, and the narrow
# encoder's. RESULTS gets `runs/` with a file for each finished run, and a summary and a page of each comparison that
# is complete; RESULTS.tar.gz has all of it, and is unpacked first where RESULTS is not there.
#
# Variables: PYTHON (python3), with torch for CUDA; JOBS (5), processes that share the GPU; DEVICE (cuda);
# REGARD_DATA, the folder of the public sets; WHEELS, a folder of wheels, of which those are used that PYTHON lacks;
# MORE, further options for each comparison, such as `--quick`. On a machine with a network, fill WHEELS by
#
#     pip download --only-binary :all: --no-deps --python-version 3.12 --platform manylinux_2_28_x86_64 \
#         --platform manylinux_2_27_x86_64 --platform manylinux2014_x86_64 -d WHEELS colorama contourpy cycler \
#         fonttools kiwisolver lxml markdown-it-py matplotlib mdurl pillow portalocker pygments pyparsing \
#         python-dateutil regex rich sacrebleu six tabulate tokenizers safetensors
set -eu

[ $# -ge 2 ] || { sed -n '4p' "$0" | cut -c3- >&2; exit 2; }
results=$1 minutes=$2
shift 2
[ $# -gt 0 ] || set -- timing translate:multi30k-de-en regard.recipes.translate.small_device:multi30k-de-en
python=${PYTHON:-python3} jobs=${JOBS:-5} device=${DEVICE:-cuda}
root=$(cd "$(dirname "$0")/.." && pwd)
began=$(date +%s)

left() { echo $((began + 60 * minutes - $(date +%s))); }

mkdir -p "$(dirname "$results")"
[ -d "$results" ] || [ ! -f "$results.tar.gz" ] || tar -xzf "$results.tar.gz" -C "$(dirname "$results")"
mkdir -p "$results"
pack() { tar -czf "$results.tar.gz" -C "$(dirname "$results")" "$(basename "$results")"; }
trap pack EXIT
trap 'exit 1' HUP INT TERM

export PYTHONPATH="$root/src${PYTHONPATH:+:$PYTHONPATH}"
if [ -n "${WHEELS:-}" ]; then
    packages=$(mktemp -d)
    "$python" "$root/benchmarks/wheels.py" "$WHEELS" "$packages"
    PYTHONPATH="$PYTHONPATH:$packages"
fi
timing=$root/src/regard/recipes/translate/timing.json
[ ! -f "$results/timing.json" ] || cp "$results/timing.json" "$timing"

# A step that fails does not stop the next one; the exit status reports it.
status=0
for step in "$@"; do
    seconds=$(left)
    [ "$seconds" -gt 20 ] || { echo "$step: no time left"; continue; }
    echo "== $step, $seconds s left"
    case $step in
    tests)
        timeout "$seconds" "$python" -m pytest -q -s -n 0 -m gpu "$root/tests/recipes/test_recorded.py" || status=1 ;;
    timing)
        if [ ! -f "$results/timing.json" ]; then
            timeout "$seconds" "$python" -m regard.recipes.translate.measure_timing --device "$device" ${LIMIT:+--limit $LIMIT} \
                --out "$results/timing.json" && cp "$results/timing.json" "$timing" || status=1
        fi ;;
    *)
        # The command stops by itself between two looks at the clock; a process that hangs is ended soon after.
        timeout --signal=INT --kill-after=10 $((seconds + 15)) \
            "$python" -m regard.recipes.comparing --recipe "${step%%:*}" --set "${step#*:}" --out "$results" \
            --jobs "$jobs" --device "$device" --limit-minutes "$((seconds / 60)).$((seconds % 60 * 10 / 60))" \
            ${MORE:-} || status=1 ;;
    esac
done
exit $status
