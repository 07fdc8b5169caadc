#!/bin/sh
# Makes a minimal Debian bookworm and imports it as a local image: the base of the stack images on machines that
# cannot pull the digest-pinned one.
#
#   docker/base/make-base.sh [TAG]        TAG is gaps-base:bookworm unless given
#
# Environment: DOCKER (CLI to use, default docker), DEBIAN_MIRROR (archive to use instead of this machine's own).
# Needs mmdebstrap; without root also user namespaces (package uidmap), where the machine allows them.
# The files come from the Debian sources that this machine's apt is configured with, from mmdebstrap's default
# ones where it has none for bookworm. An existing TAG is kept: remove it first to make it anew.
set -eu

suite=bookworm
tag=${1:-gaps-base:$suite}
docker=${DOCKER:-docker}

fail() {
    echo "make-base: $1" >&2
    exit "${2:-1}"
}

command -v "$docker" >/dev/null 2>&1 || fail "no '$docker' command; install docker.io or set DOCKER" 2
"$docker" version >/dev/null 2>&1 || fail "'$docker' gets no answer from an engine; start dockerd or check your permission" 2

if id=$("$docker" image inspect --format '{{.Id}}' "$tag" 2>/dev/null); then
    echo "$tag $id"
    exit 0
fi
command -v mmdebstrap >/dev/null 2>&1 || fail "no mmdebstrap; install it: apt-get install mmdebstrap" 2
# Without root, mmdebstrap unpacks in a user namespace (newuidmap, a range in /etc/subuid) or under fakechroot.
if [ "$(id -u)" != 0 ] && ! command -v fakechroot >/dev/null 2>&1; then
    command -v newuidmap >/dev/null 2>&1 ||
        fail "mmdebstrap without root needs user namespaces: apt-get install uidmap, or run once: sudo '$0'" 2
    grep -q -e "^$(id -un):" -e "^$(id -u):" /etc/subuid 2>/dev/null ||
        fail "mmdebstrap without root needs a range of ids for $(id -un) in /etc/subuid: run once: sudo '$0'" 2
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# One "deb URI SUITE main" line for each bookworm suite this machine's apt knows.
sources="$work/sources.list"
if [ -n "${DEBIAN_MIRROR:-}" ]; then
    echo "deb $DEBIAN_MIRROR $suite main" >"$sources"
else
    # $(...) in the format belongs to apt-get, not to the shell.
    # shellcheck disable=SC2016
    apt-get indextargets --format '$(REPO_URI) $(RELEASE) $(COMPONENT)' 'Created-By: Packages' 2>/dev/null |
        awk -v suite="$suite" '$3 == "main" && ($2 == suite || $2 == suite "-updates" || $2 == suite "-security") {
            print "deb", $1, $2, $3 }' | sort -u >"$sources"
    grep -q " $suite main$" "$sources" || : >"$sources"
fi

# As in Debian's slim images: no manuals and translations, copyright files stay. The clock of the files is fixed, so
# that equal packages give an equal archive.
set -- --variant=minbase --include=ca-certificates --format=tar \
    --dpkgopt=path-exclude=/usr/share/doc/* --dpkgopt=path-include=/usr/share/doc/*/copyright \
    --dpkgopt=path-exclude=/usr/share/man/* --dpkgopt=path-exclude=/usr/share/info/* \
    --dpkgopt=path-exclude=/usr/share/locale/* --dpkgopt=path-exclude=/usr/share/lintian/* \
    --aptopt='APT::Install-Recommends "false"' \
    "$suite" "$work/base.tar"
if [ -s "$sources" ]; then
    set -- "$@" "$sources"
fi
hint=
[ "$(id -u)" = 0 ] || hint=", or, where user namespaces are forbidden, run once: sudo '$0'"
SOURCE_DATE_EPOCH=1735689600 TMPDIR="$work" mmdebstrap "$@" >"$work/log" 2>&1 ||
    fail "mmdebstrap failed: $(grep '^E:' "$work/log" | head -n 1); check the network, or set DEBIAN_MIRROR$hint"

sha256=$(sha256sum "$work/base.tar" | cut -d ' ' -f 1)
id=$("$docker" import --change 'CMD ["/bin/bash"]' --change "LABEL gaps.base=$suite" \
    --change "LABEL gaps.base-archive-sha256=$sha256" "$work/base.tar" "$tag" 2>"$work/log") ||
    fail "docker import failed: $(tail -n 1 "$work/log")"
echo "$tag $id"
