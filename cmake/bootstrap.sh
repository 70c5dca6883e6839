#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
#   sh cmake/bootstrap.sh demo    build the example train_gpt, train, write scape-demo/report.html
#   sh cmake/bootstrap.sh test    build everything and run the tests
#   sh cmake/bootstrap.sh install <package>...    only install Debian packages
#
# On Debian and Ubuntu, as root or with passwordless sudo, missing packages are installed first.
# SCAPE_OUT names another output folder, SCAPE_JOBS the number of parallel jobs.
set -eu

say() { printf '== %s\n' "$*"; }
fail() {
  printf 'bootstrap.sh: %s\n' "$*" >&2
  exit 1
}

build_tools='g++ cmake ninja-build'
example_libraries='libeigen3-dev libcli11-dev libfmt-dev'

missing_packages() {
  for package in "$@"; do
    status=$(dpkg-query -W -f '${Status}' "$package" 2>/dev/null || true)
    case $status in *' installed') ;; *) printf '%s ' "$package" ;; esac
  done
}

install_packages() {
  if ! command -v apt-get >/dev/null || ! command -v dpkg-query >/dev/null; then
    say "no apt here; needed are the equivalents of the Debian packages: $*"
    return
  fi
  missing=$(missing_packages "$@")
  [ -n "$missing" ] || return 0
  if [ "$(id -u)" -eq 0 ]; then
    as_root=
  elif command -v sudo >/dev/null && sudo -n true 2>/dev/null; then
    as_root='sudo -n'
  else
    say "not root, so not installed: $missing"
    return
  fi
  say "installing $missing"
  # Word splitting is wanted: a prefix command and a list of package names.
  # shellcheck disable=SC2086
  {
    $as_root apt-get update -q || fail 'apt-get update failed'
    $as_root env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends \
      $missing || fail "apt-get could not install $missing"
  }
}

# configure <folder> <cmake argument>...
configure() {
  folder=$1
  shift
  command -v cmake >/dev/null || fail 'cmake is not installed'
  # A build folder keeps the generator that it was made with.
  if [ ! -f "$folder/CMakeCache.txt" ] && command -v ninja >/dev/null; then
    set -- -G Ninja "$@"
  fi
  say "configuring $folder"
  cmake -S "$source" -B "$folder" -DCMAKE_BUILD_TYPE=Release -DSCAPE_NATIVE=ON "$@" ||
    fail "cmake could not configure $folder"
}

build() {
  say "building $1"
  cmake --build "$@" --parallel "$jobs" || fail "the build in $1 failed"
}

demo() {
  out=${SCAPE_OUT:-scape-demo}
  # shellcheck disable=SC2086
  install_packages $build_tools $example_libraries
  configure "$source/build/demo" -DSCAPE_BUILD_TESTS=OFF -DSCAPE_BUILD_BENCH=OFF \
    -DSCAPE_REQUIRE_DEPENDENCIES=ON
  build "$source/build/demo" --target train_gpt
  say "training into $out"
  "$source/build/demo/examples/train_gpt/train_gpt" --out "$out" || fail 'the training failed'
  [ -s "$out/report.html" ] || fail "the training left no $out/report.html"
  say "done: $(cd "$out" && pwd)/report.html"
}

run_tests() {
  # shellcheck disable=SC2086
  install_packages $build_tools $example_libraries doctest-dev
  configure "$source/build/test" -DSCAPE_BUILD_BENCH=OFF
  build "$source/build/test"
  say 'running the tests'
  ctest --test-dir "$source/build/test" --output-on-failure --parallel "$jobs" ||
    fail 'tests failed'
}

source=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd -P)
jobs=${SCAPE_JOBS:-$(nproc 2>/dev/null || echo 2)}
case $#:${1:-} in
  1:demo) demo ;;
  1:test) run_tests ;;
  *:install) shift && install_packages "$@" ;;
  *) fail 'usage: sh cmake/bootstrap.sh demo|test' ;;
esac
