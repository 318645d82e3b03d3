#!/usr/bin/env bash
# needs.sh PROGRAM=PACKAGE…: installs the Debian packages of programs (or files)
# that are missing, or says which ones somebody has to install.
set -euo pipefail

missing=()
packages=()
for need in "$@"; do
	program=${need%%=*}
	if ! command -v "$program" >/dev/null && [[ ! -e $program ]]; then
		missing+=("$program")
		packages+=("${need#*=}")
	fi
done
if ((${#missing[@]} == 0)); then
	exit 0
fi
mapfile -t packages < <(printf '%s\n' "${packages[@]}" | sort -u)
if ((EUID != 0)) || ! command -v apt-get >/dev/null; then
	echo "missing: ${missing[*]}. Install the packages ${packages[*]} (on Debian: sudo apt-get install ${packages[*]})." >&2
	exit 1
fi
exec 9<"$0"
flock 9 # of targets that run at a time, one installs
echo "── installing ${packages[*]}"
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
apt-get install -y -qq --no-install-recommends "${packages[@]}" >/dev/null
if [[ " ${packages[*]} " == *" mosquitto "* ]] && command -v systemctl >/dev/null; then
	systemctl disable -q --now mosquitto 2>/dev/null || true # tests start their own, and it would have our port
fi
for need in "$@"; do
	program=${need%%=*}
	if ! command -v "$program" >/dev/null && [[ ! -e $program ]]; then
		echo "$program is still missing after installing ${need#*=}" >&2
		exit 1
	fi
done
