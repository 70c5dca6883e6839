#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
#   sh bench/network/run.sh PROGRAM OUT [HOSTS...] [-- LINK...]
#
# Times steps over real sockets between several hosts on this machine: PROGRAM is build/.../network,
# built with Open MPI. Every host is a network namespace behind a link of a given speed, shaped in
# both directions. Default: 2 and 4 hosts, links of 100mbit, 1gbit and 10gbit. Leaves network.csv,
# network.svg and network.html in OUT. Needs root and iproute2.
set -eu
program=$1 out=$2
shift 2
hosts='' links=''
while [ $# -gt 0 ] && [ "$1" != -- ]; do hosts="$hosts $1" && shift; done
[ $# -eq 0 ] || shift
links=$*
here=$(cd "$(dirname "$0")" && pwd)
trap 'sh "$here/hosts.sh" down' EXIT

# Open MPI moves long messages faster over TCP when it sends them than when it puts them.
export OMPI_MCA_btl_tcp_flags=send OMPI_MCA_mpi_yield_when_idle=1
for link in ${links:-1gbit 100mbit 10gbit}; do
  for count in ${hosts:-2 4}; do
    sh "$here/hosts.sh" up "$count" "$link"
    sh "$here/hosts.sh" run "$program" --link "$link" --out "$out" ${NETWORK_OPTIONS:-}
  done
done
