#!/usr/bin/env bash
# Inductor's kernels as starting points, on a machine with a GPU: for each problem file, what `init --from-inductor` writes is judged, and the
# tuner has SECONDS_EACH (30) to improve it against the fastest of PyTorch. Prints one table last.
#
#   tests/gpu/inductor.sh              problem files of tests/gpu/torch, and some of the benchmark's level 1 where it is there
#   tests/gpu/inductor.sh 39 38        these problems of the benchmark alone
#
# Run from the repository's root, after `cargo build --release`; WARPSMITH names another binary, OUT where logs go (target/gpu-inductor),
# KERNELBENCH the folder of the benchmark's level 1, WARPSMITH_PYTHON a Python with PyTorch, LIMIT the seconds that all of it may take (180):
# what has not begun by then is left out, and the table says so. Exit code: 0 all well, or no device; 1 a kernel of Inductor's is judged
# wrong or cannot be judged; 2 nothing could be checked.
set -u
export LC_ALL=C
cd "$(dirname "$0")/../.."

warpsmith=$(realpath "${WARPSMITH:-target/release/warpsmith}")
out=${OUT:-target/gpu-inductor}
seconds=${SECONDS_EACH:-30}
limit=${LIMIT:-180}
numbers=("$@")
[ ${#numbers[@]} -gt 0 ] || numbers=(23 26 36 47 38)
if [ ! -x "$warpsmith" ]; then
    echo "$warpsmith is not there: cargo build --release, or name another with WARPSMITH" >&2
    exit 2
fi
mkdir -p "$out" || exit 2
out=$(realpath "$out")
if ! nvidia-smi -L >"$out/devices" 2>&1; then
    echo "skipped: there is no GPU here ($(head -1 "$out/devices"))"
    exit 0
fi
python=${WARPSMITH_PYTHON:-python3}
if ! "$python" -c 'import torch, triton, sys; sys.exit(not torch.cuda.is_available())' >"$out/torch" 2>&1; then
    echo "skipped: $python has no PyTorch and Triton that can use this GPU ($(tail -1 "$out/torch"))"
    exit 0
fi
export WARPSMITH_PYTHON=$python
began=$(date +%s)
left() { echo $((limit - $(date +%s) + began)); }

problems=()
[ $# -gt 0 ] || problems=(tests/gpu/torch/*.py)
if [ -n "${KERNELBENCH:-}" ]; then
    for number in "${numbers[@]}"; do
        for file in "$KERNELBENCH/$number"_*.py; do
            [ -f "$file" ] && problems+=("$file")
        done
    done
fi

rows=()
bad=0
for problem in "${problems[@]}"; do
    problem=$(realpath "$problem")
    name=$(basename "$problem" .py)
    if [ "$(left)" -lt 25 ]; then
        rows+=("$(printf '%-34s %s' "$name" "left out: the time is over")")
        continue
    fi
    # A workspace of its own, so that its history is its own.
    place=$(mktemp -d)
    cp "$problem" "$place"
    judged=-
    tuned=-
    if (cd "$place" && timeout "$(left)" "$warpsmith" init --problem "$(basename "$problem")" --from-inductor) >"$out/$name.init.log" 2>&1; then
        kernel=$(ls "$place"/kernels/triton/*.py)
        cp "$kernel" "$out/$name.triton.py"
        (cd "$place" && timeout "$(left)" "$warpsmith" bench "$kernel" --problem "$(basename "$problem")") >"$out/$name.bench.log" 2>&1
        judged="exit $?"
        if [ "$judged" = "exit 0" ]; then
            judged=right
            # The first keep is one against the fastest of PyTorch, or the start is that.
            (cd "$place" && timeout "$(($(left) + 20))" "$warpsmith" run "$kernel" --budget "${seconds}s" --examination 2s --speedup 100 --roofline 200) >"$out/$name.run.log" 2>&1
            tuned=$(cd "$place" && awk -F' *\t *' '
                NR == 1 { sub(/^ */, ""); for (i = 1; i <= NF; i++) at[$i] = i; next }
                { status[$at["status"]]++; if ($at["status"] == "base" || $at["status"] == "keep") last = $at["vs_user"] }
                END { printf "%d keeps of %d, %s of PyTorch", status["keep"], NR - 1, last == "" ? "?" : last "x" }' results.tsv 2>"$out/$name.awk.log")
        else
            bad=1
        fi
    else
        judged=none
        tuned=$(tail -1 "$out/$name.init.log" | cut -c1-120)
    fi
    rm -rf "$place"
    rows+=("$(printf '%-34s %-8s %s' "$name" "$judged" "$tuned")")
    echo "${rows[-1]}"
done

echo
printf '%-34s %-8s %s\n' problem judged "what the tuner made of it in $seconds s"
printf '%s\n' "${rows[@]}" | tee "$out/table.txt"
exit "$bad"
