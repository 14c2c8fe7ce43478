#!/bin/sh
# A compiler and linker launcher: runs clang++ ($1) in place of the compiler that CMake uses ($2), for the one target
# that needs libFuzzer.
clang=$1
shift 2
exec "$clang" "$@"
