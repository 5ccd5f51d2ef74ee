#!/usr/bin/env bash
# sbatch examples/cluster/slurm.sh --policy.path=DIR --env.type=libero --output_dir=outputs/on-slurm
#
# One Ray node on every Slurm node, the command on the first of them. All nodes see the same virtual environment and the
# same working folder (a shared file system, as usual); PROCTOR names the command where it is not on the PATH.
#SBATCH --job-name=proctor
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=16
#SBATCH --exclusive
#SBATCH --time=04:00:00
##SBATCH --gpus-per-node=4     (with a second # taken away: one engine on each GPU)
set -euo pipefail

port=${RAY_PORT:-6379}
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
address=$(srun --nodes=1 --ntasks=1 --nodelist="$head" hostname -I | awk '{print $1}')
cores=${SLURM_CPUS_PER_TASK:-$(nproc)}
export RAY_USAGE_STATS_ENABLED=0 RAY_worker_niceness=0
export RAY_AUTH_MODE=token                        # nobody else on these nodes may run code in the cluster
export RAY_AUTH_TOKEN=${RAY_AUTH_TOKEN:-$(head -c 32 /dev/urandom | od -An -tx1 | tr -d ' \n')}

srun --overlap --nodes=1 --ntasks=1 --nodelist="$head" \
    ray start --head --node-ip-address="$address" --port="$port" --num-cpus="$cores" \
    --include-dashboard=false --disable-usage-stats --block &
sleep "${RAY_HEAD_S:-15}"
if [ "$SLURM_JOB_NUM_NODES" -gt 1 ]; then
    srun --overlap --nodes=$((SLURM_JOB_NUM_NODES - 1)) --ntasks=$((SLURM_JOB_NUM_NODES - 1)) --exclude="$head" \
        ray start --address="$address:$port" --num-cpus="$cores" --disable-usage-stats --block &
fi

# Slurm sends SIGTERM before it ends a job: the run writes its report and says how to go on. Nodes that come late are used.
status=0
srun --overlap --nodes=1 --ntasks=1 --nodelist="$head" \
    env RAY_ADDRESS="$address:$port" "${PROCTOR:-proctor}" "${COMMAND:-eval}" --cluster=auto "$@" || status=$?
kill $(jobs -p) 2>/dev/null || true
wait || true
exit "$status"
