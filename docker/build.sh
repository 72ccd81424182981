#!/bin/sh
# The steps that make the image. The Dockerfile runs them, and tests/integration/image runs them too.
#
#   docker/build.sh dependencies TARGET      create a virtual environment with the pinned dependencies
#   docker/build.sh package TARGET WHEELS    build the wheel of this tree into WHEELS, install it in TARGET
#   docker/build.sh interpreter              remove pip from $PYTHON, and compile its standard library
#
# TARGET must be the final path of the environment, because it cannot be moved. PYTHON is the interpreter
# to use (default: python3). REQUIREMENTS names the lock file: `runtime` (default) for the sidecar, or
# `consumer` to read and export records too, without Spark. Every installed package is pinned by hash or
# is the wheel of this tree. pip takes index, proxy and certificates from its own environment.
set -eu
umask 022
tree=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)
python=${PYTHON:-python3}

pip_install() { # ENVIRONMENT ARGUMENTS...
  environment=$1
  shift
  "$python" -m pip --python "$environment/bin/python" install --quiet --no-compile \
    --disable-pip-version-check --root-user-action ignore "$@"
}

# Python does not compare this bytecode with the source files. Image layers change the times of files,
# and on a read-only root file system Python could not compile them again.
compile() { # ARGUMENTS...
  "$python" -m compileall -q --invalidation-mode unchecked-hash "$@"
}

dependencies() { # TARGET
  "$python" -m venv --without-pip "$1"
  pip_install "$1" --only-binary :all: --require-hashes \
    -r "$tree/requirements/${REQUIREMENTS:-runtime}.txt"
}

package() { # TARGET WHEELS
  tools=$(mktemp -d)
  trap 'rm -rf "$tools"' EXIT
  "$python" -m venv "$tools"
  pip_install "$tools" --require-hashes -r "$tree/requirements/build.txt"
  "$tools/bin/python" -m pip wheel --quiet --disable-pip-version-check --no-deps \
    --no-build-isolation --wheel-dir "$2" "$tree"
  # Also over another build of the same version.
  pip_install "$1" --no-deps --no-index --force-reinstall --find-links "$2" sidetier
  compile "$1/lib"
}

interpreter() {
  "$python" -m pip uninstall --quiet --yes --disable-pip-version-check \
    --root-user-action ignore pip setuptools wheel
  compile -x '/(test|tests|idle_test|site-packages|dist-packages)/' \
    "$("$python" -c 'import sysconfig; print(sysconfig.get_path("stdlib"))')"
}

step=${1:-}
[ $# -eq 0 ] || shift
case "$step $#" in
  'dependencies 1' | 'package 2' | 'interpreter 0') "$step" "$@" ;;
  *)
    sed -n '4,6s/^# *//p' "$0" >&2
    exit 2
    ;;
esac
