#!/bin/bash
# Writes C++ source with the files of the page: embed_page.sh NAME FILE [NAME FILE]...
set -euo pipefail
echo '#include "server/console/page_files.h"'
echo 'namespace resident {'
while [[ $# -gt 0 ]]; do
  printf 'const char %s[] = R"PAGE(' "$1"
  cat "$2"
  echo ')PAGE";'
  shift 2
done
echo '}  // namespace resident'
