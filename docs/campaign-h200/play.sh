#!/usr/bin/env bash
# Plays sessions on a machine with a GPU, examines what they kept under many seeds, and prints the table beside PyTorch.
#
#   bash docs/campaign-h200/candidates/make.sh            # first, where git's history is: kernel files that older sessions name, from patches
#   bash docs/campaign-h200/play.sh swiglu-tail=12 products-tail=12 reduce-8192=10      # seconds for each
#
# Started in the repository's root. It works in a copy: WORKSPACE (/tmp/warpsmith-campaign). WARPSMITH names the binary (target/release/warpsmith),
# OUT where ledger, transcripts, kernels and figures go (campaign). SEEDS (20) are smoke tests for each kernel that changed, and three of them examined
# in full; TABLE=0 leaves the table out, and TABLE_OPTIONS are the table's (--unjudged saves a minute).
set -u
root=$PWD
export WARPSMITH=$(realpath "${WARPSMITH:-target/release/warpsmith}") WARPSMITH_WORKSPACE=${WORKSPACE:-/tmp/warpsmith-campaign}
mkdir -p "${OUT:-campaign}" && out=$(realpath "${OUT:-campaign}")
export WARPSMITH_CACHE=${WARPSMITH_CACHE:-$WARPSMITH_WORKSPACE.cache} PYTHONUNBUFFERED=1 out
mkdir -p "$WARPSMITH_WORKSPACE" && cd "$WARPSMITH_WORKSPACE" || exit 2
for part in kernels models reference tests program.md candidates src/backend/cuda/compile/prelude.rs; do
    [ -e "$root/$part" ] && mkdir -p "$(dirname "$part")" && cp -r "$root/$part" "$(dirname "$part")/"
done
mkdir -p candidates && cp "$root"/docs/campaign-h200/candidates/*.cu candidates/
echo '[run]' >warpsmith.toml
printf 'candidates/\ntests/\nreference/\nsrc/\n' >.gitignore
git init -q . && git config user.email campaign@localhost && git config user.name campaign
git add -A && git commit -qm "The kernels as they are"
first=$(git rev-parse HEAD)
timeout 60 "$WARPSMITH" doctor --recalibrate >"$out/doctor.txt" 2>&1
cp -r "$WARPSMITH_CACHE" "$WARPSMITH_CACHE.0"

for session in "$@"; do
    python3 tests/gpu/campaign.py "$root/docs/campaign-h200/sessions/${session%=*}.toml" --seconds "${session#*=}" --out "$out" 2>&1
    # What it kept is what the next begins with.
    branch=$(git for-each-ref --sort=-committerdate --format='%(refname:short)' refs/heads/warpsmith | head -n 1)
    [ -n "$branch" ] && git checkout -q "$branch" -- kernels && git commit -qm "Kept by $branch" >/dev/null
done
cp -r kernels "$out/kernels-after"

judge() { # KERNEL SEED OPTION, in parallel with others: nothing is timed
    local log
    log=$out/$(basename "$1" .cu)-$2
    cp -r "$WARPSMITH_CACHE.0" "$WARPSMITH_CACHE.$2"
    if WARPSMITH_CACHE=$WARPSMITH_CACHE.$2 timeout 90 "$WARPSMITH" bench "$1" --backend cuda --seed "$2" --json "$3" >"$log.json" 2>"$log.err"; then
        rm -f "$log.json" "$log.err"
        echo "$1 ${3%%=*}: accepted"
    else
        echo "$1 seed $2 $3: NOT ACCEPTED $(grep -m1 '"why"' "$log.json")"
    fi
}
export -f judge
for kernel in $(git diff --name-only "$first" HEAD -- kernels); do
    for seed in 901 902 903; do echo "$kernel $seed --examine=8"; done
    for ((seed = 1001; seed <= 1000 + ${SEEDS:-20}; seed++)); do echo "$kernel $seed --smoke"; done
done | xargs -r -P 12 -L 1 bash -c 'judge "$0" "$1" "$2"' 2>&1 | sort | uniq -c

if [ "${TABLE:-1}" = 1 ]; then
    TABLE_LOG=$out/table.log python3 tests/gpu/table.py --compile-seconds 110 ${TABLE_OPTIONS:-} --json "$out/table.json" 2>&1
    grep 'ours:' "$out/table.log" | cut -c 1-300
fi
