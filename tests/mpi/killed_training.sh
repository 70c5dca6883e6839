#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# killed_training.sh <training> <runs> <launcher> <count flag> <argument>...
# Trainings of four ranks in which a random one is killed at a random moment: the others end within
# the deadline with an error that names it, and the same command continues from the newest
# checkpoint to the bits of an undisturbed run. Then restarts with other numbers of ranks.
set -u
program=$1 runs=$2 launcher=$3 count=$4
shift 4
folder=$(mktemp -d) || exit 1
trap 'rm -rf "$folder"' EXIT
steps=800 deadline=2000

# Open MPI's launcher ends a job whose process was killed unless it is told not to. MPICH's ends it,
# or fails itself, and can only tell that there was a kill.
case $("$launcher" --version) in
  *OpenRTE* | *'Open MPI'*) survive='--enable-recovery' ;;
  *) survive= ;;
esac
fail() {
  echo "FAILED: $*"
  [ ! -f "$folder/log" ] || cat "$folder/log"
  exit 1
}
train() { # <ranks> <folder> <steps> <launcher's arguments>...
  ranks=$1 place=$2 until=$3
  shift 3
  "$launcher" "$count" "$ranks" "$@" "$program" "$folder/$place" "$until" "$deadline"
}
state() { sed -n "s/^$1: //p" "$folder/log"; }

train 4 whole $steps "$@" > "$folder/log" 2>&1 || fail 'the undisturbed run'
whole=$(state end)
echo "undisturbed: $whole"

run=0
while [ "$run" -lt "$runs" ]; do
  run=$((run + 1))
  random=$(od -An -N4 -tu4 /dev/urandom | tr -d ' ')
  victim=$((random % 4)) pause=$((random / 4 % 1500))
  rm -rf "$folder/cut" && mkdir "$folder/cut"
  # shellcheck disable=SC2086
  train 4 cut 1000000 $survive "$@" > "$folder/log" 2>&1 &
  job=$!
  while [ "$(cat "$folder"/cut/pid-* 2> /dev/null | wc -l)" -lt 4 ] && kill -0 $job; do
    sleep 0.05
  done
  sleep "$((pause / 1000)).$(printf '%03d' $((pause % 1000)))"
  kill -9 "$(cat "$folder/cut/pid-$victim")" || fail "run $run: rank $victim is not there"
  killed=$(date +%s%N)
  wait $job
  took=$((($(date +%s%N) - killed) / 1000000))
  [ "$took" -le $((deadline + 8000)) ] || fail "run $run: it took $took ms"
  [ -n "$survive" ] || grep -q 'signal 9' "$folder/log" || fail "run $run: no word of the kill"
  for rank in 0 1 2 3; do
    [ -z "$survive" ] || [ "$rank" -eq "$victim" ] || grep -q "\[rank $rank of 4\].*rank $victim " "$folder/log" ||
      fail "run $run: rank $rank does not name rank $victim"
  done
  train 4 cut $steps "$@" > "$folder/log" 2>&1 || fail "run $run: the restart"
  start=$(state start)
  [ "$(state end)" = "$whole" ] || fail "run $run: $start led to $(state end), not to $whole"
  echo "run $run: rank $victim killed after $pause ms, the others ended after $took ms; $start"
done

train 4 few 50 "$@" > "$folder/log" 2>&1 || fail 'the run before the restarts'
before=$(state end)
for ranks in 3 6 1 4; do
  rm -rf "$folder/other" && cp -r "$folder/few" "$folder/other"
  train $ranks other 50 "$@" > "$folder/log" 2>&1 || fail "the restart with $ranks ranks"
  [ "$(state start)" = "$before" ] || fail "$ranks ranks start from $(state start), not $before"
  train $ranks other 80 "$@" > "$folder/log" 2>&1 || fail "$ranks ranks do not go on"
  echo "$ranks ranks: $before, and on to $(state end)"
done
