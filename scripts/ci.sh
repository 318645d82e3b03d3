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
printf '%-8s %-6s %5d s\n' total "$( ((failed > 0)) && echo FAILED || echo ok)" $((SECONDS - start))
echo "stages: $((${#table[@]} - failed)) passed, $failed failed"
echo "tests: $(count pass) passed, $(count fail) failed, $(count skip) skipped"
exit $((failed > 0))
