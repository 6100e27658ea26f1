#!/usr/bin/env bash
# A real loop is captured: tests/capture_trl/run.sh DIST_FOLDER
# Installs TRL beside the wheels of core, the readers and the analysis in a fresh environment outside the workspace, and
# lets check.py run examples/capture-trl and look at every value that was captured.
set -euo pipefail
# shellcheck source=scripts/_env.sh
source "$(dirname "${BASH_SOURCE[0]}")/../../scripts/_env.sh"
need_uv
DIST=$(cd "$1" && pwd -P)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

(cd "$ROOT" && uv export --quiet --frozen --no-hashes --no-header --no-annotate --no-emit-workspace --all-packages \
  --no-default-groups --format requirements.txt) >"$work/locked.txt"
uv venv --quiet "$work/venv"
# TRL 1.13.0 imports requests and declares it nowhere.
UV_COMPILE_BYTECODE=0 uv pip install --quiet --no-config --python "$work/venv" --constraint "$work/locked.txt" \
  "$DIST"/xcfg_core-*.whl "$DIST"/xcfg_dumps-*.whl "$DIST"/xcfg_analysis-*.whl trl==1.13.0 requests

cd "$work"
TRL_EXPERIMENTAL_SILENCE=1 venv/bin/python "$ROOT/tests/capture_trl/check.py" "$ROOT/examples/capture-trl" out
