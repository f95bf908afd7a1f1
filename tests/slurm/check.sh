#!/usr/bin/env bash
# A Slurm of one node on this machine, and a run whose two workers `srun` starts: to the end, and its decisions printed.
# Needs Debian's slurm-wlm and munge, and root: sudo tests/slurm/check.sh [WARPSMITH]
set -euo pipefail

root=$(cd "$(dirname "$0")/../.." && pwd)
warpsmith=$(realpath "${1:-$root/target/release/warpsmith}")
place=$(mktemp -d)
host=$(hostname -s)
export SLURM_CONF=$place/slurm.conf

end() {
    for daemon in slurmd slurmctld munged; do
        [ -f "$place/$daemon.pid" ] && kill "$(cat "$place/$daemon.pid")" 2>/dev/null || true
    done
    sleep 1
    rm -rf "$place"
}
trap end EXIT

mkdir -m 755 "$place/munge" "$place/state" "$place/spool"
chmod 755 "$place"
head -c 1024 /dev/urandom > "$place/munge/key"
chmod 400 "$place/munge/key"
munged --force --socket="$place/munge/socket" --key-file="$place/munge/key" --pid-file="$place/munged.pid" \
    --log-file="$place/munge/log" --seed-file="$place/munge/seed"

cat > "$SLURM_CONF" <<CONF
ClusterName=one
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=16817
SlurmdPort=16818
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket=$place/munge/socket
CredType=cred/munge
StateSaveLocation=$place/state
SlurmdSpoolDir=$place/spool
SlurmctldPidFile=$place/slurmctld.pid
SlurmdPidFile=$place/slurmd.pid
SlurmctldLogFile=$place/slurmctld.log
SlurmdLogFile=$place/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
ReturnToService=2
NodeName=$host NodeAddr=127.0.0.1 CPUs=$(nproc) State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=YES
CONF

slurmctld
slurmd
for _ in $(seq 60); do
    srun -n1 true 2>/dev/null && break
    sleep 1
done
echo "slurm: $(srun -n1 hostname) answers"

cp -r "$root/models/tiny-llama" "$place/tiny-llama"
cd "$place/tiny-llama"
# The workers see this place alone, whatever the workspace around the repository says.
worker="srun -n1 --overlap '$warpsmith' worker"
"$warpsmith" run . --seq 16 --only rmsnorm,rotary_embedding --budget 90s --worker "$worker" --worker "$worker" | tee "$place/out"
grep -q "^run .* experiments\? in" "$place/out"
git log --oneline "$(git for-each-ref --format='%(refname:short)' 'refs/heads/warpsmith/*' | tail -1)" | head
