# SPDX-License-Identifier: Apache-2.0
# For tests of a program from the outside, which read this with `.` when $program is set: goes to a
# folder that is removed in the end, where stdout and stderr are what the last command said.
[ -x "$program" ] || { echo "no program '$program'"; exit 1; }
folder=$(mktemp -d) || exit 1
trap 'rm -rf "$folder"' EXIT
cd "$folder" || exit 1
failures=0

# fail <what>...: to go on nevertheless.
fail() {
  echo "FAILED: $*"
  cat stdout stderr 2> /dev/null
  failures=$((failures + 1))
}

# refused <exit code> <expected> <words> <argument>...: that the last command, of these arguments,
# said one line with these words on stderr, nothing on stdout, and wrote nothing to the folder out.
refused() {
  code=$1 expected=$2 words=$3
  shift 3
  [ "$code" -eq "$expected" ] || fail "exit code $code, not $expected: $*"
  [ "$(wc -l < stderr)" -eq 1 ] || fail "not one line on stderr: $*"
  grep -q -e "$words" stderr || fail "no '$words' on stderr: $*"
  [ -s stdout ] && fail "something on stdout: $*"
  [ -e out ] && fail "something was written: $*"
  rm -rf out
}

# refuse <words> <argument>...: that the program refuses these arguments as a wrong usage.
refuse() {
  said=$1
  shift
  "$program" "$@" > stdout 2> stderr
  refused $? 2 "$said" "$@"
}

# column <name> <csv>: that column of the last line.
column() {
  awk -F, -v name="$1" 'NR == 1 { for (i = 1; i <= NF; ++i) if ($i == name) c = i }
                        END { print $c }' "$2"
}

# corpus: 400 lines for train_gpt.
corpus() {
  i=0
  while [ $i -lt 400 ]; do
    echo "line $i of a text that repeats itself, with $((i * i % 97)) and $((i * 7 % 31))"
    i=$((i + 1))
  done
}

finish() {
  [ "$failures" -eq 0 ] && echo 'all passed'
  exit "$((failures > 0))"
}
