#!/usr/bin/env bash
# Checks on a machine with a GPU what cannot be checked without one, and prints one table.
#
#   tests/gpu/check.sh                      every step but `mutants`, `seeds` and `model`
#   tests/gpu/check.sh wrong honest         some of them
#
# Steps: starters wrong honest speed sanitizer switches selftest tests mutants seeds model. Run from the repository's root, after
# `cargo build --release`; WARPSMITH names another binary, OUT where logs go (target/gpu-check).
# A .diff in tests/gpu/wrong is a kernel that ships with a mistake in it (made.sh). The first lines of a file there say how it is judged: `# expect: reject|crash` (any of these; `revert` is what is
# right and no gain), `# shape:` and `# dtype:` where it is timed, `# examine: 10` (for so many seconds), `# against: FILE` (which it
# must beat, so that what only a confirmation meets is met), `# alone: WHY` (not beside others). `# switch: NAME` names the defence without which it is accepted: the step
# `switches` judges it by the binary WARPSMITH_WEAKENED (built with `--features weakened`) with WARPSMITH_WITHOUT=NAME.
# SELFTEST_PAIRS (300), SELFTEST_TRITON_PAIRS (60), SEEDS (40) and MODEL (models/llama-7b) are for the steps of these names. Files in Triton
# need a Python that has it (WARPSMITH_PYTHON); without one their rows are skipped. `seeds` judges under SEEDS seeds in the
# first stage and under three in everything: each starter, each kernel of the device's folder and each honest one; its rows say how long
# they took. SEED (1) is the first of its seeds. `mutants` judges MUTANTS (30) mutants of each starter (docs/mutation-testing.md).
# LANES (1; mutants 12): so many files of a step are judged at once, where no time is measured; a quarter of them where each is examined in
# full, which fills the device's memory.
# FILES (everything): `wrong`, `honest`, `switches` and `seeds` judge only files whose path this extended regular expression matches.
# Exit code: 0 all well, or no device; 1 something is not as expected; 2 nothing could be checked.
set -u
export LC_ALL=C
cd "$(dirname "$0")/../.."

warpsmith=${WARPSMITH:-target/release/warpsmith}
out=${OUT:-target/gpu-check}
steps=${*:-starters wrong honest speed sanitizer switches selftest tests}
for step in $steps; do
    case $step in
        starters | wrong | honest | speed | sanitizer | switches | selftest | tests | mutants | seeds | model) ;;
        *)
            echo "unknown step $step: starters wrong honest speed sanitizer switches selftest tests mutants seeds model" >&2
            exit 2
            ;;
    esac
done
if [ ! -x "$warpsmith" ]; then
    echo "$warpsmith is not there: cargo build --release, or name another with WARPSMITH" >&2
    exit 2
fi
mkdir -p "$out" || exit 2
shopt -s nullglob

rows=()
lanes=${LANES:-1}

# row CHECK EXPECTED SEEN SECONDS ok|FAILED|skipped
row() {
    rows+=("$(printf '%-44s %-24s %-32s %8s  %s' "$1" "$2" "$3" "$4" "$5")")
    # A line at once as well: the table may be minutes away.
    echo "${rows[-1]}"
}

