#!/usr/bin/env bash
# install.sh hub|core|agent|discovery|mapper-NAME…: installs programs that `make build`
# has made, with their service units, for systemd. What is configured is started, or started
# again: a program with a file of settings in /etc/edgebus, and whatever runs already.
# The rest is enabled, and starts when it is configured. Settings, keys and passwords go to /etc/edgebus, each for its service to
# read alone (root:edgebus-hub, root:edgebus-core, root:edgebus-mapper-modbus…, 0640): see docs/running.md.
#
# DESTDIR installs below another root, without touching users or services.
set -euo pipefail

cd "$(dirname "$0")/.."
destdir=${DESTDIR:-}
usage() { sed -n '2,9s/^# \{0,1\}//p' "$0"; }
case ${1:-} in
-h | --help | help)
	usage
	exit 0
	;;
"")
	usage >&2
	exit 2
	;;
esac
if [[ -z $destdir ]] && ((EUID != 0)); then
	echo "install.sh: only root can install into the system; DESTDIR=… installs elsewhere" >&2
	exit 1
fi

programs=()
for what in "$@"; do
	case $what in
	hub) programs+=(cloudhub) ;;
	core) programs+=(edgecore) ;;
	agent) programs+=(edgeagent) ;;
	discovery) programs+=(edgediscovery) ;;
	mapper-?*) programs+=("$what") ;;
	*)
		echo "install.sh: $what is none of hub, core, agent, discovery, mapper-NAME" >&2
		exit 2
		;;
	esac
done
for program in "${programs[@]}" edgebus; do
	[[ -x bin/$program ]] || {
		echo "install.sh: bin/$program is missing: run make build first" >&2
		exit 1
	}
done

# Each service has a user and a group of its own, but for the agent, which is root.
page() { case $1 in cloudhub) echo hub ;; edgecore) echo core ;; edgediscovery) echo discovery ;; *) echo "$1" ;; esac; }
for program in "${programs[@]}"; do
	[[ $program != edgeagent ]] || continue
	user=edgebus-$(page "$program")
	[[ $program != edgediscovery ]] || user=edgediscovery # whom the core knows at its socket
	if [[ -z $destdir ]] && ! getent passwd "$user" >/dev/null; then
		useradd --system --user-group --home-dir /var/lib/edgebus --no-create-home --shell /usr/sbin/nologin "$user"
	fi
	# Until now all services had one user. Their data is given to the new ones by systemd when they start.
	settings=/etc/edgebus/$(page "$program").yaml
	if [[ -z $destdir ]] && [[ -e $settings ]] && [[ $(stat -c %G "$settings") == edgebus ]]; then
		chgrp "$user" "$settings"
		echo "$settings is now read by the group $user: give it the keys and passwords that it names as well"
	fi
done
# The services' data is below /var/lib/edgebus, which whoever tried a program as root before has for root alone.
install -d -m 0755 "$destdir/usr/local/bin" "$destdir/etc/edgebus" "$destdir/etc/systemd/system" "$destdir/var/lib/edgebus"
for program in "${programs[@]}" edgebus; do
	at=$destdir/usr/local/bin
	# Core and agent are below a link, which the agent switches when the hub orders another version.
	case $program in
	edgecore) link=current ;;
	edgeagent) link=agent ;;
	*) link= ;;
	esac
	if [[ -n $link ]]; then
		version=$("bin/$program" --version) && version=versions/${version##* }
		at=$destdir/usr/local/lib/edgebus/$version
		install -d -m 0755 "$destdir/usr/local/lib/edgebus" "$destdir/usr/local/lib/edgebus/versions" "$at"
		rm -f "$at/manifest.json" "$at/manifest.json.minisig" # of a version that came from the hub
	fi
	# To a new file, and then in place: a running program is not written over.
	install -m 0755 "bin/$program" "$at/.$program.new"
	mv -f "$at/.$program.new" "$at/$program"
	if [[ -n $link ]]; then
		ln -sfn "$version" "$destdir/usr/local/lib/edgebus/.$link.new"
		mv -fT "$destdir/usr/local/lib/edgebus/.$link.new" "$destdir/usr/local/lib/edgebus/$link"
		ln -sf "/usr/local/lib/edgebus/$link/$program" "$destdir/usr/local/bin/.$program.new"
		mv -fT "$destdir/usr/local/bin/.$program.new" "$destdir/usr/local/bin/$program"
	fi
done
sync
for program in "${programs[@]}"; do
	unit=scripts/systemd/$program.service
	[[ -e $unit ]] || unit=scripts/systemd/mapper.service
	sed "s/@MAPPER@/$program/g" "$unit" >"$destdir/etc/systemd/system/.$program.service.new"
	chmod 0644 "$destdir/etc/systemd/system/.$program.service.new"
	mv -f "$destdir/etc/systemd/system/.$program.service.new" "$destdir/etc/systemd/system/$program.service"
	echo "$destdir/usr/local/bin/$program"
done

# settings PROGRAM: its file of settings.
settings() {
	local name=${1#cloud}
	echo "/etc/edgebus/${name#edge}.yaml"
}

systemd=
if [[ -z $destdir && -d /run/systemd/system ]]; then
	systemd=yes
	systemctl daemon-reload
fi
for program in "${programs[@]}"; do
	file=$(settings "$program")
	if [[ -n $systemd ]]; then
		systemctl enable "$program.service"
		if [[ ! -f $file ]] && systemctl is-active --quiet "$program.service"; then
			echo "# $program runs with its defaults." >"$file" # by an installation that asked for no settings
		fi
		if [[ -f $file ]]; then
			systemctl restart "$program.service"
			continue
		fi
	fi
	case $program in
	edgecore) echo "$program is not started: join a hub (edgebus invite NODE on the hub prints the line: edgecore join …), or write $file (see docs/running.md), then: systemctl start $program" ;;
	cloudhub) echo "$program is not started: write $file (listen: public is enough for nodes to join; see docs/running.md), then: systemctl start $program" ;;
	*) echo "$program is not started: write $file (see docs/running.md), then: systemctl start $program" ;;
	esac
done
