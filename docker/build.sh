#!/bin/sh
# The steps that make the image. The Dockerfile runs them, and tests/integration/image runs them too.
#
#   docker/build.sh dependencies TARGET      a virtual environment with what is pinned, without pip
#   docker/build.sh package TARGET WHEELS    the wheel of this tree, put into TARGET, kept in WHEELS
#   docker/build.sh interpreter              $PYTHON without pip, its standard library compiled
#
# TARGET is the path that the environment is run from: it cannot be moved. PYTHON is the interpreter
# to start from (python3 unless given). REQUIREMENTS names the lock file: runtime unless given, which is
# what the sidecar needs; consumer is that and what reads and exports records (without Spark). Everything that is installed is pinned by hash, or is the
# wheel made here; pip takes index, proxy and certificates from its own environment.
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

# Bytecode that is taken as it is, whatever the files' times say: image layers change times, and on
# a read-only root nothing could be compiled anew.
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
  pip_install "$1" --no-deps --no-index --find-links "$2" sidetier
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
