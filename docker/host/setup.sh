#!/usr/bin/env bash
# Makes the host environment `.host` in the checkout from hash-locked requirements.
# usage: docker/host/setup.sh run|dev      (dev adds the test tools). PYTHON=... chooses the interpreter.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
venv="$root/.host"
kind=${1:-run}
case "$kind" in
  run) lock="$here/requirements.lock" ;;
  dev) "${BASH_SOURCE[0]}" run; lock="$here/requirements-dev.lock" ;;
  *) echo "setup.sh: expected run or dev, got '$kind'" >&2; exit 2 ;;
esac
marker="$venv/.$kind-$(sha256sum "$lock" | cut -c1-16)"
if [[ -e "$marker" && -x "$venv/bin/python" ]]; then exit 0; fi

python=${PYTHON:-python3.11}
if ! "$python" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null; then
  echo "setup.sh: '$python' is not Python 3.11 with venv; install it (Debian 12: apt-get install python3.11-venv; where apt has no 3.11: uv python install 3.11) or set PYTHON=..." >&2
  exit 2
fi
echo "setup: making $venv ($kind) ..."
# An environment whose making was stopped has an interpreter but no pip: made anew.
"$venv/bin/python" -c 'import pip' 2>/dev/null || "$python" -m venv --clear "$venv"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --require-hashes -r "$lock"
# The checkout itself is importable from anywhere this interpreter runs.
site=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
printf '%s\n' "$root" > "$site/artifact-checkout.pth"
touch "$marker"
