#!/bin/sh
# Builds the fuzz targets with a stable toolchain and runs them, one after the other.
#   fuzz/run.sh SECONDS [TARGET...]
# What libFuzzer learns goes to fuzz/found/TARGET, crashes to fuzz/artifacts/TARGET.
set -eu
cd "$(dirname "$0")"
seconds=${1:?seconds for each target}
shift
[ $# -gt 0 ] || set -- audio wav npy npz codes safetensors torch burnpack gguf quantising name_map voice_names voice_files

# Coverage without a sanitizer: these flags exist in stable compilers, behind this variable.
export RUSTC_BOOTSTRAP=1
export RUSTFLAGS="--cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
-Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
-Cllvm-args=-sanitizer-coverage-trace-compares -Ccodegen-units=1"
host=$(rustc -vV | sed -n 's/^host: //p')
cargo build --release --target "$host"
built=${CARGO_TARGET_DIR:-target}/$host/release

for target in "$@"; do
    mkdir -p "found/$target" "artifacts/$target"
    "$built/$target" "found/$target" "corpus/$target" \
        -artifact_prefix="artifacts/$target/" \
        -max_total_time="$seconds" -timeout=20 -rss_limit_mb=2048 -malloc_limit_mb=1024 \
        -max_len=65536 -print_final_stats=1
done
