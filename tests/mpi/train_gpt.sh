#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# train_gpt.sh <train_gpt> <launcher> <count flag> <argument>...
# The example train_gpt as two processes over MPI is the same as two threads, bit for bit, also when
# one goes on where the other was interrupted; and what it refuses, it refuses once.
set -u
program=$1 launcher=$2 count=$3
shift 3
. "$(dirname "$0")/../support/program.sh"

corpus > text
small="--corpus text --batch 2 --layers 1 --width 16 --heads 2 --context 16 --quiet"
sparse="$small --optimizer scape-adams --density 0.1"
launch="$launcher $count 2 $*"

# train threads|mpi <arguments>...: its exit code, stdout and stderr; and in pid-1 the number of its
# process, over MPI of that of rank 1.
train() {
  case $1 in
    threads) shift && set -- --ranks 2 "$@" && prefix= ;;
    mpi) shift && prefix=$launch ;;
  esac
  # shellcheck disable=SC2016,SC2086
  $prefix sh -c 'echo $$ > "pid-${OMPI_COMM_WORLD_RANK:-${PMI_RANK:-1}}"; exec "$@"' sh \
    "$program" "$@" > stdout 2> stderr
}

# same <name> <folder> <folder>: equal curves, and equal figures but for the times.
same() {
  for csv in "$2"/*-seed1.csv; do
    cmp -s "$csv" "$3/${csv##*/}" || fail "$1: ${csv##*/} differs"
  done
  for place in "$2" "$3"; do
    awk -F, 'NR == 1 { for (i = 1; i <= NF; ++i) time[i] = $i ~ /^ms_/ }
             { for (i = 1; i <= NF; ++i) if (!time[i]) printf "%s,", $i; print "" }' \
      "$place/summary.csv" > "$place.figures"
  done
  cmp -s "$2.figures" "$3.figures" || fail "$1: summary.csv differs"
}

# refuse <words> <arguments>...: besides what the launcher has to say.
refuse() {
  said=$1
  shift
  train mpi "$@" --out out
  code=$?
  mv stderr all
  grep '^train_gpt: ' all > stderr || cat all
  refused $code 2 "$said" "$@"
}

refuse '--ranks is 3, the number of processes 2' $small --ranks 3
refuse '--comm' $small --comm pigeons
refuse '--nonsense' $small --nonsense
refuse 'does not exist' $small --corpus absent
refuse 'no checkpoint' $small --resume

# Ranks whose arguments differ: the example's deadline is a day.
for other in '--steps 30' '--lr 1' '--width 32' '--wire fp16' '--checkpoint-every 3'; do
  # shellcheck disable=SC2016,SC2086
  $launch sh -c '[ "${OMPI_COMM_WORLD_RANK:-${PMI_RANK:-0}}" -eq 0 ] || set -- "$@" '"$other"'
                 exec "$@"' sh "$program" $sparse --steps 20 --out out > stdout 2> stderr
  code=$?
  [ "$code" -eq 2 ] || fail "exit code $code, not 2: $other on one rank"
  grep -q '^train_gpt: rank 1 has other arguments' stderr || fail "not named: $other on one rank"
  rm -rf out
done

# A whole suite, printed by one process.
train threads $small --steps 20 --out threads || fail 'the suite as threads'
train mpi $small --steps 20 --out mpi || fail 'the suite over MPI'
[ "$(grep -c '^Report: ' stdout)" -eq 1 ] || fail 'the report is not printed once'
same suite threads mpi
train mpi $small --steps 20 --comm mpi --ranks 2 --out asked || fail '--comm mpi --ranks 2'
same '--comm mpi' threads asked

# One is interrupted, over MPI by a signal to rank 1 only, and the other goes on.
long="$sparse --wire bf16 --steps 1500"
train threads $long --out whole || fail 'the undisturbed run'
for first in threads mpi; do
  [ $first = mpi ] && second=threads || second=mpi
  train $first $long --checkpoint-every 50 --out $first-first &
  job=$!
  while [ ! -e $first-first/scape-adams-90-seed1.checkpoint ] && kill -0 $job; do sleep 0.02; done
  kill -TERM "$(cat pid-1)"
  wait $job
  code=$?
  [ $code -eq 130 ] || fail "$first: exit code $code after SIGTERM"
  [ "$(grep -c 'interrupted; the same command' stderr)" -eq 1 ] || fail "$first: no word of it"
  steps=$(($(wc -l < $first-first/scape-adams-90-seed1.csv) - 1))
  [ "$steps" -ge 50 ] && [ "$steps" -lt 1500 ] || fail "$first: $steps steps when interrupted"
  train $second $long --resume --out $first-first || fail "$second does not go on"
  same "$first, from step $steps $second" whole $first-first
  echo "$first, from step $steps $second: $(sed -n 's/.*,//; 2p' whole/summary.csv)"
done

# An error of one rank ends the job.
mkdir -p broken/scape-adams-90-seed1.checkpoint.tmp
train mpi $sparse --steps 20 --out broken && fail 'exit code 0 after an error'
grep -q '^train_gpt: rank 0: cannot write' stderr || fail 'no word of the error'

finish
