// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/test/harness"
	"github.com/edgebus/edgebus/test/stand"
	"github.com/edgebus/edgebus/topics/password"
)

// fileDamages are what becomes of a file, in the order of the tables below. Half and a bit are of what is not zero: databases grow ahead.
var fileDamages = []struct {
	name string
	of   func(text, older []byte) []byte // nil: the file is removed
}{
	{"missing", func([]byte, []byte) []byte { return nil }},
	{"empty", func([]byte, []byte) []byte { return []byte{} }},
	{"half", func(text, _ []byte) []byte { return text[:len(bytes.TrimRight(text, "\x00"))/2] }},
	{"a bit", func(text, _ []byte) []byte {
		bad := bytes.Clone(text)
		if used := len(bytes.TrimRight(text, "\x00")); used > 0 {
			bad[rand.IntN(used)] ^= 1 << rand.IntN(8)
		}
		return bad
	}},
	{"older", func(_, older []byte) []byte { return older }},
}

// What a program does with a damaged file of its data directory, for each of fileDamages in its order:
//
//	whole    it starts, and all that was acknowledged is there
//	refused  it doesn't start; the error names the file and says what to do
//	told     it starts, and its log has a line at warning level or above that names the file
//	missed   blobs, which are named by their contents: it starts, and who asks for this one gets an error
//	safe     one of these, as it strikes
//	past     whole or told: of what values were nothing is acknowledged, and it never keeps a program from starting
//	-        it can't be: the file is empty, or never changes
var dataFiles = []struct {
	program string
	rows    map[string]string
}{
	{"hub", map[string]string{
		"audit.log":                "whole whole whole whole whole", // of which nothing is acknowledged to anybody
		"authority/1.key":          "refused refused refused safe -",
		"authority/1.pem":          "refused refused refused safe -",
		"authority/authority.json": "refused refused refused safe -",
		"authority/issued.json":    "refused refused refused safe safe",
		"authority/revoked.json":   "refused refused refused safe refused",
		"blobs/sha256/*":           "missed missed missed missed -",
		"history/n1/*.log":         "past past past past past",
		"history/n1/copy":          "past past past past past",
		"history/n1/id":            "past past past past -",
		"lock":                     "whole whole whole whole whole",
		"log/*.log":                "refused refused refused refused refused",
		"log/confirmed":            "whole told told told whole",
		"log/lock":                 "whole - - - -",
		"log/reserve":              "whole whole whole - -",
		"secrets.key":              "refused refused refused safe -",
	}},
	{"core", map[string]string{
		"broker/*.log":               "refused refused refused refused refused",
		"broker/confirmed":           "whole told told told whole",
		"broker/lock":                "whole - - - -",
		"broker/reserve":             "whole whole whole - -",
		"history/local/*.log":        "past past past past past",
		"history/shared/*.log":       "past past past past past",
		"history/shared/id":          "past past past past -",
		"history/local/id":           "past past past past -",
		"identity/*/ca.pem":          "told told told safe -",
		"identity/*/lock":            "whole whole whole whole -",
		"identity/*/node.pem":        "told told told safe -",
		"identity/*/token.sha256":    "whole whole whole whole -", // of the invitation, which has been used
		"lock":                       "whole whole whole whole whole",
		"secrets.key":                "whole told told safe -", // the hub sends the Secrets again
		"tree/*.log":                 "refused refused refused refused refused",
		"tree/confirmed":             "whole told told told whole",
		"tree/core.db":               "refused refused refused safe -",
		"tree/lock":                  "whole - - - -",
		"views/homeassistant-*.json": "whole told told safe whole", // what a view has published it finds again
	}},
	{"agent", map[string]string{
		"files/journal.json":    "refused refused refused safe refused",
		"files/manifest-*.json": "refused refused refused safe -",
		"lock":                  "whole whole whole whole whole",
		"state.json":            "whole told told safe whole", // the core has the spec
		"upgrade/report.json":   "whole whole whole whole -",
		"upgrade/reserve":       "whole whole whole - -",
	}},
}

// dataStand is a hub, a core that has joined it and an agent, with something of each sort in their data directories, and two copies of these: of
// the present, and of before half of it was written.
type dataStand struct {
	*stand.Stand
	made, older string
}

