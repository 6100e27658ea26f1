# shellcheck shell=bash
# Sourced by scripts/* and .ci/run. Finds or installs uv and sets what every command in this workspace needs;
# defines ROOT, say, need_uv, sync and foreground. Changes nothing outside <repository>/.cache, .venv and uv.lock.

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
UV_MINIMUM=0.10 # the first series that knows every key of [tool.uv] in pyproject.toml

# Without this, each of the several processes of an engine parses torch and transformers anew.
export UV_COMPILE_BYTECODE=${UV_COMPILE_BYTECODE:-1}
# For the same reason let Python keep what it has parsed, ours and that of environments made for one call.
unset PYTHONDONTWRITEBYTECODE
# A Python is looked for, not downloaded: which one runs should be nobody's surprise. Export `automatic` to allow it.
export UV_PYTHON_DOWNLOADS=${UV_PYTHON_DOWNLOADS:-never}
# Models come from packages and folders; nothing here asks a hub.
export HF_HUB_OFFLINE=${HF_HUB_OFFLINE:-1} HF_HUB_DISABLE_TELEMETRY=1 HF_HUB_DISABLE_PROGRESS_BARS=1 TQDM_DISABLE=1
# uv does not read pip's settings. A folder with a CPU build of torch saves gigabytes.
if [[ -n ${PIP_FIND_LINKS:-} && -z ${UV_FIND_LINKS:-} ]]; then
  export UV_FIND_LINKS=${PIP_FIND_LINKS// /,}
fi
if [[ -n ${PIP_CERT:-} && -z ${SSL_CERT_FILE:-} ]]; then
  export SSL_CERT_FILE=$PIP_CERT
fi
[[ -n ${CI:-} || ! -t 2 ]] && export UV_NO_PROGRESS=1
unset VIRTUAL_ENV # another environment that happens to be active is not meant

say() { printf '%s\n' "$*" >&2; }

_uv_is_usable() { # a pyenv shim may exist and fail, so ask it
  local found
  found=$("$1" --version 2>/dev/null) || return 1
  [[ $found =~ ^uv\ ([0-9.]+) ]] || return 1
  [[ $(printf '%s\n' "$UV_MINIMUM" "${BASH_REMATCH[1]}" | sort -V | head -n 1) == "$UV_MINIMUM" ]]
}

need_uv() { # put a usable uv first on PATH; installed under .cache when there is none
  local tool=$ROOT/.cache/uv-tool fresh
  if _uv_is_usable uv; then return; fi
  if ! _uv_is_usable "$tool/bin/uv"; then
    say "No uv $UV_MINIMUM or newer on PATH: installing it into $tool"
    if ! python3 -m pip --version >/dev/null 2>&1; then
      say "Cannot install uv: python3 has no pip. Install uv (for example 'pipx install uv') and run this again."
      return 2
    fi
    mkdir -p "$ROOT/.cache"
    fresh=$(mktemp -d "$ROOT/.cache/uv-tool.XXXXXX")
    # --target also works on a Python that its distribution manages.
    python3 -m pip install --quiet --disable-pip-version-check --root-user-action ignore --target "$fresh" "uv>=$UV_MINIMUM" || return 2
    rm -rf "$tool" && mv "$fresh" "$tool"
  fi
  export PATH=$tool/bin:$PATH
  _uv_is_usable uv || { say "The uv in $tool does not run."; return 2; }
}

_need_python() {
  if ! uv python find --project "$ROOT" >/dev/null 2>&1 && ! uv python find '>=3.11,<3.15' >/dev/null 2>&1; then
    say "xcfg needs Python 3.11 to 3.14 and none was found. Install one,"
    say "or let uv download one: UV_PYTHON_DOWNLOADS=automatic $0"
    return 2
  fi
}

_torch_folder() { # print the folder of UV_FIND_LINKS that holds a torch wheel, if any
  local folder
  local -a folders
  IFS=', ' read -r -a folders <<<"${UV_FIND_LINKS:-}"
  for folder in ${folders[@]+"${folders[@]}"}; do
    folder=${folder#file://}
    if compgen -G "$folder/torch-*.whl" >/dev/null; then
      (cd "$folder" && pwd -P)
      return
    fi
  done
}

_locked_torch_folder() { # print the folder that uv.lock takes torch from, if any
  local folder
  folder=$(awk -F'"' '$0 == "name = \"torch\"" { torch = 1 } /^$/ { torch = 0 }
    torch && /^source = \{ registry = / && $2 !~ /^https?:/ { print $2; exit }' "$ROOT/uv.lock")
  [[ -z $folder ]] || (cd "$ROOT" && cd "$folder" 2>/dev/null && pwd -P) || printf '%s\n' "$folder"
}

_fresh_lock() { # a lock sticks to where torch came from when it was made: make it anew when that no longer holds
  local now locked
  [[ -f $ROOT/uv.lock ]] || return 0
  now=$(_torch_folder) locked=$(_locked_torch_folder)
  [[ $now == "$locked" ]] && return 0
  say "uv.lock takes torch from ${locked:-the index}, this machine from ${now:-the index}: resolving anew"
  rm "$ROOT/uv.lock"
}

foreground() { # run COMMAND with Ctrl-C at its default, also where whoever started us ignores it, as nohup and `&` do
  if env --default-signal=INT,QUIT true 2>/dev/null; then
    env --default-signal=INT,QUIT "$@"
  else
    "$@"
  fi
}

sync() { # sync UV_SYNC_ARGUMENTS...: bring .venv in line with pyproject.toml
  need_uv && _need_python && _fresh_lock && uv sync --project "$ROOT" --quiet "$@"
}
