#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# paci.sh <paci> <launcher> <count flag> <argument>...
# The example paci as four processes over MPI: with a flush the same as four threads, bit for bit;
# asynchronous, within its bounds; and what it refuses, it refuses once.
set -u
program=$1 launcher=$2 count=$3
shift 3
. "$(dirname "$0")/../support/program.sh"
launch="$launcher $count 4 $*"

corpus > text
small="--corpus text --layers 2 --width 16 --heads 2 --context 16 --batch 2 --quiet"
small="$small --micro-batches 48 --optimizer scape-adams"

for grid in '--stages 4 --replicas 1' '--stages 2 --replicas 2'; do
  flush="$small $grid --schedule flush --flush-window 4"
  rm -rf threads mpi
  "$program" $flush --out threads > stdout 2> stderr || fail "$grid: threads"
  $launch "$program" $flush --out mpi > stdout 2> stderr || fail "$grid: mpi"
  for name in weights_hash validation_loss activation_bytes; do
    [ "$(column $name threads/summary.csv)" = "$(column $name mpi/summary.csv)" ] ||
      fail "$grid: $name differs"
  done
  $launch "$program" $small $grid --schedule paci --window 2,4 --out mpi > stdout 2> stderr ||
    fail "$grid: paci"
  [ "$(column max_drift mpi/summary.csv)" -le 1 ] || fail "$grid: drift"
  [ "$(grep -c ',step,' mpi/paci-2-seed1.events.csv)" -eq 96 ] || fail "$grid: steps"
done

$launch "$program" $small --stages 3 --out out > stdout 2> stderr
code=$?
[ "$code" -eq 2 ] || fail "exit code $code, not 2"
[ "$(grep -c '^paci: ' stderr)" -eq 1 ] || fail "not one line"
grep -q '^paci: --comm mpi: 3 stages times 1 replicas' stderr || fail "no word of the reason"
[ -e out ] && fail "something was written"

finish