const dataMaker = `
set -eu
say() { edgebus "$@" --server $HUB; }
# what both halves write
half() {
	say apply -f device-$1.yaml >/dev/null
	curl -sSf -u 'op:correct horse' -X ${2:-POST} -H "Content-Type: application/${4:-json}" -d '{"metadata":{"name":"wifi"},"stringData":{"psk":"psk-'$1'"}}' $HUB/api/v1/namespaces/default/secrets${3:-} >/dev/null
	for at in $HUB_PORT $CORE_PORT; do
		mosquitto_pub -p $at -V 5 -q 1 -r -t own/$1 -m value-$1
		for i in 1 2 3; do mosquitto_pub -p $at -V 5 -q 1 -t queue/$1 -m queued-$1-$i; done
	done
	mosquitto_pub -p $CORE_PORT -V 5 -q 1 -t v1/nodes/n1/devices/meter-1/reported/level -m $1
	say blob push blob-$1 >digest-$1
	say token create --user ci-$1 --role viewer --nodes '*' >token-$1
}
`

// Each file of a data directory, damaged in each way: the real program, started with it, has lost nothing that was acknowledged, or refuses and
// names the file and what to do, or says at least that it lost something. ALL_TESTS has each file damaged in each way, otherwise it is one of them. A file without a row fails the test: whoever adds one says what holds.
func TestEachDamagedFileOfADataDirectory(t *testing.T) {
	t.Parallel()
	stand.RequirePrograms(t, "mosquitto_pub", "mosquitto_sub", "curl")
	s := newDataStand(t)
	for _, p := range dataFiles {
		if p.program == "agent" {
			s.startCore(t)
		}
		rows := maps.Clone(p.rows)
		for _, file := range s.files(t, p.program) {
			name := rowOf(file)
			outcomes := strings.Fields(p.rows[name])
			require.Len(t, outcomes, len(fileDamages), "%s of %s: a file of a data directory needs a row in dataFiles that says what its damage does", name, p.program)
			delete(rows, name)
			one := rand.IntN(len(fileDamages))
			for i, damage := range fileDamages {
				if os.Getenv("ALL_TESTS") == "" && i != one {
					continue
				}
				want := outcomes[i]
				got, why := s.try(t, p.program, file, damage.of)
				switch {
				case want == "safe" && slices.Contains([]string{"whole", "refused", "told", "-"}, got), want == "past" && slices.Contains([]string{"whole", "told", "-"}, got):
					continue
				}
				assert.Equal(t, want, got, "%s of %s, %s: %s", file, p.program, damage.name, why)
			}
		}
		require.Empty(t, rows, "files that %s doesn't have", p.program)
	}
}

// rowOf is a file's name in the tables: what differs from run to run is a star.
func rowOf(file string) string {
	if strings.HasPrefix(file, "blobs/") {
		return "blobs/sha256/*"
	}
	return regexp.MustCompile(`[0-9a-f]{12,}`).ReplaceAllString(file, "*")
}

