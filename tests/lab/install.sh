#!/bin/sh
# What lab nodes need beyond Python: sshd, ip, unshare, nsenter; for tests of time chronyd and
# faketime; for the exporter prometheus, for the fan-out's benchmark its peers, and for simulated clocks
# and locks a C compiler, without which their tests are skipped. Debian and Ubuntu, as root.
# Exit 0 when all that nodes need is there. Otherwise the tests still run, on loopback nodes, and say so.
set -u
PATH=$PATH:/usr/sbin:/sbin
missing=
[ -x /usr/sbin/sshd ] || missing="$missing openssh-server"
command -v ssh >/dev/null || missing="$missing openssh-client"
command -v ip >/dev/null || missing="$missing iproute2"
command -v nsenter >/dev/null && command -v unshare >/dev/null || missing="$missing util-linux"
command -v chronyd >/dev/null || missing="$missing chrony"
command -v faketime >/dev/null || missing="$missing faketime"
extra=
command -v promtool >/dev/null || extra="$extra prometheus"
[ -x /usr/bin/clush ] || extra="$extra clustershell"
command -v pdsh >/dev/null || extra="$extra pdsh"
command -v parallel >/dev/null || extra="$extra parallel"
command -v cc >/dev/null || extra="$extra gcc libc6-dev"
[ -n "$missing$extra" ] || exit 0
if [ "$(id -u)" != 0 ]; then
    [ -n "$missing" ] || exit 0
    echo "lab nodes need$missing and root; without them the ssh tests use loopback nodes" >&2
    exit 1
fi
if ! command -v apt-get >/dev/null; then
    [ -n "$missing" ] || exit 0
    echo "lab nodes need$missing; there is no apt-get here, install them by hand" >&2
    exit 1
fi
export DEBIAN_FRONTEND=noninteractive
# No daemon is wanted, only the program: policy-rc.d is how Debian is told.
policy=/usr/sbin/policy-rc.d
made_policy=
if [ ! -e $policy ]; then
    printf '#!/bin/sh\nexit 101\n' >$policy && chmod +x $policy && made_policy=1
fi
log=$(mktemp)
status=0
if [ -n "$missing" ]; then
    (apt-get update -q && apt-get install -q -y --no-install-recommends $missing) >"$log" 2>&1
    status=$?
fi
if [ -n "$extra" ] && [ $status = 0 ]; then
    # Apart, and not for long: the nodes can do without them.
    [ -n "$missing" ] || timeout 30 apt-get update -q >>"$log" 2>&1
    for package in $extra; do
        timeout 90 apt-get install -q -y --no-install-recommends "$package" >>"$log" 2>&1 ||
            echo "not installed: $package; the tests that need it are skipped" >&2
    done
fi
[ -z "$made_policy" ] || rm -f $policy
if [ $status != 0 ]; then
    echo "lab nodes need$missing, which apt-get could not install (offline?): see $log; the ssh tests use loopback nodes" >&2
    exit 1
fi
rm -f "$log"
