#!/usr/bin/env bash
# Everything that only a GPU can show, in one command and under nine minutes: the tests marked gpu, then the throughput
# of BERT base against transformers.Trainer, if that is installed. A short table comes last.
#
#   scripts/gpu_check.sh                                 on the machine's first GPU
#   LMTRANSFER_WHEELS=<folder> scripts/gpu_check.sh      without a network: missing packages come from wheels there
#   LMTRANSFER_GPU_CHECK=cpu scripts/gpu_check.sh        tiny, on the CPU: only to see whether every line works
#
# torch (2.11 or newer) must be there already, and is left as it is; PYTHON names the interpreter (default: python3).
set -uo pipefail
cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-python3}
MODE=${LMTRANSFER_GPU_CHECK:-cuda}
export LMTRANSFER_CACHE=${LMTRANSFER_CACHE:-$(mktemp -d)}
export PIP_DISABLE_PIP_VERSION_CHECK=1
START=$SECONDS

"$PYTHON" - "$MODE" <<'PY' || exit 1
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

# What is imported here and not installed yet, by the names of the packages; torch is never among them.
missing() {
    "$PYTHON" - "$@" <<'PY'
import importlib.util, sys
for pair in sys.argv[1:]:
    package, _, module = pair.partition("=")
    if importlib.util.find_spec(module or package) is None:
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
NEEDED=$(missing numpy filelock rich safetensors sentencepiece tokenizers omegaconf hydra-core=hydra \
    pyyaml=yaml pyarrow pytest pytest-timeout=pytest_timeout hatchling)
if [ -n "$NEEDED" ]; then
    # shellcheck disable=SC2086
    install $NEEDED || { echo "gpu_check: could not install:" $NEEDED; exit 1; }
fi
# What only the comparison and the real text need; without it the check goes on.
WANTED=$(missing transformers accelerate datasets pandas sympy networkx huggingface_hub)
for PACKAGE in $WANTED; do
    install "$PACKAGE" || echo "gpu_check: goes on without $PACKAGE"
done
if [ -z "$("$PYTHON" -c 'import lmtransfer; print(lmtransfer.__file__)' 2>/dev/null)" ] ||
    ! "$PYTHON" -m pip show --quiet lmtransfer 2>/dev/null; then
    install --no-deps --no-build-isolation . || { echo "gpu_check: from the source tree"; export PYTHONPATH=$PWD; }
fi

echo "== tests marked gpu"
if [ "$MODE" = cpu ]; then
    LMTRANSFER_GPU_TESTS=cpu timeout 400 "$PYTHON" -m pytest -p no:cacheprovider -q -m gpu tests/unit/test_gpu_*.py \
        -k "flash or dense or fifty or resumed"
else
    timeout 200 "$PYTHON" -m pytest -p no:cacheprovider -q -rs -m gpu tests/unit/test_gpu_*.py
fi
TESTS=$?

echo "== throughput"
if [ "$MODE" = cpu ]; then
    timeout 500 "$PYTHON" scripts/gpu_throughput.py --device cpu --tiny
else
    LEFT=$((510 - SECONDS + START))
    timeout "$LEFT" "$PYTHON" scripts/gpu_throughput.py --seconds $((LEFT - 60))
fi
SPEED=$?
[ $TESTS = 0 ] && PASSED="passed" || PASSED="FAILED (exit status $TESTS)"
echo "gpu tests: $PASSED; all in $((SECONDS - START)) s"
[ $TESTS = 0 ] && [ $SPEED = 0 ]