# each FUNCTION FILE...: calls it for each file, so many at once as there are lanes
each() {
    local function=$1 file count=0 lane alone=() files=()
    shift
    for file; do
        if [[ $file == *.py ]] && [ "$has_triton" = 0 ]; then
            row "$function $(name "$file")" "a verdict" "no Python with triton" - skipped
        else
            files+=("$file")
        fi
    done
    set -- "${files[@]}"
    if [ "$lanes" = 1 ]; then
        for file; do "$function" "$file"; done
        return
    fi
    for file; do
        if [ -n "$(said alone "$file")" ]; then
            alone+=("$file")
            continue
        fi
        while (($(jobs -rp | wc -l) >= lanes)); do wait -n; done
        # The device is locked in the cache's folder: each lane has its own, with what was calibrated.
        lane=$out/lane-$count
        rm -rf "$lane" && cp -r "$cache" "$lane"
        (
            rows=()
            export WARPSMITH_CACHE=$lane
            "$function" "$file"
            printf '%s\n' "${rows[@]}" >"$out/rows-$count"
            rm -rf "$lane"
        ) &
        count=$((count + 1))
    done
    wait
    for ((lane = 0; lane < count; lane++)); do
        mapfile -t -O ${#rows[@]} rows <"$out/rows-$lane"
        rm -f "$out/rows-$lane"
    done
    for file in "${alone[@]}"; do "$function" "$file"; done
}

# verdict GOOD: a word for the last column
verdict() { if [ "$1" = 1 ]; then echo ok; else echo FAILED; fi; }

# chosen FILE...: those that FILES asks for, a line each
chosen() { printf '%s\n' "$@" | grep -E -e "${FILES:-.}"; }

# wrong_files: kernels of tests/gpu/wrong that FILES asks for; those that are a diff are made
wrong_files() {
    local file made
    mkdir -p "$out/made"
    for file in $(chosen tests/gpu/wrong/*.cu tests/gpu/wrong/*.py tests/gpu/wrong/*.diff); do
        if [[ $file == *.diff ]]; then
            made=$out/made/$(name "$file").cu
            if ! tests/gpu/made.sh "$file" "$made" >&2; then continue; fi
            file=$made
        fi
        echo "$file"
    done
}

# keep FILE: the first 16 MiB of what comes
keep() {
    head -c 16777216 >"$1"
    cat >/dev/null
}

# timed LIMIT_S LOG COMMAND...: runs it, output to LOG.out and LOG.err; sets code and took (seconds with one decimal)
timed() {
    local limit=$1 log=$2 began=${EPOCHREALTIME/./} tenths
    shift 2
    # What a candidate prints without end must not fill the disk; whoever writes must not notice.
    timeout --kill-after=10 "$limit" "$@" 2> >(keep "$out/$log.err") | keep "$out/$log.out"
    code=${PIPESTATUS[0]}
    tenths=$(((${EPOCHREALTIME/./} - began) / 100000))
    took=$((tenths / 10)).$((tenths % 10))
}

# field NAME FILE: the first string or number of this name in pretty-printed JSON
field() { sed -n "s/^ *\"$1\": \"\{0,1\}\([^\",]*\)\"\{0,1\},\{0,1\}$/\1/p" "$2" | head -n 1; }

# name FILE: without folders and extension; a Triton file of kernels/ has a CUDA twin of that name
name() {
    local file=${1##*/}
    if [[ $1 == kernels/triton/* ]]; then echo "triton-${file%.*}"; else echo "${file%.*}"; fi
}

# expected FILE: the statuses in its first lines, as `reject|crash`
expected() { sed -n 's/^# expect: *//p' "$1" | head -n 1; }

# operation FILE: the one that its front matter names
operation() { sed -n 's/^op *= *"\([^"]*\)".*/\1/p' "$1" | head -n 1; }

# said NAME FILE: what a line of this name in its first lines says
said() { sed -n "1,12s/^# $1: *//p" "$2" | head -n 1; }

# judged LOG FILE: judges it as its first lines say
judged() {
    local log=$1 file=$2 told=() line
    line=$(said shape "$file"); if [ -n "$line" ]; then told+=(--shape "$line"); fi
    line=$(said dtype "$file"); if [ -n "$line" ]; then told+=(--dtype "$line"); fi
    line=$(said examine "$file"); if [ -n "$line" ]; then told+=("--examine=$line"); fi
    line=$(said against "$file"); if [ -n "$line" ]; then told+=(--against "$line"); fi
    bench 300 "$log" "$file" --json "${told[@]}"
}

# seen: the status of the judged kernel, its stage, or what went wrong instead
seen() {
    local status stage
    status=$(field status "$out/$1.out")
    # A verdict that is none of these has no stage of its own.
    case $status in reject | crash | timeout | error) stage=$(field stage "$out/$1.out") ;; *) stage= ;; esac
    if [ -n "$status" ]; then
        echo "$status${stage:+ at $stage}"
    elif [ "$code" = 124 ] || [ "$code" = 137 ]; then
        echo "no answer in time"
    else
        echo "exit $code: $(head -n 1 "$out/$1.err" | cut -c 1-60)"
    fi
}

bench() {
    local limit=$1 log=$2
    shift 2
    timed "$limit" "$log" "$warpsmith" bench --backend cuda "$@"
}

# accepted CHECK LOG FILE: a kernel that must be judged correct
accepted() {
    bench 300 "$2" "$3" --json
    local what good=0
    what=$(seen "$2")
    if [ "$code" = 0 ]; then good=1; fi
    # A file for newer devices only is not for this one; that is said in so many words.
    if [ "$code" = 1 ] && [[ $what == "error at compile" ]] && grep -q '"why": "it is for ' "$out/$2.out"; then
        row "$1" "correct" "not for this device" "$took" skipped
        return
    fi
    row "$1" "correct" "$what" "$took" "$(verdict $good)"
}

starters() {
    local files=(kernels/cuda/*.cu kernels/triton/*.py)
    if [ ${#files[@]} = 0 ]; then row "starters" "some in kernels/cuda" "none" - FAILED; fi
    each starter "${files[@]}"
}

starter() {
    accepted "starter $(name "$1")" "starter-$(name "$1")" "$1"
}

wrong() {
    local file files=() examined=() lanes=$lanes
    while read -r file; do
        if [ -n "$(said examine "$file")" ]; then examined+=("$file"); else files+=("$file"); fi
    done < <(wrong_files)
    each wrong_one "${files[@]}"
    # So many seconds of an examination are to ask what they ask on a device that has nothing else to do.
    lanes=$(((lanes + 3) / 4))
    each wrong_one "${examined[@]}"
}

wrong_one() {
    local file=$1 log want what good=0
    log=wrong-$(name "$file")
    want=$(expected "$file")
    judged "$log" "$file"
    what=$(seen "$log")
    # What is right and no gain (`revert`) is no failure of the program.
    if [ "$code" -le 1 ] && [[ "|$want|" == *"|${what%% *}|"* ]]; then good=1; fi
    # Newer devices only, as above: it is then refused for the wrong reason.
    if [ "$code" = 1 ] && [[ $what == "error at compile" ]] && grep -q '"why": "it is for ' "$out/$log.out"; then
        row "wrong $(name "$file")" "$want" "not for this device" "$took" skipped
        return
    fi
    row "wrong $(name "$file")" "$want" "$what" "$took" "$(verdict $good)"
}

# No defence is decoration: without the one that a file names it is accepted.
switches() {
    local files
    mapfile -t files < <(wrong_files | xargs -r grep -l '^# switch:')
    each switched_off "${files[@]}"
}

switched_off() {
    local file=$1 log what good=0 switch
    switch=$(said switch "$file")
    if [ -z "${WARPSMITH_WEAKENED:-}" ]; then
        row "without $switch: $(name "$file")" "correct" "WARPSMITH_WEAKENED is not set" - skipped
        return
    fi
    log=switch-$(name "$file")
    WARPSMITH_WITHOUT=$switch warpsmith=$WARPSMITH_WEAKENED judged "$log" "$file"
    what=$(seen "$log")
    if [ "$code" = 0 ]; then good=1; fi
    if [ "$code" = 1 ] && [[ $what == "error at compile" ]] && grep -q '"why": "it is for ' "$out/$log.out"; then
        row "without $switch: $(name "$file")" "correct" "not for this device" "$took" skipped
        return
    fi
    row "without $switch: $(name "$file")" "correct" "$what" "$took" "$(verdict $good)"
}

honest() {
    local files
    mapfile -t files < <(chosen tests/gpu/honest/*.cu tests/gpu/honest/*.py)
    each honest_one "${files[@]}"
}

honest_one() { accepted "honest $(name "$1")" "honest-$(name "$1")" "$1"; }

# at_most SECONDS LIMIT: 1 where the time is a number within the limit
at_most() {
    [[ $1 =~ ^[0-9]+\.[0-9]+$ ]] || { echo 0; return; }
    if [ "$(printf '%.0f' "${1}e3")" -le "$(printf '%.0f' "${2}e3")" ]; then echo 1; else echo 0; fi
}

speed() {
    local op backend not_kept kept cold rest limit files=(kernels/cuda/*.cu)
    if [ ${#files[@]} = 0 ]; then
        row "seconds per verdict" "some kernels" "none" - FAILED
        return
    fi
    bench 600 speed --dtype f16 --speed=7 "${files[@]}"
    if [ "$code" != 0 ]; then
        row "seconds per verdict" "a table" "$(seen speed)" "$took" FAILED
        return
    fi
    cat "$out/speed.out"
    while read -r op backend not_kept kept cold rest; do
        case $op in
            seconds/verdict) continue ;;
            matmul | flash_attention | fused_mlp) limit=2.5 ;;
            *) limit=1.0 ;;
        esac
        row "verdict on $op, not kept" "at most $limit s" "$not_kept s" - "$(verdict "$(at_most "$not_kept" $limit)")"
        # There may be no gain among the neighbours.
        if [ "$kept" != - ]; then
            limit=$(case $limit in 2.5) echo 4.5 ;; *) echo 3.0 ;; esac)
            row "verdict on $op, kept" "at most $limit s" "$kept s" - "$(verdict "$(at_most "$kept" "$limit")")"
        fi
        row "cold bench of $op" "at most 3.0 s" "$cold s" - "$(verdict "$(at_most "$cold" 3.0)")"
        cuda_not_kept[$op]=$not_kept
    done <"$out/speed.out"
    triton_speed
}

declare -A cuda_not_kept

# plus A B: their sum, with two decimals
plus() { awk -v a="$1" -v b="$2" 'BEGIN { printf "%.2f", a + b }'; }

# A verdict on a file in Triton takes as long as one on its twin in CUDA, and what its compiler takes.
triton_speed() {
    local op backend not_kept kept cold compile rest limit files=(kernels/triton/*.py)
    if [ ${#files[@]} = 0 ] || [ "$has_triton" = 0 ]; then
        row "seconds per verdict, triton" "a table" "no Python with triton" - skipped
        return
    fi
    bench 600 speed-triton --dtype f16 --speed=7 "${files[@]}"
    if [ "$code" != 0 ]; then
        row "seconds per verdict, triton" "a table" "$(seen speed-triton)" "$took" FAILED
        return
    fi
    cat "$out/speed-triton.out"
    while read -r op backend not_kept kept cold compile rest; do
        if [ "$op" = seconds/verdict ] || [ -z "${cuda_not_kept[$op]:-}" ]; then continue; fi
        # A tenth of a second is what one verdict differs from the next by.
        limit=$(plus "$(plus "${cuda_not_kept[$op]}" "$compile")" 0.1)
        row "verdict on triton $op, not kept" "at most $limit s" "$not_kept s, compile $compile s" - \
            "$(verdict "$(at_most "$not_kept" "$limit")")"
    done <"$out/speed-triton.out"
}

sanitizer() {
    if ! command -v compute-sanitizer >/dev/null; then
        row "sanitizer" "no errors" "no compute-sanitizer on PATH" - skipped
        return
    fi
    local triton=(kernels/triton/*.py tests/gpu/honest/triton_descriptors.py)
    each memcheck kernels/cuda/*.cu "${triton[@]}"
    race_is_seen
    # The starters are clean; the race of each of the others is seen.
    each instruments kernels/cuda/*.cu "${triton[@]}" tests/gpu/wrong/missing_barrier.cu tests/gpu/wrong/sums_twice_in_one_place.cu
}

# Calls of the driver that are tried and refused (an option it does not have) are no fault of a kernel.
memcheck() { sanitized memcheck "$1" --report-api-errors no; }

# sanitized TOOL FILE OPTION...
sanitized() {
    local tool=$1 file=$2 log bad clean
    shift 2
    log=$tool-$(name "$file")
    timed 600 "$log" compute-sanitizer --tool "$tool" --target-processes all "$@" \
        --log-file "$out/$log.%p.log" "$warpsmith" bench --backend cuda --smoke "$file"
    # Every process has a summary of its own; only the worker's launches anything.
    clean=$(cat "$out/$log".*.log | grep -c 'SUMMARY: 0 ')
    bad=$(cat "$out/$log".*.log | grep 'SUMMARY:' | grep -vc 'SUMMARY: 0 ')
    if [ "$code" = 0 ] && [ "$bad" = 0 ] && [ "$clean" -gt 0 ]; then
        row "$tool $(name "$file")" "no errors" "none" "$took" ok
    else
        row "$tool $(name "$file")" "no errors" "$bad with errors, $(seen "$log")" "$took" FAILED
    fi
}

# The tools as an examination uses them, each for itself: what it said, and how long it took.
instruments() {
    local file=$1 log want good=0 words shape
    log=instruments-$(name "$file")
    shape=$(said shape "$file")
    bench 120 "$log" "$file" --smoke --examine=60 ${shape:+--shape "$shape"}
    # A line for each tool, such as `racecheck 8.1 s: clean`.
    words=$(grep '^racecheck ' "$out/$log.out" | cut -c 1-60)
    case $file in
        kernels/* | tests/gpu/honest/*)
            want="all clean"
            if [ "$code" = 0 ]; then good=1; fi
            ;;
        *)
            want="racecheck: a race"
            if [[ $words == *Race* ]]; then good=1; fi
            ;;
    esac
    row "instruments $(name "$file")" "$want" "${words:-exit $code}" "$took" "$(verdict $good)"
}

# A tool that sees nothing finds no errors anywhere: it must see the race of a kernel that has one.
race_is_seen() {
    local file=tests/gpu/wrong/missing_barrier.cu log=racecheck-missing_barrier good=0
    timed 600 "$log" compute-sanitizer --tool racecheck --target-processes all --log-file "$out/$log.%p.log" \
        "$warpsmith" bench --backend cuda --smoke "$file"
    if cat "$out/$log".*.log | grep -q 'Race reported'; then good=1; fi
    row "racecheck of a missing barrier" "a race" "$([ $good = 1 ] && echo "a race" || echo none)" "$took" "$(verdict $good)"
}

# It moves 64 MiB: about 20 us where memory is fastest.
selftest() {
    if [ ! -f kernels/cuda/rmsnorm.cu ]; then
        row "self-test" "no false keep" "no kernels/cuda/rmsnorm.cu" - FAILED
        return
    fi
    selftest_of kernels/cuda/rmsnorm.cu "${SELFTEST_PAIRS:-300}"
    if [ "$has_triton" = 1 ]; then selftest_of kernels/triton/rmsnorm.py "${SELFTEST_TRITON_PAIRS:-60}"; fi
}

# selftest_of FILE PAIRS
selftest_of() {
    local file=$1 pairs=$2 log kept naive label
    log=selftest-$(name "$file")
    label="self-test of $(name "$file"), $pairs pairs"
    # Longer than any other step: a second or two a pair.
    timed 1800 "$log" "$warpsmith" bench --backend cuda --dtype f16 --shape rows=4096,cols=4096 --self-test "$pairs" --json "$file"
    kept=$(field false_keeps "$out/$log.out")
    naive=$(field naive_keeps "$out/$log.out")
    if [ -z "$kept" ]; then
        row "$label" "no false keep" "$(seen "$log")" "$took" FAILED
        return
    fi
    row "$label" "no false keep" "$kept kept, naive rule $naive" "$took" \
        "$(verdict "$([ "$kept" = 0 ] && [ "$code" = 0 ] && echo 1)")"
}

# newest_test NAME: the newest binary of the tests of this name, built here or brought along
newest_test() {
    local file newest=
    for file in target/*/deps/"$1"-*; do
        if [[ $file == *.d ]] || [ ! -x "$file" ]; then continue; fi
        if [ -z "$newest" ] || [ "$file" -nt "$newest" ]; then newest=$file; fi
    done
    echo "$newest"
}

tests() {
    local newest
    newest=$(newest_test gpu_judge)
    if [ -z "$newest" ]; then
        row "tests of the judge on a GPU" "passed" "no target/*/deps/gpu_judge-*" - skipped
        return
    fi
    timed 600 tests "$newest" --nocapture --test-threads 1
    row "tests of the judge on a GPU" "passed" "$(grep -h '^test result' "$out/tests.out" | cut -c 14-44)" "$took" \
        "$(verdict "$([ "$code" = 0 ] && echo 1)")"
}

# Starters with one mistake each: what the judge takes of them is printed, then how many it found of each file.
mutants() {
    local newest count=${MUTANTS:-30} rate
    newest=$(newest_test mutants)
    if [ -z "$newest" ]; then
        row "mutants of the starters" "97 % found" "no target/*/deps/mutants-*" - skipped
        return
    fi
    WARPSMITH=$(realpath "$warpsmith") WARPSMITH_CUDA_MUTANTS=$count WARPSMITH_MUTANTS_LANES=${LANES:-12} WARPSMITH_MUTANTS=$out/mutants \
        timed 3600 mutants "$newest" mistakes_in_starters_in_cuda --nocapture
    grep -E '^(cuda/|all )' "$out/mutants.out"
    rate=$(sed -n 's/^all .* \([0-9.]* %\)$/\1/p' "$out/mutants.out")
    row "mutants of the starters, $count each" "97 % found" "${rate:-no table}" "$took" \
        "$(verdict "$([ "$code" = 0 ] && echo 1)")"
}

# An honest kernel passes under any seed. The first sentence of each rejection is printed: with its seed it can be repeated.
seeds() {
    local files lanes=$lanes
    # Starting points for regions of PyTorch models are of no operation that `bench` knows.
    mapfile -t files < <(chosen kernels/cuda/*.cu kernels/cuda/*/*.cu kernels/triton/*.py tests/gpu/honest/* |
        while read -r file; do if [ -e "reference/$(operation "$file").toml" ]; then echo "$file"; fi; done)
    # Stage 1 alone, which takes half a second; then three times all stages and an examination, whose largest tensors are the device's.
    each smoke_seeds "${files[@]}"
    lanes=$(((lanes + 3) / 4))
    each examined_seeds "${files[@]}"
}

smoke_seeds() { seeds_of "$1" smoke "${SEEDS:-40}" --smoke --seed "${SEED:-1}"; }

examined_seeds() { seeds_of "$1" examined 3 --examine=10 --seed $((${SEED:-1} + ${SEEDS:-40})); }

# seeds_of FILE KIND COUNT OPTION...
seeds_of() {
    local file=$1 kind=$2 count=$3 log folder rejected answer=none
    shift 3
    folder=$(basename "$(dirname "$file")")
    log=seeds-$folder-$(name "$file")-$kind
    bench 400 "$log" "$file" --seeds "$count" "$@"
    if grep -q ': it is for ' "$out/$log.out"; then
        row "$kind $folder $(name "$file")" "none rejected" "not for this device" - skipped
        return
    fi
    grep '^seed ' "$out/$log.out" | sed "s|^|$folder/$(name "$file") $kind |"
    rejected=$(grep -c '^seed ' "$out/$log.out")
    # No answer is no acceptance.
    if grep -q 'correct under' "$out/$log.out"; then answer="$rejected of $count"; fi
    row "$kind $folder $(name "$file")" "0 of $count rejected" "$answer" "$took" "$(verdict "$([ "$answer" = "0 of $count" ] && echo 1)")"
}

model() {
    local model=${MODEL:-models/llama-7b}
    timed 600 profile "$warpsmith" profile --backend cuda --dtype f16 "$model"
    cat "$out/profile.out"
    row "profile of $model" "a table" "exit $code" "$took" "$(verdict "$([ "$code" = 0 ] && echo 1)")"
}

cache=$out/cache
export WARPSMITH_CACHE=$cache
# The device first: without one there is nothing to check, and that is no failure.
timed 120 doctor "$warpsmith" doctor --backend cuda --recalibrate
if [ "$code" != 0 ]; then
    reason=$(cat "$out/doctor.out" "$out/doctor.err" | grep -i -m 1 -E 'cannot be used|no CUDA|no device|no driver')
    if [ -n "$reason" ]; then
        echo "skipped: $(echo "$reason" | sed -E 's/^(device|error:) *//')"
        exit 0
    fi
    if ! grep -q '^device ' "$out/doctor.out"; then
        cat "$out/doctor.err" >&2
        exit 2
    fi
fi
cat "$out/doctor.out"
has_triton=0
if grep '^triton ' "$out/doctor.out" | grep -qv MISSING; then has_triton=1; fi
row "doctor --recalibrate" "exit 0" "exit $code" "$took" "$(verdict "$([ "$code" = 0 ] && echo 1)")"

for step in $steps; do "$step"; done

echo
{
    printf '%-44s %-24s %-32s %8s  %s\n' check expected seen seconds result
    printf '%s\n' "${rows[@]}"
} | tee "$out/table.txt"
count=${#rows[@]}
bad=$(printf '%s\n' "${rows[@]}" | grep -c 'FAILED$')
echo "$count checks, $bad failed; logs in $out"
[ "$bad" = 0 ]
