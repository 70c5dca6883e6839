#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The example basis_rotation from the outside: refusals, and a quick run of everything.
# Usage: basis_rotation_cli.sh <basis_rotation>
set -u
program=$1
. "$(dirname "$0")/support/program.sh"

corpus > text
quick="--quick --corpus text"

refuse '--nonsense' $quick --nonsense --out out
refuse '--stages 9' $quick --stages 1,9 --out out
refuse '--stages 0' $quick --stages 0 --out out
refuse '--methods' $quick --methods sgd --out out
refuse '--parts' $quick --parts all --out out
refuse '--lr is -1' $quick --lr -1 --out out
refuse '--lr is 1e+308' $quick --lr 1e308 --out out
refuse '--sync-lr is nan' $quick --sync-lr nan --out out
refuse '--seed' $quick --seed -1 --out out
refuse '--heads 3 does not divide' $quick --heads 3 --out out
refuse '--ranks 3 does not divide' $quick --ranks 3 --out out
refuse '--interval' $quick --interval 0 --out out
refuse 'does not exist' --quick --corpus absent --out out
refuse 'too small' $quick --context 4000 --out out

"$program" $quick --out all > stdout 2> stderr || fail "quick: $(cat stderr)"
for title in 'Steps to a validation loss' 'fastest learning rate' 'Without weight stashing' 'budget' 'energy' 'Sparse sync'
do
  grep -q "$title" stdout || fail "quick: no table '$title'"
done
grep -q '^delay 14/14: ' stderr || fail "quick: no progress"
# 7 methods with 2 numbers of stages, without stashing, and 6 budgets, at 2 learning rates.
[ "$(wc -l < all/runs.csv)" -eq $((1 + 2 * (14 + 7 + 6))) ] || fail "quick: runs.csv"
[ "$(wc -l < all/energy.csv)" -eq $((1 + 4 * 3)) ] || fail "quick: energy.csv"
[ "$(wc -l < all/sync.csv)" -eq $((1 + 2 * 13 * 3)) ] || fail "quick: sync.csv"
grep -q '</html>' all/report.html || fail "quick: report.html"
grep -q -E 'nan|(src|href)=' all/report.html && fail "quick: report.html has nan or links"

# The same command gives the same results; parts and methods are the user's choice.
"$program" $quick --parts delay --methods adam,2nd-bi --jobs 2 --quiet --out two > stdout 2> stderr ||
  fail "two methods: $(cat stderr)"
[ -s stderr ] && fail "two methods: not quiet"
[ "$(wc -l < two/runs.csv)" -eq 9 ] || fail "two methods: runs.csv"
results() { grep -E '^delay,(adam|2nd-bi),' "$1" | sed 's/,[^,]*$//'; }
[ "$(results two/runs.csv)" = "$(results all/runs.csv)" ] || fail "two methods: other results"

finish
