#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
#   hosts.sh up COUNT RATE     makes hosts scape-0, scape-1, ... with links of RATE (as tc has it)
#   hosts.sh run PROGRAM...    one MPI process on each of them, over TCP
#   hosts.sh down              removes them
#
# A host is a network namespace; a switch namespace connects them. For Open MPI, as root.
set -eu
self=$(cd "$(dirname "$0")" && pwd)/hosts.sh
net=10.88.0

names() { ip netns list | sed -n 's/^scape-\([0-9][0-9]*\).*/\1/p' | sort -n; }

# shape <namespace> <interface> <rate>
shape() {
  ip netns exec "$1" tc qdisc replace dev "$2" root tbf rate "$3" burst 256kb latency 200ms
}

case ${1:-} in
  up)
    sh "$self" down
    ip netns add scape-switch
    ip -n scape-switch link add bridge type bridge
    ip -n scape-switch link set bridge up
    for i in $(seq 0 $(($2 - 1))); do
      ip netns add "scape-$i"
      ip -n "scape-$i" link set lo up
      ip link add wire netns "scape-$i" type veth peer name "plug$i" netns scape-switch
      ip -n scape-switch link set "plug$i" master bridge up
      ip -n "scape-$i" addr add "$net.$((i + 1))/24" dev wire
      ip -n "scape-$i" link set wire up
      shape "scape-$i" wire "$3"
      shape scape-switch "plug$i" "$3"
    done
    ;;
  run)
    shift
    where=$(names | while read -r i; do printf '%s.%s:1,' "$net" $((i + 1)); done)
    [ -n "$where" ] || { echo 'hosts.sh: no hosts yet; hosts.sh up COUNT RATE' >&2 && exit 2; }
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
    export OMPI_MCA_plm_rsh_agent="sh $self remote" OMPI_MCA_btl=self,tcp
    export OMPI_MCA_btl_tcp_if_include=$net.0/24 OMPI_MCA_oob_tcp_if_include=$net.0/24
    export OMPI_MCA_hwloc_base_binding_policy=none
    exec ip netns exec scape-0 mpirun --host "${where%,}" \
      -x OMPI_MCA_btl_tcp_flags -x OMPI_MCA_mpi_yield_when_idle "$@"
    ;;
  remote) # mpirun's remote shell: remote ADDRESS COMMAND...
    number=${2##*.}
    shift 2
    exec ip netns exec "scape-$((number - 1))" sh -c "$*"
    ;;
  down)
    for i in $(names) switch; do
      if ip netns list | grep -q "^scape-$i\b"; then ip netns del "scape-$i"; fi
    done
    ;;
  *)
    sed -n 's/^#   //p' "$self" >&2
    exit 2
    ;;
esac
