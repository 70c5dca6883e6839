#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The example train_gpt from the outside: refusals, results, interruption and resuming.
# Usage: train_gpt_cli.sh <train_gpt>
set -u
program=$1
. "$(dirname "$0")/support/program.sh"

corpus > text
small="--corpus text --ranks 3 --batch 2 --layers 1 --width 16 --heads 2 --context 16 --quiet"
sparse="$small --optimizer scape-adams --density 0.1"

# Bad input.
refuse '--nonsense' $small --nonsense
refuse '--steps' $small --steps many --out out
refuse '--ranks' $small --ranks 0 --out out
refuse '--heads 3 does not divide' $small --heads 3 --out out
refuse '--density' $sparse --density 1.5 --out out
refuse '--density' $sparse --density nan --out out
refuse '--optimizer' $small --optimizer sgd --out out
refuse '--device' $small --device tpu --out out
refuse '^train_gpt: --device cuda: ' $small --device cuda --ranks 1024 --out out
refuse '^train_gpt: --comm mpi: ' $small --comm mpi --out out
refuse '--density' $small --density 0.5 --out out
refuse '--lr is -1' $small --lr -1 --out out
refuse '--lr is 1e+308' $small --lr 1e308 --out out
refuse '--seed' $small --seed -1 --out out
refuse '--width is 100001, more' $small --width 100001 --heads 1 --out out
refuse '--beta1' $small --beta1 1 --out out
refuse '--beta1' $small --beta1 0.99999998 --out out
refuse '--batch is 1152921504606846976, more' $small --batch 1152921504606846976 --out out
refuse 'does not exist' $small --corpus absent --out out
refuse 'too small' $small --context 4000 --out out
: > empty
refuse 'too small' $small --corpus empty --out out
refuse 'cannot be used' $small --out text/out
refuse 'no checkpoint' $small --resume --out out
[ "$(id -u)" -eq 0 ] || {
  : > secret
  chmod 0 secret
  refuse 'secret' $small --corpus secret --out out
}

# A whole suite.
"$program" $small --steps 12 --out suite > stdout 2> stderr || fail suite
[ -s stderr ] && fail "suite: not quiet"
grep -q 'SCAPE-AdamS 99 %' stdout || fail "suite: no table"
[ "$(wc -l < suite/summary.csv)" -eq 5 ] || fail "suite: summary.csv"
[ "$(wc -l < suite/scape-adams-90-seed1.csv)" -eq 13 ] || fail "suite: scape-adams-90-seed1.csv"
grep -q '</html>' suite/report.html || fail "suite: report.html"
grep -q -E 'nan|(src|href)=' suite/report.html && fail "suite: report.html has nan or links"
ls suite | grep -q tmp && fail "suite: temporary files are left"

# Full density is the dense optimizer, bit for bit; so are two equal runs.
"$program" $small --steps 12 --optimizer scape-adams --density 1 --out full > /dev/null ||
  fail "full density"
dense=$(grep '^dense-adams,' suite/summary.csv | sed 's/.*,//')
[ "$(column weights_hash full/summary.csv)" = "$dense" ] || fail "density 1 is not dense"
"$program" $sparse --steps 12 --out again > /dev/null || fail "again"
cmp -s again/scape-adams-90-seed1.csv suite/scape-adams-90-seed1.csv || fail "two runs differ"

# Interrupted and resumed is the same as undisturbed.
for wire in fp32 bf16; do
  long="$sparse --wire $wire --steps 1500"
  "$program" $long --out whole-$wire > /dev/null || fail "$wire: undisturbed run"
  "$program" $long --checkpoint-every 50 --out parts-$wire > stdout 2> stderr &
  pid=$!
  while [ ! -e parts-$wire/scape-adams-90-seed1.checkpoint ] && kill -0 $pid; do sleep 0.02; done
  kill -TERM $pid
  wait $pid
  code=$?
  [ "$code" -eq 130 ] || fail "$wire: exit code $code after SIGTERM"
  [ "$(column status parts-$wire/summary.csv)" = interrupted ] || fail "$wire: status"
  done=$(column steps parts-$wire/summary.csv)
  [ "$done" -gt 0 ] && [ "$done" -lt 1500 ] || fail "$wire: $done steps when interrupted"

  "$program" $long --lr 0.1 --resume --out parts-$wire > stdout 2> stderr
  [ $? -eq 2 ] && grep -q 'lr is 0.002 there and 0.1 here' stderr || fail "$wire: other settings"

  "$program" $long --resume --out parts-$wire > /dev/null || fail "$wire: resumed run"
  for name in weights_hash validation_loss steps status; do
    [ "$(column $name parts-$wire/summary.csv)" = "$(column $name whole-$wire/summary.csv)" ] ||
      fail "$wire: $name differs after resuming"
  done
  cmp -s parts-$wire/scape-adams-90-seed1.csv whole-$wire/scape-adams-90-seed1.csv ||
    fail "$wire: the curves differ after resuming"
done

# A damaged checkpoint is refused.
printf x |
  dd of=parts-fp32/scape-adams-90-seed1.checkpoint bs=1 seek=3000 conv=notrunc 2> /dev/null
"$program" $sparse --steps 1500 --resume --out parts-fp32 > stdout 2> stderr
[ $? -eq 2 ] && grep -q 'damaged' stderr || fail "damaged checkpoint"

finish
