#!/usr/bin/env bash
#SBATCH --job-name=prepare
#SBATCH --cpus-per-task=8
#SBATCH --mem=16G
#SBATCH --time=04:00:00
# Prepares a corpus on a Slurm cluster: 16 jobs tokenize a share each, then one joins the shares. Start it on the login
# node with the arguments of `lmtransfer prepare`; cache_dir is a folder that all machines share:
#
#   scripts/slurm_prepare.sh corpus=text corpus.path=/shared/texts cache_dir=/shared/cache
#
# SHARDS=64 makes it 64 jobs. sbatch reads your partition and account from SBATCH_PARTITION and SBATCH_ACCOUNT. If a job
# fails, start the same command again: what is complete is kept.
set -euo pipefail
export SHARDS=${SHARDS:-16}
if [[ -z ${SLURM_JOB_ID:-} ]]; then # on the login node: submit this script, for the shares and for joining them
    array=$(sbatch --parsable --array="1-$SHARDS" "$0" "$@")
    sbatch --dependency="afterok:${array%%;*}" --kill-on-invalid-dep=yes "$0" "$@"
elif [[ -n ${SLURM_ARRAY_TASK_ID:-} ]]; then
    lmtransfer prepare "$@" num_workers="$SLURM_CPUS_PER_TASK" shard="$SLURM_ARRAY_TASK_ID/$SHARDS"
else
    lmtransfer prepare "$@" num_workers="$SLURM_CPUS_PER_TASK"
fi
