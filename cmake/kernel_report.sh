#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
#   sh cmake/kernel_report.sh [sm_80 sm_90...]
#
# Compiles bench/cuda/kernels.cu for real architectures, without a device, and writes a table of
# its kernels: registers / bytes of spill stores / bytes of spill loads / bytes of shared memory.
# Fails on a warning. NVCC names another compiler, SCAPE_KEEP a folder for ptxas' own output.
set -eu

source=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd -P)
[ $# -gt 0 ] || set -- sm_75 sm_80 sm_86 sm_89 sm_90 sm_100 sm_120
folder=${SCAPE_KEEP:-$(mktemp -d)}
[ -n "${SCAPE_KEEP:-}" ] || trap 'rm -rf "$folder"' EXIT

for arch in "$@"; do
  if ! "${NVCC:-nvcc}" -std=c++20 -O3 -cubin -arch="$arch" -Xptxas -v -Werror all-warnings \
    -I "$source/include" -I "$source/bench/cuda" -o "$folder/$arch.cubin" \
    "$source/bench/cuda/kernels.cu" 2>"$folder/$arch.txt"; then
    cat "$folder/$arch.txt" >&2
    exit 1
  fi
done

# One line per kernel and architecture: name, tab, architecture, tab, numbers.
rows() {
  for arch in "$@"; do
    awk -v arch="$arch" '
      /Compiling entry function/ { split($0, part, "\047"); name = part[2] }
      /bytes stack frame/ { stores = $5; loads = $9 }
      /Used [0-9]+ registers/ {
        shared = 0
        for (i = 2; i <= NF; ++i) {
          if ($i == "Used") registers = $(i + 1)
          if ($i ~ /^smem/) shared = $(i - 2)
        }
        print name "\t" arch "\t" registers " / " stores " / " loads " / " shared
      }' "$folder/$arch.txt"
  done
}

rows "$@" | c++filt | awk -F '\t' -v archs="$*" '
  $1 !~ /^void scape::/ { next }
  {
    name = $1
    sub(/^void /, "", name)
    sub(/>\(.*$/, ">", name)
    gsub(/scape::(detail::)?(cuda::)?|\(anonymous namespace\)::|__4::/, "", name)
    gsub(/ >/, ">", name)
    cell[name, $2] = $3
    names[name]
  }
  END {
    columns = split(archs, arch, " ")
    printf "| kernel |"
    for (a = 1; a <= columns; ++a) printf " %s |", arch[a]
    printf "\n| --- |"
    for (a = 1; a <= columns; ++a) printf " --- |"
    printf "\n"
    fflush()
    for (name in names) {
      printf "| `%s` |", name | "sort"
      for (a = 1; a <= columns; ++a) printf " %s |", cell[name, arch[a]] | "sort"
      printf "\n" | "sort"
    }
  }'
