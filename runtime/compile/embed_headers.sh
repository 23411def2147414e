#!/bin/bash
# Writes C++ source with text files as string literals: embed_headers.sh FILE...
set -euo pipefail
echo '#include "runtime/compile/sdk_headers.h"'
echo 'namespace resident {'
echo 'const std::map<std::string, std::string>& SdkHeaders() {'
echo '  static const auto* const headers = new std::map<std::string, std::string>{'
for file in "$@"; do
  printf '{"%s", R"SDKTEXT(' "$file"
  # NVRTC has no offsetof. The project's own build makes these checks.
  sed 's/^static_assert(__builtin_offsetof.*$//' "$file"
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
