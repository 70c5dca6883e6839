#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The program bench/scaling from the outside: refusals, files, and the figures in them.
# Usage: scaling_cli.sh <scaling>
set -u
program=$1
. "$(dirname "$0")/support/program.sh"

# refuse <words in the message> <arguments...>
refuse() {
  said=$1
  shift
  "$program" "$@" --out out > stdout 2> stderr
  refused $? 2 "$said" "$@"
}

# cell <folder> <run> <ranks> <column>
cell() {
  awk -F, -v run="$2" -v ranks="$3" -v name="$4" '
    NR == 1 { for (i = 1; i <= NF; ++i) if ($i == name) c = i }
    $1 == run && $3 == ranks { print $c }' "$1/scaling.csv"
}

# between <low> <value> <high>
between() {
  awk -v low="$1" -v value="$2" -v high="$3" \
    'BEGIN { exit !(value != "" && value + 0 >= low && value + 0 <= high) }' ||
    fail "$2 is not between $1 and $3"
}

# predict <folder> <arguments...>
predict() {
  out=$1
  shift
  "$program" "$@" --out "$out" > stdout 2> stderr || fail "$*"
  grep -q 'A model, not a measurement' stdout || fail "$*: not marked as a model"
  grep -q 'A model, not a measurement' "$out/scaling.html" || fail "$*: not marked in the page"
  grep -q '</html>' "$out/scaling.html" || fail "$*: scaling.html"
  grep -q '<svg' "$out/scaling.html" || fail "$*: no plot"
  grep -q -i -E 'nan|inf,|(src|href)=' "$out/scaling.html" && fail "$*: nan or links in the page"
  # Columns 4 to 12 are the phases, 13 the total.
  awk -F, 'NR > 1 { sum = 0; for (i = 4; i <= 12; ++i) sum += $i
             if (sum < 0.999999 * $13 || sum > 1.000001 * $13 || !($14 > 0 && $14 <= 1.000001))
               bad = 1 }
           END { exit bad || NR < 3 }' "$out/scaling.csv" || fail "$*: scaling.csv"
}

refuse '--nonsense' --nonsense
refuse '--parameters' --parameters 0
refuse '--density' --density 1.5
refuse '--density' --density nan
refuse '--link' --link 0
refuse '--memory' --memory 1e-307
refuse '--offload' --offload 1e-320
refuse '--flops' --flops 1e-290
refuse '--to' --from 8 --to 4
refuse '--algorithm' --algorithm star
refuse 'element has 3 bytes' --value-bytes 3
refuse '12 ranks do not fill nodes of 8' --ranks-per-node 8 --to 12
refuse '--paper' --paper --tokens 1000
refuse 'no compute and offload bandwidth' --paper --memory 1

# 1024 floats on 4 ranks: 3 messages of 1024 bytes, each way.
predict small --parameters 1024 --tokens 1 --density 0.5 --to 4
[ "$(wc -l < small/scaling.csv)" -eq 7 ] || fail "small: rows"
[ "$(cell small dense 4 value_bytes)" = 3072 ] || fail "small: bytes of dense"
[ "$(cell small 'SCAPE 50 %' 4 value_bytes)" = 1536 ] || fail "small: bytes of values"
[ "$(cell small 'SCAPE 50 %' 4 mask_bytes)" = 96 ] || fail "small: bytes of masks"
between 0.0000420614 "$(cell small dense 4 reduce_scatter_s)" 0.0000420615  # 3 * 14 us + 61.44 ns

predict default
for run in dense 'SCAPE 90 %' 'SCAPE 99 %'; do
  between 1 "$(cell default "$run" 1 efficiency)" 1
  last=1
  for ranks in 2 8 64 512 4096 8192 10240; do
    efficiency=$(cell default "$run" $ranks efficiency)
    between 0.001 "$efficiency" "$last"
    last=$efficiency
  done
done
for ranks in 8 64 1024 10240; do
  between "$(cell default dense $ranks efficiency)" "$(cell default 'SCAPE 90 %' $ranks efficiency)" 1
  between "$(cell default 'SCAPE 90 %' $ranks speedup)" \
    "$(cell default 'SCAPE 99 %' $ranks speedup)" 10
done
predict flat --flops 1  # efficiencies that differ in their last digits only
predict tree --algorithm tree
between "$(cell default 'SCAPE 99 %' 10240 speedup)" "$(cell tree 'SCAPE 99 %' 10240 speedup)" 20

# Two figures are fitted, whatever the link; the third is predicted.
for link in 400 200; do
  predict paper-$link --paper --link $link
  between 0.17579 "$(cell paper-$link dense 64 efficiency)" 0.17581
  between 0.55039 "$(cell paper-$link 'SCAPE 99 %' 64 efficiency)" 0.55041
  between 3.0 "$(cell paper-$link 'SCAPE 99 %' 64 speedup)" 3.5
  grep -q -E 'SCAPE over dense, per step +3.26x +3\.[0-9]+x +predicted' stdout || fail "paper: table"
done
between 1.9 "$(awk -v a="$(cell paper-200 dense 64 compute_s)" \
  -v b="$(cell paper-400 dense 64 compute_s)" 'BEGIN { print a / b }')" 2.1

finish
