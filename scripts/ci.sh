#!/usr/bin/env bash
# ci.sh STAGE…: runs make targets one after the other, until one fails, and sums up. A+B+C is A, a target that mostly waits, and beside it
# B and then C, which only compute: they get what A leaves of the processors.
set -euo pipefail

export CI=true
mkdir -p .out
start=$SECONDS
table=.out/stages.txt
: >"$table"

# run STAGE: a make target, as a row of the table.
run() {
	local began=$SECONDS verdict=ok
	make --no-print-directory "$1" || verdict=FAILED
	printf '%-13s %-6s %5d s\n' "$1" "$verdict" $((SECONDS - began)) >>"$table"
}

for group in "$@"; do
	IFS=+ read -ra stages <<<"$group"
	(
		renice -n 19 "$BASHPID" >/dev/null
		for stage in "${stages[@]:1}"; do run "$stage"; done
	) >.out/beside.txt 2>&1 &
	run "${stages[0]}"
	wait
	cat .out/beside.txt
	if grep -q FAILED "$table"; then
		break
	fi
done
failed=$(grep -c FAILED "$table" || true)

# count ACTION: test events of that kind, packages' own left out.
count() {
	cat .out/*.json 2>/dev/null | grep '"Test":' | grep -c "\"Action\":\"$1\"" || true
}

echo
cat "$table"
if [[ -e .out/govulncheck.unchecked ]]; then
	echo "known vulnerabilities: NOT CHECKED (the database could not be reached)"
fi
printf '%-13s %-6s %5d s\n' total "$( ((failed > 0)) && echo FAILED || echo ok)" $((SECONDS - start))
echo "stages: $(($(wc -l <"$table") - failed)) passed, $failed failed"
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
