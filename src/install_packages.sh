#!/bin/sh
# Installs the Debian or Ubuntu packages that the build needs, or says which are missing.
#   src/install_packages.sh [FURTHER PACKAGE...]
# As root missing packages are installed by apt-get; otherwise the exact line is printed and the exit
# code is 1. On a system without dpkg it prints the list and leaves the rest to CMake.
set -eu

packages="cmake ninja-build g++ libabsl-dev libgtest-dev libgmock-dev libbenchmark-dev libcli11-dev \
nlohmann-json3-dev libssl-dev python3 $*"

if ! command -v dpkg-query >/dev/null 2>&1; then
  echo "Not a Debian system; CMake will look for what these packages hold: $packages"
  exit 0
fi

missing=""
for package in $packages; do
  status=$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null || true)
  [ "$status" = installed ] || missing="$missing $package"
done
# A cmake or compiler from elsewhere serves as well.
for pair in cmake:cmake ninja-build:ninja g++:g++ python3:python3 patchelf:patchelf doxygen:doxygen; do
  if command -v "${pair#*:}" >/dev/null 2>&1; then
    missing=$(echo " $missing " | sed "s/ ${pair%:*} / /")
  fi
done
missing=$(echo $missing)
[ -n "$missing" ] || exit 0

if [ "$(id -u)" -ne 0 ]; then
  echo "Packages are missing. Install them with" >&2
  echo "  sudo apt-get install -y --no-install-recommends $missing" >&2
  exit 1
fi
echo "Installing $missing"
export DEBIAN_FRONTEND=noninteractive
apt-get update -q
apt-get install -q -y --no-install-recommends $missing
