#!/usr/bin/env bash
# fuzz.sh TIME: runs every fuzz target of the repository for TIME each, on one processor each. A target
# fails on what its tests find; the input is then under testdata/fuzz: keep it.
set -euo pipefail

time=$1
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT

# fuzz DIRECTORY TARGET…: `go test -fuzz` would link the test for each target of a package anew.
fuzz() {
	local dir=$1 test target log import
	shift
	test=$(mktemp -p "$out")
	log=$test.log
	if ! import=$(env -C "$dir" go list .) || ! env -C "$dir" go test -c -vet=off -fuzz=. -o "$test" . >"$log" 2>&1; then
		cat "$log"
		printf 'failed %s\n' "${@/#/$dir }" >>"$out/verdicts"
		return
	fi
	for target; do
		if ! env -C "$dir" "$test" -test.run '^$' -test.fuzz "^$target\$" -test.fuzztime "$time" -test.parallel 1 \
			-test.timeout 10m -test.paniconexit0 -test.fuzzcachedir "$cache/$import" >"$log" 2>&1; then
			# A worker that is still busy when time is up is no finding.
			if grep -q 'context deadline exceeded' "$log" && ! grep -q 'Failing input' "$log"; then
				echo "   (time was up while a worker was busy)" >>"$log"
			else
				printf '   %s %s\n%s\n' "$dir" "$target" "$(<"$log")"
				echo "failed $dir $target" >>"$out/verdicts"
				continue
			fi
		fi
		echo "   $dir $target"
		echo "passed $dir $target" >>"$out/verdicts"
	done
	rm -f "$test"
}
export -f fuzz
cache=$(go env GOCACHE)/fuzz
export time out cache

git ls-files -co --exclude-standard '*_test.go' | xargs grep -Eo '^func Fuzz[A-Za-z0-9_]*' /dev/null | sed 's/func //' | sort >"$out/targets"
while IFS=: read -r file target; do
	echo "$(dirname "$file") $target"
done <"$out/targets" | awk '{ targets[$1] = targets[$1] " " $2 } END { for (dir in targets) print dir targets[dir] }' | sort |
	xargs -P "$(nproc)" -I PACKAGE bash -c 'set -euo pipefail; fuzz PACKAGE'

passed=$(grep -c '^passed' "$out/verdicts" || true)
wanted=$(wc -l <"$out/targets")
echo "   fuzz targets: $passed passed, $((wanted - passed)) failed"
if ((passed != wanted || wanted == 0)); then
	grep '^failed' "$out/verdicts" || true
	exit 1
fi
