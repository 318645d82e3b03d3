// SPDX-License-Identifier: Apache-2.0

package devices

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/test/harness"
)

// pageBlocks are the commands of a page, by block: one a line, comments taken away.
func pageBlocks(t *testing.T, page string) (blocks [][]string, text string) {
	t.Helper()
	read, err := os.ReadFile(filepath.Join("..", "..", "..", "docs", page))
	require.NoError(t, err)
	for _, found := range regexp.MustCompile("(?ms)^```sh\n(.*?)^```$").FindAllSubmatch(read, -1) {
		var block []string
		for line := range strings.Lines(string(found[1])) {
			line, _, _ = strings.Cut(line, "  # ")
			block = append(block, strings.TrimSpace(line))
		}
		blocks = append(blocks, block)
	}
	return blocks, string(read)
}

// gateway is a machine of its own: a network in which there are the devices' addresses, a directory, and a shell, in which commands run as
// somebody would type them.
type gateway struct {
	t    *testing.T
	dir  string
	in   io.WriteCloser
	out  *bufio.Reader
	peer string // runs a command in the devices' network
}

func newGateway(t *testing.T) *gateway {
	t.Helper()
	requireLibraries(t)
	bin, err := harness.Programs()
	require.NoError(t, err)
	tools := filepath.Join(filepath.Dir(bin), ".tools")
	g := &gateway{t: t, dir: t.TempDir()}
	flags := []string{"--net"}
	if os.Geteuid() != 0 {
		flags = append(flags, "--map-root-user")
	}
	cmd := exec.Command("unshare", append(flags, "bash", "--norc", "--noprofile")...)
	cmd.Dir = g.dir
	cmd.Env = []string{
		"HOME=" + g.dir, "PATH=" + bin + ":" + tools + ":/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "XDG_STATE_HOME=" + g.dir,
		"CLOUDHUB_DATA_DIR=" + g.dir + "/hub", "EDGECORE_DATA_DIR=" + g.dir + "/node", "EDGECORE_MQTT_SOCKET=" + g.dir + "/mqtt.sock",
		"MAPPER_OPCUA_DRIVER_DATA_DIR=" + g.dir + "/opcua", "SNMP_PERSISTENT_DIR=" + g.dir + "/snmp",
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	g.in, err = cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	cmd.Stderr = cmd.Stdout
	g.out = bufio.NewReader(out)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		_ = cmd.Wait()
		if t.Failed() {
			t.Log(g.logs())
		}
	})
	if out, err := g.try("ip link set lo up"); err != nil {
		require.Empty(t, os.Getenv("CI"), "no network of its own: %v: %s", err, out)
		t.Skip("a network of its own takes root, or user namespaces: " + out)
	}
	// The devices are on the other end of a wire.
	g.run("unshare --net sleep 1000000 & echo $! >peers.pid; until [[ $(readlink /proc/$(cat peers.pid)/ns/net) != $(readlink /proc/self/ns/net) ]]; do sleep 0.01; done")
	g.peer = "nsenter --net=/proc/$(cat peers.pid)/ns/net "
	g.run("ip link add eth0 type veth peer name eth0 netns $(cat peers.pid) && ip address add 192.168.1.10/24 dev eth0 && ip link set eth0 up && ip route add default dev eth0")
	g.run(g.peer + "ip link set lo up && " + g.peer + "ip link set eth0 up")
	for _, n := range []int{20, 21, 24, 25, 26} {
		g.run(fmt.Sprintf("%sip address add 192.168.1.%d/24 dev eth0", g.peer, n))
	}
	return g
}

const commandEnd = "\x01end"

// try runs a command in the shell, and returns what it printed.
func (g *gateway) try(command string) (string, error) {
	if _, err := fmt.Fprintf(g.in, "%s\necho $'\\001end' $?\n", command); err != nil {
		return "", err
	}
	var printed strings.Builder
	for {
		line, err := g.out.ReadString('\n')
		if before, code, ok := strings.Cut(line, commandEnd); ok {
			printed.WriteString(before)
			if code = strings.TrimSpace(code); code != "0" {
				return printed.String(), errors.New("exit code " + code)
			}
			return printed.String(), nil
		}
		printed.WriteString(line)
		if err != nil {
			return printed.String(), err
		}
	}
}

