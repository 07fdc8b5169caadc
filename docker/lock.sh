#!/bin/sh
# Writes every requirements lock again from its requirements.in (`make lock`).
# Needs uv (in the host's development environment) and a reachable package index. A pin that is already in a
# lock stays unless its .in file asks for another one; `docker/lock.sh --upgrade` takes the newest that fit.
set -eu
cd "$(dirname "$0")"

UV=${UV:-uv}
command -v "$UV" >/dev/null 2>&1 || {
    echo "lock.sh: '$UV' not found; install docker/host/requirements-dev.lock or set UV to its path" >&2
    exit 2
}

# --no-config, and no index option or header in what is written: a lock must not carry this machine's set-up.
compile() {
    source=$1
    target=$2
    shift 2
    "$UV" pip compile --quiet --no-config --no-header --generate-hashes \
        --python-version 3.11 --python-platform x86_64-manylinux_2_28 \
        "$@" "$source" --output-file "$target" || {
        echo "lock.sh: $target was not written; see the line above, then correct docker/$source" >&2
        exit 1
    }
    echo "docker/$target"
}

# Order matters: later files name earlier locks as constraints.
compile inductor/requirements.in inductor/requirements.lock "$@"
compile tvm/requirements.in tvm/requirements.lock "$@"
compile xla/requirements-cpu.in xla/requirements-cpu.lock "$@"
compile xla/requirements-cuda.in xla/requirements-cuda.lock "$@"
compile test/requirements.in test/requirements.lock "$@"
compile host/requirements.in host/requirements.lock "$@"
compile host/requirements-dev.in host/requirements-dev.lock "$@"
