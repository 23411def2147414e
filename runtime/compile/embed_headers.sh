#!/bin/bash
# Writes C++ source with text files as string literals: embed_headers.sh FILE...
set -euo pipefail
echo '#include "runtime/compile/unit.h"'
echo 'namespace resident {'
echo 'const std::map<std::string, std::string>& SdkHeaders() {'
echo '  static const auto* const headers = new std::map<std::string, std::string>{'
for file in "$@"; do
  printf '{"%s", R"SDKTEXT(' "$file"
  # NVRTC has no offsetof. The project's own build makes these checks. Their lines, one or several,
  # become empty, so that messages of compilers have the lines of the file.
  awk '/^static_assert\(__builtin_offsetof/ { check = 1 }
       { print check ? "" : $0 }
       /;$/ { check = 0 }' "$file"
  printf ')SDKTEXT"},\n'
done
# Short names.
for file in "$@"; do
  if [[ $file == kernels/sdk/* ]]; then
    printf '{"resident/%s", "#include \\"%s\\"\\n"},\n' "${file##*/}" "$file"
  fi
done
echo '};'
echo '  return *headers;'
echo '}'
echo '}  // namespace resident'
