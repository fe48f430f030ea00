#!/usr/bin/env bash
# Checks the Ascend backend on a machine with an NPU: op cases, tokens against the CPU, operator times, decode with graphs
# on and off. Results go to benchmarks/results/. Needs torch, torch_npu and CANN (source its set_env.sh first), and
# triton-ascend for our kernels. Everything else is as in device_check.sh; arguments are passed on (--dry-run, which
# emulates torch_npu's operators and needs none of this).
set -euo pipefail
export BACKEND=ascend
exec "$(dirname "$0")/device_check.sh" "$@"
