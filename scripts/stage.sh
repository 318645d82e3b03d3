#!/usr/bin/env bash
# stage.sh NAME COMMAND…: runs the command and says how many seconds it took.
set -euo pipefail

name=$1
shift
echo "── $name"
start=$SECONDS
status=0
"$@" || status=$?
if ((status == 0)); then
	echo "── $name: done in $((SECONDS - start)) s"
else
	echo "── $name: FAILED after $((SECONDS - start)) s"
fi
exit "$status"
