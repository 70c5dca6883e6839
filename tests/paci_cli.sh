#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The example paci from the outside: refusals and results.
# Usage: paci_cli.sh <paci>
set -u
program=$1
. "$(dirname "$0")/support/program.sh"

corpus > text
small="--corpus text --layers 2 --width 16 --heads 2 --context 16 --batch 2 --quiet"

refuse '--nonsense' $small --nonsense --out out
refuse '--stages is 5' $small --stages 5 --out out
refuse '--replicas' $small --stages 4 --replicas 0 --out out
refuse '--heads 3 does not divide' $small --stages 4 --heads 3 --out out
refuse 'not a multiple of the window 8' $small --stages 4 --micro-batches 100 --out out
refuse '--window is 0' $small --stages 4 --window 0 --out out
refuse '--stages times --replicas is 2048' $small --stages 8 --layers 6 --replicas 256 --out out
refuse '--target is nan' $small --stages 4 --target nan --out out
refuse '--lr is 1e+308' $small --stages 4 --lr 1e308 --out out
refuse '--seed' $small --stages 4 --seed -1 --out out
refuse '--batch is 1152921504606846976, more' $small --stages 4 --batch 1152921504606846976 --out out
refuse '--beta1' $small --stages 4 --beta1 0.99999999999 --out out
refuse '--jitter' $small --stages 4 --jitter nan --out out
refuse '--schedule' $small --stages 4 --schedule gpipe --out out
refuse 'does not exist' $small --stages 4 --corpus absent --out out
refuse 'too small' $small --stages 4 --context 4000 --out out
refuse '^paci: --comm mpi: ' $small --stages 4 --comm mpi --out out
refuse 'needs --forward-ms' --corpus text --workload sleep --forward-ms 0 --backward-ms 0 --out out

# All schedules, with replicas and sparse steps.
"$program" $small --stages 4 --replicas 2 --optimizer scape-adams --micro-batches 80 --out all \
  > stdout 2> stderr || fail "compare: $(cat stderr)"
[ -s stderr ] && fail "compare: not quiet"
grep -q 'PACI, a = 8' stdout || fail "compare: no table"
[ "$(wc -l < all/summary.csv)" -eq 6 ] || fail "compare: summary.csv"
[ "$(wc -l < all/paci-4-seed1.events.csv)" -eq 1441 ] || fail "compare: events"
[ "$(wc -l < all/paci-4-seed1.csv)" -eq 21 ] || fail "compare: curve"
grep -q '</html>' all/report.html || fail "compare: report.html"
grep -q -E 'nan|(src|href)=' all/report.html && fail "compare: report.html has nan or links"
find all -name '*tmp*' | grep -q . && fail "compare: temporary files are left"

# A flush is the same training in any number of stages where nothing is clipped; sleeping is too.
flush="$small --schedule flush --flush-window 4 --micro-batches 40 --clip 0"
"$program" $flush --stages 1 --out one > /dev/null || fail "one stage"
"$program" $flush --stages 4 --out four > /dev/null || fail "four stages"
"$program" $flush --stages 3 --forward-ms 0.5 --jitter 0.5 --out slow > /dev/null || fail "slow"
for other in four slow; do
  [ "$(column weights_hash one/summary.csv)" = "$(column weights_hash $other/summary.csv)" ] ||
    fail "$other: other weights"
done

# Passes that only take time.
"$program" --corpus text --workload sleep --micro-batches 16 --forward-ms 0.5 --backward-ms 1 \
  --quiet --out sleep > stdout || fail "sleep"
[ "$(column max_drift sleep/summary.csv)" -le 1 ] || fail "sleep: drift"

# A run that is asked for twice is made once.
"$program" --corpus text --workload sleep --micro-batches 16 --forward-ms 0.1 --backward-ms 0.1 \
  --flush-window 4,4 --window 1,4,4 --quiet --out twice > stdout || fail "twice"
[ "$(wc -l < twice/summary.csv)" -eq 4 ] || fail "twice: summary.csv"

finish