func (g *gateway) run(command string) string {
	g.t.Helper()
	out, err := g.try(command)
	require.NoError(g.t, err, "%s\n%s", command, out)
	return out
}

// until runs a command until it prints what is awaited: a person would look again, too.
func (g *gateway) until(command string, wants ...string) string {
	g.t.Helper()
	out := ""
	require.NoError(g.t, harness.Eventually(g.t.Context(), 30*time.Second, func(context.Context) (err error) {
		if out, err = g.try(command); err != nil {
			return fmt.Errorf("%s: %w\n%s", command, err, out)
		}
		for _, want := range wants {
			if !regexp.MustCompile(want).MatchString(out) {
				return fmt.Errorf("%s: nothing of %s in\n%s", command, want, out)
			}
		}
		return nil
	}))
	return out
}

func (g *gateway) logs() (all string) {
	files, _ := filepath.Glob(filepath.Join(g.dir, "*.log"))
	for _, file := range files {
		text, _ := os.ReadFile(file)
		all += "== " + filepath.Base(file) + "\n" + string(text[max(0, len(text)-800):])
	}
	return all
}

// device starts what others have made, on the devices' side of the wire.
func (g *gateway) device(name, command string) {
	g.t.Helper()
	g.run(fmt.Sprintf("%s%s >%s.device.log 2>&1 &", g.peer, command, name))
}

// serialLine is a line with a meter on its other end.
func (g *gateway) serialLine(peers string) {
	g.run("socat pty,raw,echo=0,link=far pty,raw,echo=0,link=near >line.log 2>&1 &")
	g.until("test -e near")
	g.run("/usr/bin/python3 " + peers + "/python/modbus.py rtu $PWD/far 19200 >meter.device.log 2>&1 &")
}

// line is a command of the page with this machine's name of its serial line.
func (g *gateway) line(command string) string {
	return strings.ReplaceAll(command, "/dev/ttyUSB0", g.dir+"/near")
}

func peersDirectory(t *testing.T) string {
	t.Helper()
	dir, err := os.Getwd()
	require.NoError(t, err)
	return dir
}

// Each command of the page, in its order, and what somebody sees who follows it.
func TestTheFirstHour(t *testing.T) {
	g := newGateway(t)
	peers := peersDirectory(t)
	// Somebody goes to the machine with the certificate; it looks for such files when it starts, and then now and again.
	g.run("mapper-opcua certificate && mkdir -p machine/pki/trusted/certs && cp opcua/mapper-opcua.crt machine/pki/trusted/certs/")
	g.device("machine", "env HOST=192.168.1.20 node "+peers+"/node/opcua.mjs 4840 "+g.dir+"/machine")
	g.serialLine(peers)
	g.until("mapper-opcua endpoints opc.tcp://192.168.1.20:4840") // a machine needs a while until it runs

	blocks, _ := pageBlocks(t, "first-hour.md")
	sees := []struct {
		command string
		wants   []string
	}{
		{"edgebus get nodes", []string{`gateway +online`}},
		{"mapper-opcua endpoints", []string{`Aes256_Sha256_RsaPss +SignAndEncrypt`}},
		{"mapper-opcua certificate", []string{`file +\S+mapper-opcua.crt`}},
		{"edgebus get devices", []string{`press +gateway +press +online .*press-probe|press +gateway +press +online .*press-profile=\[1,2,3\]`}},
		{"kubectl get devices", []string{`meter +gateway +meter +online .*(coil|holding)-0=`, `press +gateway +press +online `}},
		{"edgebus alarm list", []string{`press +press-temperature/hot +high .*42.5`}},
		{"edgebus get devices", []string{`press +gateway +press +online +\S+ +press-temperature/hot `}},
		{"edgebus history press press-temperature", []string{`42.5`}},
		{"edgebus doctor gateway", []string{`alarms that somebody has acknowledged: press`, `✗ devices with values that can't be read: press \(press-probe: .*BadSensorFailure`}},
	}
	count := 0
	for _, block := range blocks {
		for _, c := range block {
			count++
			switch command := g.line(c); {
			case len(sees) > 0 && strings.HasPrefix(command, sees[0].command):
				if strings.HasPrefix(command, "edgebus doctor") {
					command += " || test $? = 1" // something is wrong
				}
				g.until(command, sees[0].wants...)
				sees = sees[1:]
			default:
				g.run(command)
			}
		}
	}
	require.Empty(t, sees, "the page has other commands than this test knows")
	require.LessOrEqual(t, count, 20)
}

