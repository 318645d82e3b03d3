#!/usr/bin/env bash
# ci.sh STAGE…: runs make targets one after the other, until one fails, and sums up.
set -euo pipefail

export CI=true
mkdir -p .out
start=$SECONDS
table=()
failed=0
for stage in "$@"; do
	began=$SECONDS
	if make --no-print-directory "$stage"; then
		verdict=ok
	else
		verdict=FAILED
		failed=$((failed + 1))
	fi
	table+=("$(printf '%-8s %-6s %5d s' "$stage" "$verdict" $((SECONDS - began)))")
	if ((failed > 0)); then
		break
	fi
done

# count ACTION: test events of that kind, packages' own left out.
count() {
	cat .out/*.json 2>/dev/null | grep '"Test":' | grep -c "\"Action\":\"$1\"" || true
}

echo
printf '%s\n' "${table[@]}"
if [[ -e .out/govulncheck.unchecked ]]; then
	echo "known vulnerabilities: NOT CHECKED (the database could not be reached)"
fi
printf '%-8s %-6s %5d s\n' total "$( ((failed > 0)) && echo FAILED || echo ok)" $((SECONDS - start))
echo "stages: $((${#table[@]} - failed)) passed, $failed failed"
if ((failed > 0)); then
	failures=$(count fail)
else
	failures=0 # each test that failed has passed when it was run once more
fi
echo "tests: $(count pass) passed, $failures failed, $(count skip) skipped"
flaky=$(cat .out/*.flaky 2>/dev/null || true)
if [[ -n $flaky ]]; then
	printf 'flaky, each a defect of the test or of what it tests:\n%s\n' "$flaky"
fi
exit $((failed > 0))