func newDataStand(t *testing.T) *dataStand {
	t.Helper()
	s := &dataStand{Stand: stand.New(t, 1)}
	s.made, s.older = filepath.Join(s.Dir, "made"), filepath.Join(s.Dir, "older")
	s.User, s.Password = "op", "correct horse"
	write := func(name, text string) {
		require.NoError(t, os.WriteFile(filepath.Join(s.Dir, name), []byte(text), 0o600))
	}
	write("hub.yaml", fmt.Sprintf("auth: {anonymous: loopback, users: [{name: op, role: operator, nodes: [\"*\"], passwordHash: %q}]}\n", password.NewHash([]byte(s.Password))))
	for _, half := range []string{"first", "second"} {
		write("device-"+half+".yaml", stand.ModelManifest("meter", "{name: level}", "{name: wish, accessMode: ReadWrite}")+
			strings.Replace(stand.DeviceManifests("meter", "by-hand", "meter-1"), "{name: meter-1}", "{name: meter-1, labels: {half: "+half+"}}", 1))
		write("blob-"+half, "blob "+half)
		write("node-"+half+".yaml", "apiVersion: edgebus.io/v1alpha1\nkind: Node\nmetadata: {name: n1}\nspec:\n  config:\n    - name: banner\n      configType: InlineConfigProviderSpec\n      inline:\n        ignition: {version: 3.4.0}\n"+
			"        storage: {files: [{path: /etc/motd, contents: {source: 'data:,banner%20"+half+"%0A'}}]}\n")
	}
	require.NoError(t, s.Start(t.Context(), "hub", "--listen", "public", "--mqtt-tls-listen", s.TLS, "--http-tls-listen", "127.0.0.1:0"))
	s.sh(t, `edgebus invite n1 --server $HUB >line; sh -c "$(cat line) --config $PWD/n1.yaml --data-dir $PWD/core"
for node in n8 n9; do
	edgebus invite $node --server $HUB >line
	sh -c "$(cat line) --config $PWD/$node.yaml --data-dir $PWD/$node"
done
edgebus node revoke n8 --server $HUB
mosquitto_sub -p $HUB_PORT -V 5 -x 3600 -c -i keeper -q 1 -t queue/# -E`)
	require.NoError(t, os.MkdirAll(filepath.Join(s.Dir, "root/etc"), 0o755))
	s.startCore(t)
	s.sh(t, `mosquitto_sub -p $CORE_PORT -V 5 -x 3600 -c -i keeper -q 1 -t queue/# -E`)
	agent := func(half string) {
		s.sh(t, "edgebus apply -f node-"+half+".yaml --server $HUB")
		require.NoError(t, s.Run(t.Context(), "agent", s.agentLine(filepath.Join(s.Dir, "agent"), filepath.Join(s.Dir, "root")), ""))
		s.Eventually(stand.WaitTimeout, func() error {
			return s.shell(t.Context(), `grep -q "banner `+half+`" root/etc/motd && edgeagent status --data-dir agent | grep -q 'applied: *[0-9]' && ! edgeagent status --data-dir agent | grep -q '^updating:'`)
		})
	}
	s.sh(t, dataMaker+"half first")
	agent("first")
	stop := func(core func(string) error, copied string) {
		require.NoError(t, s.Term("agent"))
		require.NoError(t, core("core"))
		require.NoError(t, s.Crash("hub"))
		for _, dir := range []string{"hub", "core", "agent", "root"} {
			s.sh(t, "mkdir -p "+copied+" && cp -a "+dir+" "+copied+"/")
		}
	}
	stop(s.Term, s.older)
	s.Up("hub")
	s.startCore(t)
	s.sh(t, dataMaker+"half second PATCH /wifi merge-patch+json; say node revoke n9")
	agent("second")
	stop(s.Crash, s.made)
	s.Up("hub")
	return s
}

func (s *dataStand) startCore(t *testing.T) {
	t.Helper()
	require.NoError(t, s.Run(t.Context(), "core", s.coreLine(filepath.Join(s.Dir, "n1.yaml"), filepath.Join(s.Dir, "core"), s.Node("n1").MQTT, s.Node("n1").HTTP), "http://"+s.Node("n1").HTTP+"/readyz"))
}

func (s *dataStand) coreLine(settings, dir, mqtt, http string) []string {
	return []string{
		"edgecore", "--config", settings, "--data-dir", dir, "--mqtt-listen", mqtt, "--http-listen", http,
		"--mqtt-socket", dir + ".sock", "--log-level", "info", "--log-format", "json", "--views-home-assistant-enabled",
	}
}

func (s *dataStand) agentLine(dir, root string) []string {
	return []string{
		"edgeagent", "--mqtt-socket", filepath.Join(s.Dir, "core.sock"), "--data-dir", dir, "--root", root,
		"--log-format", "json", "--health-timeout", "2s",
	}
}

// shell runs a script in the stand's directory.
func (s *dataStand) shell(ctx context.Context, script string, env ...string) error {
	ctx, cancel := context.WithTimeout(ctx, 2*stand.WaitTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, "bash", "-c", script)
	cmd.Dir, cmd.Env = s.Dir, slices.Concat(os.Environ(), s.Env(), []string{"HOME=" + s.Dir}, env)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return nil
}