// From a device of each protocol to its value, by the blocks of the page: what its table counts.
func TestFromADeviceOfEachProtocolToItsValue(t *testing.T) {
	blocks, text := pageBlocks(t, "devices.md")
	counts := map[string]string{}
	for _, row := range regexp.MustCompile(`(?m)^\| ([A-Z][A-Za-z0-9/ ]+) \| (\d+) \|`).FindAllStringSubmatch(text, -1) {
		counts[row[1]] = row[2]
	}
	g := newGateway(t)
	peers := peersDirectory(t)
	g.run("cloudhub >hub.log 2>&1 &")
	g.run("edgecore --node-name gateway >node.log 2>&1 &")
	g.until("edgebus get nodes", "gateway +online")
	stories := []struct {
		protocol string
		device   func()
		wants    string
	}{
		{"Modbus TCP", func() {
			g.device("boiler", "env HOST=192.168.1.21 /usr/bin/python3 "+peers+"/python/modbus.py tcp 502")
		}, `boiler +gateway +boiler +online .*coil-0=`},
		{"Modbus RTU", func() { g.serialLine(peers) }, `meter +gateway +meter +online .*coil-0=`},
		{"OPC UA", func() {
			g.device("machine", "env HOST=192.168.1.20 node "+peers+"/node/opcua.mjs 4840 "+g.dir+"/machine trust")
			g.until("mapper-opcua endpoints opc.tcp://192.168.1.20:4840")
		}, `press +gateway +press +online .*press-`},
		{"Zigbee2MQTT", func() {
			g.run("node " + peers + "/node/zigbee.mjs 4000 >list.json && mosquitto_pub -p 2883 -r -q 1 -t zigbee2mqtt/bridge/devices -f list.json")
			g.run("for name in $(jq -r '.[].friendly_name' list.json); do mosquitto_pub -p 2883 -r -q 1 -t zigbee2mqtt/$name -m '{\"contact\":true,\"state\":\"ON\"}'; done")
		}, `device-0 +gateway .* online .*contact=true`},
		{"Sparkplug B", func() { g.run("node " + peers + "/node/sparkplug.mjs 2883 >tank.device.log 2>&1 &") }, `edge1-tank-1 +gateway .* online .*[Ll]imit=-7`},
		{"SNMP", func() {
			g.run("echo 'rocommunity public' >snmpd.conf")
			g.device("switch", "/usr/sbin/snmpd -f -Lo -C -c snmpd.conf udp:192.168.1.24:161")
		}, `uplink +gateway +snmp-interface +online .*=`},
		{"BACnet/IP", func() {
			g.device("fan", "env HOST=0.0.0.0 BROADCAST=192.168.1.255 node "+peers+"/node/bacnet.mjs 47808")
		}, `node-bacnet +gateway +node-bacnet +online .*setpoint=20`},
		{"HTTP", func() {
			g.run(`mkdir www && echo '{"temperature":21.5,"relays":[{"on":true}]}' >www/status.json`)
			g.device("relay", "/usr/bin/python3 -m http.server --bind 192.168.1.25 --directory www 80")
		}, `relay +gateway +relay +online .*relays-0-on=true,temperature=21.5`},
	}
	require.Len(t, blocks, len(stories))
	for i, s := range stories {
		s.device()
		for n, c := range blocks[i] {
			switch command := g.line(c); {
			case n == len(blocks[i])-1:
				g.until(command, s.wants)
			case n == 1: // the device may not have started yet
				g.until(command)
			default:
				g.run(command)
			}
		}
		g.run("kill $! && wait $! || true") // its mapper
		require.Equal(t, strconv.Itoa(len(blocks[i])), counts[s.protocol], s.protocol)
		require.LessOrEqual(t, len(blocks[i]), 5)
	}
}
