#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The example nccl_multi_gpu: graphs and the offloaded residual give the same losses, every run
# reduces its loss, and what cannot be done is refused.
# Usage: nccl_multi_gpu.sh <nccl_multi_gpu> threads|processes
set -u
program=$1
ranks=$2
. "$(dirname "$0")/../../support/program.sh"
small='--n 2000 --steps 40'

# train <output> <flags...>
train() {
  output=$1
  shift
  if [ "$ranks" = threads ]; then
    "$program" --threads $small "$@" > "$output" || fail "exit code $?: $*"
    return
  fi
  "$program" --rank 1 --size 2 --id-file id $small "$@" > second &
  pid=$!
  "$program" --rank 0 --size 2 --id-file id $small "$@" > "$output" || fail "exit code $?: $*"
  wait $pid || fail "exit code $? of rank 1: $*"
  [ -s second ] && fail "rank 1 printed something: $*"
  [ -e id ] && fail "the id file is left: $*"
}

# refuse <exit code> <words in the message> <arguments...>
refuse() {
  wanted=$1 said=$2
  shift 2
  "$program" "$@" > stdout 2> stderr
  refused $? "$wanted" "$said" "$@"
}

if [ "$ranks" = processes ]; then
  "$program" --n 1 --steps 5 > stdout || { echo "FAILED: threads"; exit 1; }
  grep -q '^1 GPU,' stdout && { echo "skipped: 2 GPUs are needed"; exit 77; }
  : > id
  refuse 1 'remove the old id file' --rank 0 --size 2 --id-file id
  rm id
else
  refuse 2 '--nonsense' --nonsense
  refuse 2 '--steps is many' --steps many
  refuse 2 '--n needs a value' --n
  refuse 2 'belong together' --rank 0
  refuse 2 'belong together' --threads --rank 0 --size 2 --id-file id
  refuse 2 'less than --size 2' --rank 2 --size 2 --id-file id
fi

train eager
train graph --graph
train offload --graph --offload
cmp eager graph || fail "graphs change the result"
cmp eager offload || fail "the offloaded residual changes the result"

# Every run starts at a loss of 0.5 and gets lower and lower.
awk '/^(dense|90 %|99 %)/ {
       sub(/ %/, "")
       ++runs
       last = 0.5
       for (i = 2; i <= 6; ++i) {
         if ($i >= last) bad = 1
         last = $i
       }
     }
     END { exit bad || runs != 3 }' eager || fail "a loss rises: $(cat eager)"

finish
