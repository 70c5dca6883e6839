#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# lost_rank.sh <mpi_process> killed|killed_messages|throws <launcher> <argument>...
# Rank 1 of 3 is lost: within the deadline the job is over, failed, and every survivor has printed
# an error that names rank 1. Where the launcher lets nobody survive a killed process, it only has
# to say so: MPICH's does not, with -disable-auto-cleanup either, and does not tell the rank.
set -u
program=$1 mode=$2 launcher=$3
shift 3

survive='' least=1 named=1
if [ "$mode" != throws ]; then
  case $("$launcher" --version) in
    # With this option mpirun returns 0 whatever the survivors return.
    *OpenRTE* | *'Open MPI'*) survive='--enable-recovery' least=0 ;;
    *) named=0 ;;
  esac
fi

start=$(date +%s)
# shellcheck disable=SC2086
output=$("$launcher" $survive "$@" "$program" "$mode" 2>&1)
code=$?
took=$(($(date +%s) - start))
printf '%s\nexit code %s after %s s\n' "$output" "$code" "$took"

[ "$code" -ge "$least" ] || exit 1
[ "$took" -le 20 ] || exit 1
if [ "$named" -eq 0 ]; then
  printf '%s\n' "$output" | grep -q 'Killed (signal 9)'
  exit
fi
for rank in 0 2; do
  printf '%s\n' "$output" | grep -q "rank $rank of 3.*rank 1 " || {
    echo "rank $rank does not name rank 1"
    exit 1
  }
done
