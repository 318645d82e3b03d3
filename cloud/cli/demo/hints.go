// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/edgebus/edgebus/cloud/cli/access"
	"github.com/edgebus/edgebus/cloud/cli/terminal"
)

// portFlags are the flags that mosquitto's clients need for the hub and for the core.
func (d *demo) portFlags() (hub, core string) {
	at := func(address string) string {
		if _, port, _ := net.SplitHostPort(address); port != "1883" {
			return " -p " + port
		}
		return ""
	}
	return at(d.hubMQTT), at(d.coreMQTT)
}

// serverSetting is the variable with which edgebus finds this hub; empty: it finds it by default.
func (d *demo) serverSetting() string {
	if at, err := (&access.Flags{HTTPFlag: "server"}).Resolve(); err == nil && at.Server == "http://"+d.hubHTTP {
		return ""
	}
	return "EDGEBUS_SERVER=http://" + d.hubHTTP
}

// exportLines have a shell find the programs, and edgebus this hub; none if it does already.
func (d *demo) exportLines() []string {
	variables := slices.DeleteFunc([]string{pathSetting(), d.serverSetting()}, func(v string) bool { return v == "" })
	if len(variables) == 0 {
		return nil
	}
	return []string{"export " + strings.Join(variables, " ")}
}

// pathSetting is the PATH with the programs; empty: a shell finds this program without it.
func pathSetting() string {
	mine, err := os.Executable()
	if path, failed := exec.LookPath("edgebus"); err != nil || failed == nil && isSameFile(path, mine) {
		return ""
	}
	return "PATH=" + filepath.Dir(mine) + ":$PATH"
}

// isSameFile is whether two paths are of one file.
func isSameFile(a, b string) bool {
	x, err := os.Stat(a)
	y, err2 := os.Stat(b)
	return err == nil && err2 == nil && os.SameFile(x, y)
}

// clearOverrideCommand is the command that ends the override of the lamp's brightness.
func (d *demo) clearOverrideCommand() string {
	_, core := d.portFlags()
	return "mosquitto_pub" + core + " -V 5 -q 1 -t v1/nodes/demo/devices/lamp/desired/brightness -n"
}

// dataKeptText says what becomes of the directory.
func (d *demo) dataKeptText() string {
	if d.keepData {
		return d.dataDir + ", and stay there"
	}
	return d.dataDir + ", which is removed at the end unless something failed"
}

// hints are commands to try next.
func (d *demo) hints() []string {
	hub, core := d.portFlags()
	end := "Stop with ctrl-C."
	if d.duration > 0 {
		end = fmt.Sprintf("It ends after %s, at ctrl-C, or with kill %d.", d.duration, os.Getpid())
	} else if _, ok := terminal.Size(d.in); !ok {
		end = fmt.Sprintf("It ends at ctrl-C, with kill %d, or after the time of --for.", os.Getpid())
	}
	lines := []string{"", "In another terminal:"}
	for _, line := range slices.Concat(d.exportLines(), []string{
		"edgebus get devices",
		"mosquitto_sub" + hub + " -v -t 'v1/nodes/demo/devices/+/reported/#'    # the values; with 'v1/nodes/demo/#' everything",
		"mosquitto_pub" + hub + " -V 5 -q 1 -t v1/nodes/demo/devices/lamp/desired/power -m ON",
		"mosquitto_pub" + hub + " -V 5 -q 1 -t v1/nodes/demo/devices/thermostat/desired/setpoint -m 23.5",
		"mosquitto_rr" + hub + " -V 5 -t v1/nodes/demo/devices/lamp/commands/beep -e reply/me -m twice",
		"mosquitto_pub" + core + " -V 5 -q 1 -t v1/nodes/demo/devices/lamp/desired/brightness -m 75    # on the node, with or without the cloud: this overrides the hub's value",
		d.clearOverrideCommand() + "          # … until it is cleared with an empty message",
		joinSecondNode + "    # another node joins the hub …",
		startSecondNode + "    # … and runs",
	}) {
		lines = append(lines, "  "+line)
	}
	return append(lines,
		"What is refused says why with -V 5 -q 1. At -q 0, and with MQTT 3.1.1, the reason is on the topic v1/refused/{client id}.",
		"Data and logs are in "+d.dataKeptText()+".",
		end)
}

// commands are the hints for which a screen has room.
func (d *demo) commands() []string {
	hub, core := d.portFlags()
	removed := ""
	if !d.keepData {
		removed = ", removed by q"
	}
	return append(d.exportLines(),
		"edgebus get devices",
		"mosquitto_sub"+hub+" -v -t 'v1/nodes/demo/devices/+/reported/#'",
		"mosquitto_pub"+hub+" -V 5 -q 1 -t v1/nodes/demo/devices/lamp/desired/power -m ON",
		"mosquitto_pub"+core+" -V 5 -q 1 -t v1/nodes/demo/devices/lamp/desired/brightness -m 75",
		"# data and logs: "+d.dataDir+removed,
		"# "+d.joinedText(),
		"# another node joins the hub, and runs:",
		joinSecondNode,
		startSecondNode,
	)
}

// How another node joins, on this machine: its settings and data are in the directory of the shell, and its ports are not those of the first.
const (
	joinSecondNode  = "$(edgebus invite n2) --config n2.yaml --data-dir n2 --no-start"
	startSecondNode = "edgecore --config n2.yaml --mqtt-listen 127.0.0.1:2884 --http-listen 127.0.0.1:10551"
)

// pageLines are where the pages are, the longest first.
func (d *demo) pageLines() []string {
	page := "the page: http://" + d.hubHTTP + "/"
	return []string{page + "  the node's own: http://" + d.coreHTTP + "/", page}
}
