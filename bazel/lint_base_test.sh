#!/usr/bin/env bash
# .ci/lint compares with a revision in front of the committed changes, in every kind of clone.
#
#   bazel/lint_base_test.sh LINT_BASE
set -uo pipefail

lint_base=$(realpath "$1")
work=$(mktemp -d "${TEST_TMPDIR:-/tmp}/lint_base.XXXXXX")
trap 'rm -rf "$work"' EXIT
unset LINT_BASE GIT_DIR GIT_WORK_TREE
export GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_SYSTEM=/dev/null
export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b

passed=0 failed=0
# In a clone: the script, with these arguments, prints this revision and a reason with this text.
expect() {  # what clone revision reason arguments...
  local what=$1 clone=$work/$2 revision=$3 reason=$4 output
  shift 4
  output=$(cd "$clone" && "$lint_base" "$@" 2>&1)
  if [[ $output == "$(git -C "$clone" rev-parse "$revision")"$'\n'*"$reason"* ]]; then
    passed=$((passed + 1))
  else
    failed=$((failed + 1))
    printf 'failed: %s\n%s\n' "$what" "$output"
  fi
}
commit() { git -C "$work/$1" commit --quiet --allow-empty -m "$2"; }
clone() { git clone --quiet "${@:3}" "file://$work/$1" "$work/$2"; }

git init --quiet --initial-branch=main "$work/main"
commit main one
commit main two
expect "on the main branch without a remote: the last commit" main HEAD~1 "the parent of HEAD"

git -C "$work/main" checkout --quiet -b topic
commit main three
commit main four
expect "on a branch without a remote: all its commits" main main "common commit with main"
git -C "$work/main" checkout --quiet main

clone main copy
expect "at origin/main: the last commit" copy HEAD~1 "the parent of HEAD"
commit copy five
commit copy six
expect "in front of origin/main: all commits" copy origin/main "common commit with origin/main"
expect "a revision as an argument" copy HEAD~1 "as requested" HEAD~1
LINT_BASE=HEAD~2 expect "a revision in the environment" copy HEAD~2 "as requested"

git -C "$work/main" merge --quiet --no-ff -m merge topic
expect "a merge: everything that it brought" main HEAD^1 "the parent of HEAD"

clone main shallow --depth=1
expect "depth 1: changes that are not committed" shallow HEAD "Fix: git fetch --deepen=1"
commit shallow seven
expect "depth 1: a commit on top of the clone" shallow HEAD~1 "common commit with origin/main"

clone main branch --depth=1 --no-single-branch --branch=topic
git -C "$work/branch" checkout --quiet --detach
git -C "$work/branch" branch --quiet -D topic
expect "depth 1: a branch" branch origin/main "lacks the last common commit"

if (cd "$work/main" && "$lint_base" nothing) >"$work/output" 2>&1 ||
  ! grep -q "'nothing' is not a commit. Fix: " "$work/output"; then
  failed=$((failed + 1))
  echo "failed: a revision that does not exist is refused"
else
  passed=$((passed + 1))
fi

echo "$passed passed, $failed failed"
[[ $failed -eq 0 ]]
