#!/usr/bin/env bash
# The GPU tests, on a machine with an NVIDIA GPU. Run it by hand from the folder that
# tools/gpu_bundle.sh packs.
#
#   run.sh [RESULTS]     writes RESULTS/summary.txt and one log a part; exit code 1 if a part failed
#
# HYPATIA_SANITIZE: how many cases of a test compute-sanitizer checks (40; 0 skips it).
#
# Parts: the test binary (random graphs, layouts of products, rows of all lengths, caches); each
# model with rules on and off and in two narrow types, against its expected outputs; what `gen
# --emit launcher` writes, run from C and from PyTorch; and compute-sanitizer, if it is installed.
# The sanitizer must first find planted faults; if it misses one, its verdict on the rest does not
# count.
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
out=${1:-$here/results}
mkdir -p "$out"
summary="$out/summary.txt"
: >"$summary"
export HYPATIA_NEED_GPU=1 HYPATIA_CACHE="$out/cache"
failed=0

say() { echo "$*" | tee -a "$summary"; }
part() { # part NAME COMMAND...: runs, logs, reports
  local name=$1 log start
  shift
  log="$out/$name.log"
  start=$(date +%s)
  if "$@" >"$log" 2>&1; then say "ok      $name ($(($(date +%s) - start)) s)"; else
    say "FAILED  $name (exit $?; see $name.log)"
    failed=1
  fi
}

say "source  $(cat "$here/version.json")"
say "device  $(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader | head -n 1)"
say "date    $(date -u +%Y-%m-%dT%H:%MZ)"
"$here/hypatia" doctor >"$out/doctor.log" 2>&1

part tests "$here/tests" --skip emulated --nocapture --test-threads 4
part session "$here/session" on_a_gpu --nocapture --test-threads 2
grep -h 'random graphs agree' "$out/tests.log" | while read -r line; do say "        $line"; done

for model in "$here"/models/*/; do
  name=$(basename "$model")
  for rules in on off; do
    flags=(--inputs "$model/inputs.npz" --check "$model/outputs.npz" --device cuda)
    [ $rules = off ] && flags+=(--no-rules)
    part "model-$name-rules-$rules" "$here/hypatia" run "$model/model.onnx" "${flags[@]}"
  done
  for precision in bf16 f16; do
    part "model-$name-$precision" "$here/hypatia" run "$model/model.onnx" --inputs "$model/inputs.npz" \
      --check "$model/outputs.npz" --device cuda --precision $precision
  done
done

# Needs PyTorch, onnx and a C compiler.
if python3 -c 'import torch, onnx' 2>"$out/launchers.log" && command -v cc >/dev/null; then
  part launchers python3 "$here/gpu_launcher.py" --hypatia "$here/hypatia" --out "$out/launchers"
else
  say "SKIPPED launchers: PyTorch, onnx or a C compiler is not installed"
fi

sanitizer=$(command -v compute-sanitizer || ls /usr/local/cuda/bin/compute-sanitizer 2>/dev/null)
if [ "${HYPATIA_SANITIZE:=40}" = 0 ]; then
  say "SKIPPED compute-sanitizer: HYPATIA_SANITIZE=0"
elif [ -z "$sanitizer" ]; then
  say "SKIPPED compute-sanitizer is not installed"
else
  # Races and barriers concern generated kernels. cuBLASLt's own take minutes each, and are skipped.
  ours=(--kernel-regex kns=hypatia_)
  for pair in memcheck:past_the_end racecheck:race initcheck:unwritten; do
    tool=${pair%%:*} fault=${pair##*:}
    only=()
    [ "$tool" = racecheck ] && only=("${ours[@]}")
    if HYPATIA_PLANT=1 "$sanitizer" --tool "$tool" "${only[@]}" --error-exitcode 9 \
      "$here/tests" "planted::$fault" --nocapture \
      >"$out/planted-$fault.log" 2>&1; then
      say "FAILED  $tool did not find the planted fault $fault: its verdicts do not count"
      failed=1
    else
      say "ok      $tool finds the planted fault $fault"
    fi
  done
  export HYPATIA_CASES=$HYPATIA_SANITIZE
  # Tests that consist of products run cuBLASLt's kernels. Racecheck 2025.3 aborts over some of
  # these ("failed to handle a hardware exception"; also over a product of PyTorch's), so it skips
  # the tests.
  products=(heads_agree products_of_every packed_weights sums_in_parts packing_exchanges)
  generated=(agree_with_the_reference_on_a_gpu agrees_with_the_reference_on_a_gpu agree_with_the_exact_values_on_a_gpu)
  # In parallel: each keeps a core of the host busy, and the device idle.
  running=()
  for tool in memcheck racecheck initcheck synccheck; do
    only=() tests=("${generated[@]}" "${products[@]}" --skip calls_for_training)
    [ "$tool" = racecheck ] || [ "$tool" = synccheck ] && only=("${ours[@]}")
    if [ "$tool" = racecheck ]; then
      tests=("${generated[@]}" --skip calls_for_training)
      for product in "${products[@]}"; do tests+=(--skip "$product"); done
    fi
    # Initcheck 2025.3 does not see what some of cuBLASLt's products store (also one of PyTorch's in
    # bf16, copied to the host), so it skips tests whose memory is not filled beforehand.
    [ "$tool" = initcheck ] && tests+=(--skip both_ways_over_heads --skip a_checked_session)
    (
      failed=0
      part "sanitizer-$tool" "$sanitizer" --tool "$tool" "${only[@]}" --error-exitcode 9 \
        "$here/tests" "${tests[@]}" --nocapture --test-threads 1
      exit $failed
    ) &
    running+=($!)
  done
  for job in "${running[@]}"; do wait "$job" || failed=1; done
fi
exit $failed
