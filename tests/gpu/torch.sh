#!/usr/bin/env bash
# Checks kernels for PyTorch problem files on a machine with a GPU, and prints one table.
#
#   tests/gpu/torch.sh                every step
#   tests/gpu/torch.sh right wrong    some of them
#
# Steps: right (kernels that are right, each alone), wrong (one kernel made wrong in several ways), warm (how long verdicts take in a
# worker that has judged before), run (kernels that beat PyTorch, started from as a run does: all of PyTorch's ways in pairs).
# Run from the repository's root, after `cargo build --release`; WARPSMITH names another binary, OUT where logs go (target/gpu-torch),
# KERNELBENCH the folder of the benchmark's level 1 (four kernels are for problems of its), WARPSMITH_PYTHON a Python with PyTorch.
# Exit code: 0 all well, or no device; 1 something is not as expected; 2 nothing could be checked.
set -u
export LC_ALL=C
cd "$(dirname "$0")/../.."

warpsmith=$(realpath "${WARPSMITH:-target/release/warpsmith}")
out=${OUT:-target/gpu-torch}
steps=${*:-right wrong warm run}
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
if ! "$python" -c 'import torch, sys; sys.exit(not torch.cuda.is_available())' >"$out/torch" 2>&1; then
    echo "skipped: $python has no PyTorch that can use this GPU ($(tail -1 "$out/torch"))"
    exit 0
fi
export WARPSMITH_PYTHON=$python

# A workspace of its own, so that nothing is written beside the kernels.
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
cp tests/gpu/torch/*.py tests/gpu/torch/*.cu "$place"
[ -n "${KERNELBENCH:-}" ] && cp "$KERNELBENCH"/{4_M,36_,43_,54_}*.py "$place"
cd "$place" || exit 2
"$warpsmith" init . >"$out/init.log" 2>&1

rows=()
bad=0
# try NAME SECONDS EXPECTED COMMAND...: runs it; EXPECTED is an exit code.
try() {
    local name=$1 limit=$2 expected=$3 began seen word=ok
    shift 3
    began=$(date +%s.%N)
    timeout "$limit" "$@" >"$out/$name.log" 2>&1
    seen=$?
    if [ "$seen" != "$expected" ]; then
        word=FAILED
        bad=1
    fi
    local took
    took=$(awk -v a="$began" -v b="$(date +%s.%N)" 'BEGIN { printf "%.1f", b - a }')
    rows+=("$(printf '%-34s exit %-3s wanted %-3s %7s s  %-6s %s' "$name" "$seen" "$expected" "$took" "$word" "$(head -c 200 "$out/$name.log" | tr '\n' ' ')")")
    echo "${rows[-1]}"
}

# Kernels with their problem files, those of the benchmark where it is there.
pairs=("plain.cu plain.py" "p82_depthwise.cu 82_depthwise.py" "smooth_loss.cu smooth_loss.py")
for number in "p4_matrix_vector_multiplication.cu 4_Matrix_vector_multiplication_.py" "p36_rmsnorm.cu 36_RMSNorm_.py" "p43_max_pooling_3d.cu 43_Max_Pooling_3D.py" \
    "p54_conv_standard_3d.cu 54_conv_standard_3D__square_input__square_kernel.py"; do
    [ -f "${number#* }" ] && pairs+=("$number")
done

wrong() {
    sed "$2" plain.cu >"wrong_$1.cu"
    if cmp -s plain.cu "wrong_$1.cu"; then
        echo "$1: the change no longer fits the kernel" >&2
        bad=1
        return
    fi
    try "wrong_$1" 120 1 "$warpsmith" bench "wrong_$1.cu" --problem plain.py
}

for step in $steps; do
    case $step in
        right)
            for pair in "${pairs[@]}"; do
                try "right_${pair%% *}" 240 0 "$warpsmith" bench "${pair%% *}" --problem "${pair#* }"
            done
            ;;
        wrong)
            wrong one_element 's/- most), expf(held\[i\].y/- most) * (threadIdx.x == 7 \&\& i == 3 ? 0.5f : 1.0f), expf(held[i].y/'
            wrong in_tf32 's/held\[i\] = __ldcs(row + threadIdx.x + i \* THREADS);/held[i] = __ldcs(row + threadIdx.x + i * THREADS), held[i].x = __uint_as_float(__float_as_uint(held[i].x) \& 0xffffe000u);/'
            wrong hides_nan 's/max.NaN.f32/max.f32/; s/make_float4(held\[i\].x \* scale/make_float4(held[i].x == held[i].x ? held[i].x * scale : 0/'
            wrong writes_its_input 's/float4 held\[EACH\];/float4 held[EACH]; if (blockIdx.x == 3) ((float *)x)[5] = 0;/'
            wrong writes_beyond 's/const float scale = /if (blockIdx.x == 8191 \&\& threadIdx.x == 0) to[COLS \/ 4] = make_float4(0, 0, 0, 0); const float scale = /'
            wrong leaves_a_row 's/^    float4 held\[EACH\];/    if (blockIdx.x == 77) return; float4 held[EACH];/'
            ;;
        warm)
            try warm 240 0 "$warpsmith" bench --speed=7 plain.cu --problem plain.py
            sed 's/^/    /' "$out/warm.log"
            ;;
        run)
            for pair in "${pairs[@]}"; do
                try "run_${pair%% *}" 400 0 "$warpsmith" run "${pair#* }" --kernel "${pair%% *}" --budget 20s --examination 5s --speedup 100 --roofline 200
            done
            ;;
        *)
            echo "unknown step $step: right wrong warm run" >&2
            exit 2
            ;;
    esac
done

echo
printf '%s\n' "${rows[@]}" | tee "$out/table.txt"
exit "$bad"
