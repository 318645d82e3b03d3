#!/usr/bin/env bash
# vulncheck.sh GOVULNCHECK: looks for known vulnerabilities in the code that is called. Where its data (https://vuln.go.dev, or GOVULNDB)
# can't be reached, nothing was checked: it says so, leaves .out/govulncheck.unchecked for the table of CI, and passes; with RELEASE=1
# it fails, since a release is not made of what was not checked.
set -euo pipefail

mkdir -p .out
rm -f .out/govulncheck.unchecked
out=$(mktemp)
trap 'rm -f "$out"' EXIT
status=0
"$1" ${GOVULNDB:+-db "$GOVULNDB"} ./... >"$out" 2>&1 || status=$?
if ((status != 0)) && grep -q '^govulncheck: fetching vulnerabilities' "$out"; then
	echo "not checked for known vulnerabilities: $(grep '^govulncheck: fetching' "$out")" | tee .out/govulncheck.unchecked
	if [[ -n ${RELEASE:-} ]]; then
		echo "a release needs the check: set GOVULNDB to a copy of the database (file:///…) where https://vuln.go.dev can't be reached" >&2
		exit 1
	fi
	exit 0
fi
cat "$out"
exit "$status"
