#!/usr/bin/env bash
# present.sh DIRECTORY…: the packages in those of the directories that exist.
set -euo pipefail

for dir in "$@"; do
	if [[ -d $dir ]]; then
		echo "$dir/..."
	fi
done
