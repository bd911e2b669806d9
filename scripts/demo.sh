#!/usr/bin/env bash
# demo.sh: from nothing to a streamed answer through a real Render sidecar, a real engine and the Coordinator.
#
#   MODEL=tiny    the 2 MB model of this repository instead of SmolLM2 (which is downloaded once, 98 MB)
#   MODEL=FOLDER  any model folder
#   SIM=1         simulated sidecar and engines: no vLLM, ready in seconds
#   KEEP=1        leave everything running for curl
#   PORT=1025     where the Coordinator listens; its management port is the next one
#   ENGINES=1     how many engines
set -euo pipefail
cd "$(dirname "$0")/.."

model=${MODEL:-smollm2} port=${PORT:-1025} engines=${ENGINES:-1}
url=http://127.0.0.1:$port management=http://127.0.0.1:$((port + 1))
engine_version=0.32.0
export ENGINE_VENV=${ENGINE_VENV:-$PWD/.engine/$engine_version}
logs=build/demo
stack=

say() { printf '\033[1m== %s\033[0m\n' "$*"; }
fail() { printf 'demo: %s\n' "$*" >&2; exit 1; }

stop_stack() {
  local code=$?
  if [ -n "$stack" ] && kill -0 "$stack" 2>/dev/null; then
    kill -TERM "$stack"
    wait "$stack" || true
  fi
  exit "$code"
}

show_logs() {
  local log
  for log in "$logs"/*.log; do
    printf '\n--- the end of %s\n' "$log" >&2
    tail -n 20 "$log" >&2
  done
}

prepare_project() {
  if [ ! -x .venv/bin/motor ]; then
    say "the Coordinator's environment: .venv"
    "${PYTHON:-python3}" -m venv .venv
    if [ -f requirements.lock ]; then
      .venv/bin/pip install -q --disable-pip-version-check --require-hashes -r requirements.lock
    else
      .venv/bin/pip install -q --disable-pip-version-check -e '.[engine]'
    fi
    .venv/bin/pip install -q --disable-pip-version-check --no-deps -e .
  fi
}

prepare_engine() {
  [ -n "${SIM:-}" ] || scripts/install-engine.sh "$ENGINE_VENV" "$engine_version"
}

prepare_model() {
  case $model in
    tiny) model_folder=models/tiny-qwen3 ;;
    smollm2)
      if [ -n "${SIM:-}" ]; then
        model=tiny model_folder=models/tiny-qwen3
        return
      fi
      model_folder=build/models/smollm2
      if [ ! -f "$model_folder/config.json" ]; then
        say "the model: $model_folder (98 MB, about a minute)"
        "$ENGINE_VENV/bin/python" scripts/prepare-smollm2.py "$model_folder"
      fi
      ;;
    *)
      model_folder=$model model=$(basename "$model")
      [ -f "$model_folder/config.json" ] || fail "MODEL=$model_folder is not a model folder"
      ;;
  esac
}

start_stack() {
  local flags=(--model "$model_folder" --served-model-name "$model" --engines "$engines" --port "$port"
    --max-model-len 2048 --keep-logs "$logs")
  [ -z "${SIM:-}" ] || flags+=(--simulate)
  rm -rf "$logs"
  say "motor up ${flags[*]}"
  .venv/bin/motor up "${flags[@]}" &
  stack=$!
  until curl -sf -o /dev/null "$url/ready"; do
    kill -0 "$stack" 2>/dev/null || { wait "$stack" || true; stack=; fail "the stack did not start, see above"; }
    sleep 0.2
  done
}

trap stop_stack EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
prepare_project
prepare_engine
prepare_model
start_stack
say "one streamed chat"
.venv/bin/python demo/chat.py --url "$url" --management-url "$management" --model "$model" ||
  { show_logs; fail "the chat failed"; }
if [ -n "${KEEP:-}" ]; then
  say "left running, Ctrl-C stops it; try"
  printf '%s\n' "curl -N $url/v1/chat/completions -H 'content-type: application/json' \\" \
    "  -d '{\"model\": \"$model\", \"stream\": true, \"messages\": [{\"role\": \"user\", \"content\": \"Say hello.\"}]}'"
  wait "$stack"
fi
