#!/usr/bin/env bash
# stage.sh NAME COMMAND…: runs the command and says how many seconds it took, and how much of a processor.
set -euo pipefail

name=$1
shift
echo "── $name"
status=0
TIMEFORMAT="── $name: %0R s, with %P %% of a processor"
time "$@" || status=$?
if ((status != 0)); then
	echo "── $name: FAILED"
fi
exit "$status"
