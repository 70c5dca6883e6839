#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# train_gpt.sh <train_gpt> <launcher> <count flag> <argument>...
# The example train_gpt as two processes over MPI is the same as two threads, bit for bit, also when
# one goes on where the other was interrupted; and what it refuses, it refuses once.
set -u
program=$1 launcher=$2 count=$3
shift 3
folder=$(mktemp -d) || exit 1
trap 'rm -rf "$folder"' EXIT
cd "$folder" || exit 1
failures=0

fail() {
  echo "FAILED: $*"
  cat stdout stderr
  failures=$((failures + 1))
}

i=0
while [ $i -lt 400 ]; do
  echo "line $i of a text that repeats itself, with $((i * i % 97)) and $((i * 7 % 31))"
  i=$((i + 1))
done > text
small="--corpus text --batch 2 --layers 1 --width 16 --heads 2 --context 16 --quiet"
sparse="$small --optimizer scape-adams --density 0.1"
launch="$launcher $count 2 $*"
# Also leaves the processes' numbers in pid-0 and pid-1.
# shellcheck disable=SC2016
mpi="$launch sh -c "'echo $$ > pid-${OMPI_COMM_WORLD_RANK:-$PMI_RANK}; exec "$@"'

# train threads|mpi <arguments>...: its exit code, stdout and stderr.
train() {
  where=$1
  shift
  # shellcheck disable=SC2086
  if [ "$where" = threads ]; then
    "$program" --ranks 2 "$@"
  else
    $launch sh -c 'echo $$ > pid-${OMPI_COMM_WORLD_RANK:-$PMI_RANK}; exec "$@"' sh "$program" "$@"
  fi > stdout 2> stderr
}

# same <name> <folder> <folder>: equal curves and, times and those of the launcher aside, figures.
same() {
  for csv in "$2"/*-seed1.csv; do
    cmp -s "$csv" "$3/${csv##*/}" || fail "$1: ${csv##*/} differs"
  done
  for columns in "$2" "$3"; do
    awk -F, 'NR == 1 { for (i = 1; i <= NF; ++i) hidden[i] = $i ~ /ms/ }
             { for (i = 1; i <= NF; ++i) if (!hidden[i]) printf "%s,", $i; print "" }' \
      "$columns/summary.csv" > "$columns/figures"
  done
  cmp -s "$2/figures" "$3/figures" || fail "$1: summary.csv differs"
}
