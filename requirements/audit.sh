#!/usr/bin/env bash
# Compare the locked versions with the published vulnerabilities (pip-audit, https://osv.dev).
# Exit code 1 when one is known. If the service cannot be asked, it says so and exits with 0.
#   AUDIT_SERVICE=https://api.osv.dev   who is asked
set -euo pipefail
cd "$(dirname "$0")/.."

service=${AUDIT_SERVICE:-https://api.osv.dev}
version=2.10.1

skip() {
    echo "audit skipped, so nothing is known of new vulnerabilities: $1"
    exit 0
}

python=.venv/bin/python
[ -x "$python" ] || python=python3
"$python" - "$service" <<'END' 2>/dev/null || skip "$service does not answer from here"
import sys, urllib.error, urllib.request
try:
    urllib.request.urlopen(sys.argv[1], timeout=10)
except urllib.error.HTTPError:
    pass  # it is there
END

tool=$(command -v pip-audit || true)
if [ -n "$tool" ]; then
    run=("$tool")
else
    uv=$(command -v uv || echo .venv/bin/uv)
    [ -x "$uv" ] || skip "there is neither pip-audit nor uv here"
    "$uv" tool run --from "pip-audit==$version" pip-audit --version >/dev/null 2>&1 ||
        skip "pip-audit $version cannot be installed from this package index"
    run=("$uv" tool run --from "pip-audit==$version" pip-audit)
fi
status=0
for lock in cuda cuda12; do # they pin two versions of torch, so each is a call of its own
    "${run[@]}" --require-hashes --disable-pip --progress-spinner off --vulnerability-service osv \
        --osv-url "$service/v1/query" \
        -r "requirements/lock-$lock.txt" -r requirements/lock-sources.txt || status=$?
done
[ $status -ne 0 ] || echo "audit: no vulnerability is known in the locked versions"
exit $status
