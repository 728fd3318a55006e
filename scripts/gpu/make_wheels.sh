#!/usr/bin/env bash
# Make a folder of wheels for an environment without a network, from which scripts/gpu_check.sh installs what is missing.
#
#   scripts/gpu/make_wheels.sh <folder>                     for Python 3.12 on x86-64 Linux
#   scripts/gpu/make_wheels.sh <folder> 3.11 numpy pyarrow  for another Python, without packages that are there already
#
# torch and what belongs to CUDA are always left out. PYTHON names the interpreter (default: python3; its pip must be 22.2
# or newer); PLATFORM the machine (default: x86_64, or aarch64).
set -euo pipefail
[ $# -ge 1 ] || { sed -n '2,9s/^# \{0,1\}//p' "$0"; exit 2; }
FOLDER=$1
VERSION=${2:-3.12}
shift $(($# > 1 ? 2 : 1))
PYTHON=${PYTHON:-python3}
MACHINE=${PLATFORM:-x86_64}
PACKAGES=$(dirname "$0")/packages.txt
export PIP_DISABLE_PIP_VERSION_CHECK=1
mkdir -p "$FOLDER"
TARGET=(--only-binary=:all: --implementation=cp "--python-version=$VERSION" "--find-links=$FOLDER")
for GLIBC in 2014 _2_17 _2_26 _2_27 _2_28; do
    TARGET+=("--platform=manylinux${GLIBC}_$MACHINE")
done

# The only one that the index has as source code alone; its wheel is the same for every Python and machine.
"$PYTHON" -m pip wheel --quiet --no-deps --wheel-dir "$FOLDER" "$(awk '$2 == "antlr4" {print $1}' "$PACKAGES")"

PLAN=$(mktemp -d)
trap 'rm -rf "$PLAN"' EXIT
awk '!/^#/ {print $1}' "$PACKAGES" >"$PLAN/asked.txt"
"$PYTHON" -m pip install --quiet --dry-run --ignore-installed --target "$PLAN/none" --report "$PLAN/report.json" \
    "${TARGET[@]}" -r "$PLAN/asked.txt"
"$PYTHON" - "$PLAN/report.json" "$@" >"$PLAN/chosen.txt" <<'PY'
import json, re, sys
there = {name.lower().replace("_", "-") for name in sys.argv[2:]}
for package in json.load(open(sys.argv[1], encoding="utf-8"))["install"]:
    name = package["metadata"]["name"].lower().replace("_", "-")
    if name not in there and not re.match(r"(torch|triton|nvidia|cuda)\b", name):
        print(f"{name}=={package['metadata']['version']}")
PY
"$PYTHON" -m pip download --quiet --no-deps --dest "$FOLDER" "${TARGET[@]}" -r "$PLAN/chosen.txt"
du -sh "$FOLDER"
