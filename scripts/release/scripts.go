// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"text/template"
)

// maintainerScripts is what the scripts of a package need to know.
type maintainerScripts struct {
	Deb     bool
	Version string // v0.9.0
	Program string
	Unit    string // edgecore.service
	User    string // whom the service has; empty: root
	Link    string // below /usr/local/lib/edgebus, for a program that the agent replaces
	Data    string // directory below /var/lib/edgebus
	// Settings is the file in /etc/edgebus; a Conffile is in the package, the others are written by the administrator or a command.
	Settings string
	Conffile bool
}

// script is one of a package's scripts for sh.
func (m maintainerScripts) script(name string) (string, error) {
	var text strings.Builder
	err := scripts.ExecuteTemplate(&text, name, m)
	return text.String(), err
}

var scripts = template.Must(template.New("").Parse(`
{{- define "postinstall"}}#!/bin/sh
set -e
{{if .Deb}}case "$1" in configure | abort-upgrade | abort-remove | abort-deconfigure) ;; *) exit 0 ;; esac
{{end -}}
{{with .User}}
# Each service has a user of its own: none can read or stop another.
getent passwd {{.}} >/dev/null ||
	useradd --system --user-group --home-dir /var/lib/edgebus --no-create-home --shell /usr/sbin/nologin {{.}}
{{end -}}
{{if and .User .Conffile}}
# Settings may have passwords.
if [ "$(stat -c %G {{.Settings}} 2>/dev/null)" = root ]; then
	chgrp {{.User}} {{.Settings}}
	chmod 0640 {{.Settings}}
fi
{{end -}}
{{if .Link}}
# It runs from below a link, which the agent switches when the hub orders another version. A newer one from the hub stays in force.
dir=/usr/local/lib/edgebus
inforce=$(readlink $dir/{{.Link}} || true)
inforce=${inforce#versions/}
newest=$(printf '%s\n' "$inforce" {{.Version}} | sort -V | tail -n 1)
if [ -e "$dir/versions/$inforce/manifest.json" ] && [ -e "$dir/{{.Link}}/{{.Program}}" ] && [ "$newest" != {{.Version}} ]; then
	echo "{{.Program}} stays at $inforce, which the hub has sent: it is newer than this package"
else
	mkdir -p $dir/versions/{{.Version}}
	rm -f $dir/versions/{{.Version}}/manifest.json $dir/versions/{{.Version}}/manifest.json.minisig
	new=$dir/versions/{{.Version}}/.{{.Program}}.new
	rm -f $new
	ln /usr/lib/edgebus/{{.Program}} $new 2>/dev/null || cp /usr/lib/edgebus/{{.Program}} $new
	mv -f $new $dir/versions/{{.Version}}/{{.Program}}
	ln -sfn versions/{{.Version}} $dir/.{{.Link}}.new
	mv -fT $dir/.{{.Link}}.new $dir/{{.Link}}
	sync
fi
{{end -}}
{{if .Deb}}
deb-systemd-helper unmask {{.Unit}} >/dev/null || true
if deb-systemd-helper --quiet was-enabled {{.Unit}}; then
	deb-systemd-helper enable {{.Unit}} >/dev/null || true
else
	deb-systemd-helper update-state {{.Unit}} >/dev/null || true
fi
if [ -d /run/systemd/system ]; then
	systemctl --system daemon-reload >/dev/null || true
	# What has no settings yet isn't started: its unit says so.
	if [ -n "$2" ]; then
		deb-systemd-invoke try-restart {{.Unit}} >/dev/null || true
	else
		deb-systemd-invoke start {{.Unit}} >/dev/null || true
	fi
fi
{{else}}
if [ -d /run/systemd/system ]; then
	systemctl daemon-reload || :
	if [ "$1" = 1 ]; then
		systemctl preset {{.Unit}} || :
	else
		systemctl try-restart {{.Unit}} || :
	fi
fi
{{end -}}
exit 0
{{end -}}

{{- define "preremove"}}#!/bin/sh
set -e
{{if .Deb -}}
if [ "$1" = remove ] && [ -d /run/systemd/system ]; then
	deb-systemd-invoke stop {{.Unit}} >/dev/null || true
fi
{{else -}}
if [ "$1" = 0 ] && [ -d /run/systemd/system ]; then
	systemctl disable --now {{.Unit}} || :
fi
{{end -}}
exit 0
{{end -}}

{{- define "postremove"}}#!/bin/sh
set -e
{{if .Link -}}
if [ "$1" = {{if .Deb}}remove{{else}}0{{end}} ]; then
	rm -f /usr/local/lib/edgebus/{{.Link}} /usr/local/lib/edgebus/versions/*/{{.Program}}
	for dir in /usr/local/lib/edgebus/versions/*; do
		[ -e "$dir/edgecore" ] || [ -e "$dir/edgeagent" ] || rm -rf "$dir"
	done
	rmdir --ignore-fail-on-non-empty /usr/local/lib/edgebus/versions /usr/local/lib/edgebus 2>/dev/null || true
fi
{{end -}}
if [ -d /run/systemd/system ]; then
	systemctl --system daemon-reload >/dev/null || true
fi
{{if .Deb -}}
if [ "$1" = remove ] && command -v deb-systemd-helper >/dev/null; then
	deb-systemd-helper mask {{.Unit}} >/dev/null || true
fi
if [ "$1" = purge ]; then
	if command -v deb-systemd-helper >/dev/null; then
		deb-systemd-helper purge {{.Unit}} >/dev/null || true
		deb-systemd-helper unmask {{.Unit}} >/dev/null || true
	fi
	{{- if .Data}}
	rm -rf /var/lib/edgebus/{{.Data}}
	{{- end}}
	{{- if not .Conffile}}
	rm -f {{.Settings}}
	{{- end}}
	rmdir --ignore-fail-on-non-empty /etc/edgebus /var/lib/edgebus 2>/dev/null || true
	{{- with .User}}
	! getent passwd {{.}} >/dev/null || userdel {{.}} || true
	{{- end}}
fi
{{end -}}
exit 0
{{end -}}
`))
