#!/usr/bin/env bash
# fuzz.sh TIME: runs every fuzz target of the repository for TIME each. A target
# fails on what its tests find; the input is then under testdata/fuzz: keep it.
set -euo pipefail

time=$1
passed=0
failed=()
while IFS=: read -r file target; do
	dir=$(dirname "$file")
	echo "   $dir $target"
	if ! out=$(env -C "$dir" go test -run '^$' -fuzz "^$target\$" -fuzztime "$time" . 2>&1); then
		# A worker that is still busy when time is up is no finding.
		if grep -q 'context deadline exceeded' <<<"$out" && ! grep -q 'Failing input' <<<"$out"; then
			echo "   (time was up while a worker was busy)"
		else
			echo "$out"
			failed+=("$dir $target")
			continue
		fi
	fi
	passed=$((passed + 1))
done < <(git ls-files -co --exclude-standard '*_test.go' | xargs grep -Eo '^func Fuzz[A-Za-z0-9_]*' /dev/null | sed 's/func //' | sort)
echo "   fuzz targets: $passed passed, ${#failed[@]} failed"
if ((${#failed[@]} > 0)); then
	printf '   failed: %s\n' "${failed[@]}"
	exit 1
fi