func (s *dataStand) sh(t *testing.T, script string) {
	t.Helper()
	require.NoError(t, s.shell(t.Context(), "set -eu\n"+script))
}

// files are those of a program's data directory.
func (s *dataStand) files(t *testing.T, program string) (files []string) {
	t.Helper()
	top := filepath.Join(s.made, program)
	require.NoError(t, filepath.WalkDir(top, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		file, err := filepath.Rel(top, path)
		files = append(files, file)
		return err
	}))
	return files
}

// expectedFacts are what was acknowledged, for the shell.
var expectedFacts = map[string]string{
	"hub": `
fact() { name=$1; shift; "$@" >fact.out 2>&1 || { echo "$name: $(tail -c 300 fact.out)"; bad=1; }; }
bad=
fact device sh -c "edgebus get device meter-1 --server $HUB -o json | grep -q 'second'"
fact secret sh -c "curl -sf -u 'op:correct horse' $HUB/api/v1/namespaces/default/secrets/wifi | grep -q $(printf psk-second | base64)"
for half in first second; do
	fact retained-$half sh -c "mosquitto_sub -p $AT -V 5 -W 3 -C 1 -t own/$half | grep -x value-$half"
	fact token-$half sh -c "curl -sf -H 'Authorization: Bearer '$(cat $TOP/token-$half) $HUB/apis/edgebus.io/v1alpha1/nodes"
	fact blob-$half sh -c "edgebus blob get $(cut -d' ' -f1 $TOP/digest-$half) --file blob --server $HUB; cmp blob $TOP/blob-$half"
done
node() { mosquitto_sub -p $AT_TLS --cafile $TOP/made/hub/authority/1.pem --insecure --cert $TOP/$2/identity/*/node.pem --key $TOP/$2/identity/*/node.pem -V 5 -i node/$1 -t v1/nodes/$1/sync/down -q 1 -E; }
not() { ! "$@"; }
fact n1-signs-in node n1 made/core
fact n8-is-revoked not node n8 n8
fact n9-is-revoked not node n9 n9
fact queue sh -c "mosquitto_sub -p $AT -V 5 -x 3600 -c -i keeper -q 1 -t queue/# -C 6 -W 3 | tr '\n' ' ' | grep -x 'queued-first-1 queued-first-2 queued-first-3 queued-second-1 queued-second-2 queued-second-3 '"
[ -z "$bad" ]`,
	"core": `
fact() { name=$1; shift; "$@" >fact.out 2>&1 || { echo "$name: $(tail -c 300 fact.out)"; bad=1; }; }
bad=
for half in first second; do
	fact retained-$half sh -c "mosquitto_sub -p $AT -V 5 -W 3 -C 1 -t own/$half | grep -x value-$half"
done
fact link sh -c "for i in 1 2 3 4 5 6 7 8 9; do curl -s http://$HTTP/metrics | grep -x 'edgebus_core_link_in_step 1' && exit; sleep 0.3; done; exit 1"
fact reported sh -c "mosquitto_sub -p $AT -V 5 -W 3 -C 1 -t v1/nodes/n1/devices/meter-1/reported/level | grep -x second"
fact queue sh -c "mosquitto_sub -p $AT -V 5 -x 3600 -c -i keeper -q 1 -t queue/# -C 6 -W 3 | tr '\n' ' ' | grep -x 'queued-first-1 queued-first-2 queued-first-3 queued-second-1 queued-second-2 queued-second-3 '"
[ -z "$bad" ]`,
	"agent": `
for i in $(seq 100); do
	edgeagent status --data-dir data >fact.out 2>&1; grep -q 'applied: *[0-9]' fact.out && grep -qx 'banner second' root/etc/motd && exit 0
	sleep 0.1
done
cat fact.out; cat root/etc/motd; exit 1`,
}

