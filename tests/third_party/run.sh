#!/usr/bin/env bash
# A third party's operator, from its wheel: tests/third_party/run.sh DIST_FOLDER
# Builds the wheel of examples/hello-operator, installs it beside the wheels of core, the embedded runtime and the
# logp operators in a fresh environment outside the workspace, runs the experiment that selects it on one side, and
# lets check.py look at what was stored and at core's own files.
set -euo pipefail
# shellcheck source=scripts/_env.sh
source "$(dirname "${BASH_SOURCE[0]}")/../../scripts/_env.sh"
need_uv
DIST=$(cd "$1" && pwd -P)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

uv build --quiet --no-sources --wheel --out-dir "$work/dist" "$ROOT/examples/hello-operator"
(cd "$ROOT" && uv export --quiet --frozen --no-hashes --no-header --no-annotate --no-emit-workspace --all-packages \
  --no-default-groups --format requirements.txt) >"$work/locked.txt"
uv venv --quiet "$work/venv"
UV_COMPILE_BYTECODE=0 uv pip install --quiet --no-config --python "$work/venv" --constraint "$work/locked.txt" \
  "$DIST"/xcfg_core-*.whl "$DIST"/xcfg_torch-*.whl "$DIST"/xcfg_ops_logp-*.whl "$work"/dist/*.whl

mkdir -p "$work/examples/quickstart"
cp -r "$ROOT/examples/quickstart/tiny-rollout" "$work/examples/quickstart/"
mkdir "$work/examples/hello-operator"
cp "$ROOT/examples/hello-operator/experiment.json" "$work/examples/hello-operator/"
cd "$work"
code=0
venv/bin/xcfg run examples/hello-operator/experiment.json --json >summary.json || code=$?
venv/bin/xcfg verify runs >verify.txt || { cat verify.txt; exit 1; }
venv/bin/python "$ROOT/tests/third_party/check.py" summary.json runs "$code"
