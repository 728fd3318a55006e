#!/usr/bin/env bash
# What only a GPU can show, in parts of at most nine minutes each, and a table at the end. Each part writes a JSON; what
# is finished is not made again. The exit status is 1 if a test or a measurement failed; the others still run.
#
#   scripts/gpu_check.sh                                 all parts, on the machine's first GPU
#   scripts/gpu_check.sh tests bert --out results        these parts, with their JSONs in a folder (default: $OUT, else
#                                                        runs/gpu_check); --again repeats what is finished
#   LMTRANSFER_WHEELS=<folder> scripts/gpu_check.sh      without a network: missing packages come from the folder that
#                                                        scripts/gpu/make_wheels.sh has made
#   LMTRANSFER_GPU_CHECK=cpu scripts/gpu_check.sh        tiny, on the CPU: only to see whether everything works
#
#   tests      the tests marked gpu                       bert      BERT base, 128 and 512 tokens, full and ragged rows
#   ceiling    the fastest matrix products                trainer   the same with transformers.Trainer, compiled
#   families   electra_small, modern_base, elmo           phases    batch, copy, forward, backward and optimizer
#   finetune   SST-2 and SQuAD, training and evaluation   losses    a small BERT: the same losses as on the CPU?
#   batches    how fast one process builds batches
#
# torch (2.11 or newer) must be there already, and is left as it is; PYTHON names the interpreter (default: python3).
set -uo pipefail
cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-python3}
MODE=${LMTRANSFER_GPU_CHECK:-cuda}
export LMTRANSFER_CACHE=${LMTRANSFER_CACHE:-${TMPDIR:-/tmp}/lmtransfer-gpu-check-cache-$(id -u)}
export PIP_DISABLE_PIP_VERSION_CHECK=1
export PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH}

"$PYTHON" -W ignore - "$MODE" <<'PY' || exit 1
import sys
try:
    import torch
except ImportError:
    sys.exit("gpu_check: torch is not installed for this Python; install torch 2.11 or newer, or set PYTHON")
if tuple(map(int, torch.__version__.split("+")[0].split(".")[:2])) < (2, 11):
    sys.exit(f"gpu_check: torch {torch.__version__} is too old; 2.11 or newer is needed")
if sys.argv[1] != "cpu" and not torch.cuda.is_available():
    sys.exit("gpu_check: torch sees no CUDA device (LMTRANSFER_GPU_CHECK=cpu tries the script itself on the CPU)")
PY

# The packages of scripts/gpu/packages.txt that are needed or wanted, and not installed here.
missing() {
    "$PYTHON" - "$1" <<'PY'
import importlib.util, sys
for line in open("scripts/gpu/packages.txt", encoding="utf-8"):
    package, module, kind = line.split()[:3] if not line.startswith("#") else ("", "", "")
    if kind == sys.argv[1] and importlib.util.find_spec(module) is None:
        print(package)
PY
}
install() {
    if [ -n "${LMTRANSFER_WHEELS:-}" ]; then
        "$PYTHON" -m pip install --quiet --no-index --find-links "$LMTRANSFER_WHEELS" "$@"
    else
        "$PYTHON" -m pip install --quiet "$@"
    fi
}
NEEDED=$(missing needed)
if [ -n "$NEEDED" ]; then
    # shellcheck disable=SC2086
    install $NEEDED || { echo "gpu_check: could not install:" $NEEDED; exit 1; }
fi
for PACKAGE in $(missing wanted); do
    install "$PACKAGE" || echo "gpu_check: goes on without $PACKAGE"
done

exec "$PYTHON" -m scripts.gpu "$@"