// try starts a program with a damaged copy of its directory, and reports what it does, and what that is concluded from.
func (s *dataStand) try(t *testing.T, program, file string, damage func(text, older []byte) []byte) (outcome, why string) {
	t.Helper()
	cell := filepath.Join(s.Dir, "cell")
	require.NoError(t, os.RemoveAll(cell))
	require.NoError(t, os.Mkdir(cell, 0o700))
	s.sh(t, "cp -a made/"+program+" cell/data; cp -a made/root cell/; sed s,$PWD/core/,$PWD/cell/data/,g n1.yaml >cell/n1.yaml")
	dir := filepath.Join(cell, "data")
	path := filepath.Join(dir, file)
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	older, err := os.ReadFile(filepath.Join(s.older, program, file))
	if err != nil {
		older = text
	}
	switch bad := damage(text, older); {
	case bad == nil:
		require.NoError(t, os.Remove(path))
	case bytes.Equal(bad, text):
		return "-", ""
	default:
		require.NoError(t, os.WriteFile(path, bad, 0o600))
	}
	mqtt, http, tls := harness.FreeAddress(t), harness.FreeAddress(t), harness.FreeAddress(t)
	line, ready := s.agentLine(dir, filepath.Join(cell, "root")), ""
	switch program {
	case "hub":
		line = []string{
			"cloudhub", "--config", filepath.Join(s.Dir, "hub.yaml"), "--data-dir", dir, "--mqtt-listen", mqtt, "--http-listen", http, "--mqtt-websocket-listen", "",
			"--listen", "public", "--mqtt-tls-listen", tls, "--http-tls-listen", "127.0.0.1:0", "--log-format", "json",
		}
		ready = "http://" + http + "/readyz"
	case "core":
		line = s.coreLine(filepath.Join(cell, "n1.yaml"), dir, mqtt, http)
		ready = "http://" + http + "/readyz"
	}
	const name = "cell"
	if err := os.Remove(s.LogFile(name)); !errors.Is(err, fs.ErrNotExist) {
		require.NoError(t, err)
	}
	err = s.Run(t.Context(), name, line, ready)
	var lost error
	if program == "agent" && err == nil {
		s.Eventually(stand.WaitTimeout, func() error {
			if log, err := os.ReadFile(s.LogFile(name)); s.Running(name) && !strings.Contains(string(log), "MQTT connected") {
				return fmt.Errorf("the agent has not begun: %w", err)
			}
			return nil
		})
	}
	if err == nil && s.Running(name) {
		lost = s.shell(t.Context(), "cd cell\n"+expectedFacts[program], "HUB=http://"+http, "HTTP="+http, "AT="+portOf(mqtt), "AT_TLS="+portOf(tls), "TOP="+s.Dir)
	}
	running := s.Running(name)
	if running {
		require.NoError(t, s.Crash(name))
	} else {
		require.NoError(t, s.Doom(name))
	}
	log, err := os.ReadFile(s.LogFile(name))
	require.NoError(t, err)
	why = logLinesOf(string(log), path)
	advises := regexp.MustCompile(`(?i)restore|move |remove |delete |take |give `).MatchString(why)
	switch {
	case !running && why != "" && advises:
		return "refused", why
	case !running:
		return "refused without the file's name or what to do", string(log)
	case lost == nil && why == "":
		return "whole", ""
	case why != "":
		return "told", why
	case strings.HasPrefix(file, "blobs/") && regexp.MustCompile(`^exit status 1: blob-[^ ]+: edgebus: (there is no blob|what the hub sent has the digest)[^\n]*\n[^\n]*\n$`).MatchString(lost.Error()):
		return "missed", lost.Error()
	}
	return "lost", lost.Error()
}

// logLinesOf are the lines of a log, at warning level or above, that name a file, or the directory below the data directory that it is in.
func logLinesOf(log, path string) (lines string) {
	_, file, _ := strings.Cut(path, "/cell/data/")
	for l := range strings.Lines(log) {
		named := strings.Contains(l, file) || strings.HasPrefix(file, "identity/") && strings.Contains(l, "certificate") || // that the hub's isn't trusted
			strings.Contains(file, "/") && strings.Contains(l, filepath.Dir(path)+" ")
		if named && (strings.Contains(l, `"level":"warn"`) || strings.Contains(l, `"level":"error"`)) {
			lines += l
		}
	}
	return lines
}

func portOf(address string) string { return address[strings.LastIndex(address, ":")+1:] }
