#!/bin/bash
# Samples of tests/gpu/modelnew through `kernelbench eval` on a GPU. Writes $OUT; bounds itself.
here=$(cd "$(dirname "$0")" && pwd)
out=${OUT:-/tmp/out}; mkdir -p "$out"
ws=${1:-$here/warpsmith}
export WARPSMITH_PYTHON=${WARPSMITH_PYTHON:-python3}
cp -r "$here/run" "$out/run"
{
  date; uname -r; cat /sys/kernel/security/lsm; echo; id; python3 --version; which gcc g++ nvcc ninja; nvidia-smi -L
  python3 -c 'import sys,torch; print(sys.executable, sys.prefix, torch.__version__, torch.cuda.is_available())'
} > "$out/machine.txt" 2>&1
step() { local name=$1 limit=$2; shift 2; local began=$SECONDS; timeout "$limit" "$@" > "$out/$name.txt" 2>&1; echo "$name rc $? $((SECONDS - began)) s" >> "$out/steps.txt"; }
step eval2 150 "$ws" kernelbench --root "$here" eval "$out/run" --problems 2 --modes eager --calls 8 --perf-trials 20 --seconds 60
step eval1 300 "$ws" kernelbench --root "$here" eval "$out/run" --problems 1 --modes eager --calls 8 --perf-trials 20 --seconds 60
step score 20 "$ws" kernelbench --root "$here" score "$out/run"
cat "$out/machine.txt" "$out/steps.txt" "$out/eval2.txt" "$out/eval1.txt" "$out/score.txt"
# An honest sample is right, whatever else is said.
python3 - "$out/run" <<'END'
import json, pathlib, re, sys
run = pathlib.Path(sys.argv[1])
found = {(int(problem), one["sample_id"]): one for problem, all in json.loads((run / "strict_results.json").read_text()).items() for one in all}
for file in sorted(run.glob("level_*_kernel.py")):
    if file.read_text().startswith("# Honest"):
        key = tuple(int(part) for part in re.findall(r"problem_(\d+)_sample_(\d+)", file.name)[0])
        one = found.get(key, {"correctness": False, "reason": "not judged", "calls": 0})
        print("honest", *key, "right" if one["correctness"] else f"REFUSED after {one['calls']} calls: {one['reason']}")
END
