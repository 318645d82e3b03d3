// SPDX-License-Identifier: Apache-2.0

package cli_test

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/cloud/cli/exitcode"
	"github.com/edgebus/edgebus/test/clitest"
)

// What goes wrong for somebody who is new here says what to do about it.
func TestMistakesOfNewcomersAreExplained(t *testing.T) {
	server := clitest.StartHub(t)
	dir := t.TempDir()
	clitest.Run(t, 0, "apply", "-q", "-f", clitest.WriteFile(t, dir, "plant.yaml", clitest.Plant))
	refusing := func(code int, message string) string {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(code)
			fmt.Fprintf(w, `{"kind":"Status","code":%d,"message":%q}`, code, message)
		}))
		t.Cleanup(s.Close)
		return s.URL
	}
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = silent.Close() })
	file := func(name, text string) string { return clitest.WriteFile(t, dir, name, text) }
	const head = "apiVersion: edgebus.io/v1alpha1\nkind: Device\nmetadata: {name: lamp}\n"
	for _, c := range []struct {
		line string
		code int
		want string
	}{
		{"get devices --server http://127.0.0.1:1", exitcode.Unreachable, "nothing listens there. Is cloudhub running, and is this its HTTP address"},
		{"get devices --server 127.0.0.1:8080", exitcode.Misused, `is no address; it looks like https://hub.example.org:8443`},
		{"get devices --server mqtt://127.0.0.1:1883", exitcode.Misused, "An HTTP one looks like"},
		{"get devices --server http://no-such-host.invalid:8080", exitcode.Unreachable, "Is it spelt right?"},
		{"get devices --server https://" + strings.TrimPrefix(server.URL, "http://"), exitcode.Unreachable, "Should the address begin with http://?"},
		{"get devices --server http://" + silent.Addr().String() + " --timeout 1s", exitcode.TimedOut, "Does it hang, or is something else there?"},
		{"get devices --server " + refusing(401, "the token expired"), exitcode.Refused, "the token expired (--cert and --key, --user and --password-file, or --token-file)"},
		{"get devices --server " + refusing(403, "ann is a viewer"), exitcode.Refused, "ann is a viewer"},
		{"get devices --server " + refusing(404, ""), exitcode.Unreachable, "something else answers there. A hub's HTTP API is on port 8080"},
		{"get devices --token-file " + dir + "/none", exitcode.Failed, "the bearer token: open "},
		{"get devices --ca " + dir + "/none", exitcode.Failed, "the authority's certificate: open "},
		{"get devices --context none", exitcode.NotFound, "edgebus context list shows those that there are"},
		{"get devises", exitcode.NotFound, "did you mean devices?"},
		{"get device a/b", exitcode.Misused, `"a/b" can't be a name: it is 1–253 characters of a–z, 0–9`},
		{"delete device ../x", exitcode.Misused, `"../x" can't be a name: `},
		{"describe device ..", exitcode.Misused, `".." can't be a name: `},
		{"get device lamp -o jsonpath={.a", exitcode.Misused, "unclosed action"},
		{"get device lamp -o jsonpath=", exitcode.Misused, "it looks like jsonpath='{.items[*].metadata.name}' (it is empty)"},
		{"get device lamp -o jsonpath", exitcode.Misused, "yaml, name, jsonpath=TEMPLATE"},
		{"get device lamp --sort-by .metadata.name", exitcode.Misused, "--sort-by is for all objects of one kind"},
		{"create lamp.yaml", exitcode.Misused, "manifests are given with -f: edgebus create -f lamp.yaml"},
		{"get device lmp", exitcode.NotFound, "did you mean lamp?"},
		{"twin set lamp brightnes=1", exitcode.Refused, "did you mean brightness?"},
		{"twin set lamp brightness=400", exitcode.Refused, "maximum of 100"},
		{"twin set lamp brightness 40", exitcode.Misused, `"brightness" is not PROPERTY=VALUE`},
		{"apply -f " + dir + "/none.yaml", exitcode.Failed, "there is no such file or directory here"},
		{"apply -f " + file("a.yaml", "a: ["), exitcode.Refused, "a.yaml: is not YAML: yaml: line 1"},
		{"apply -f " + file("tab.yaml", "kind: Device\nmetadata:\n\tname: lamp\n"), exitcode.Refused, "it is indented with a tab: YAML wants spaces"},
		{"apply -f " + file("text.yaml", "hello\n"), exitcode.Refused, `is no object with apiVersion, kind and metadata: "\"hello\""`},
		{"apply -f " + file("version.yaml", "kind: Device\nmetadata: {name: lamp}\n"), exitcode.Refused, "apiVersion: is missing, such as edgebus.io/v1alpha1"},
		{"apply -f " + file("old.yaml", strings.Replace(head, "v1alpha1", "v9", 1)), exitcode.NotFound, "the hub knows no kind Device of edgebus.io/v9: its apiVersion is edgebus.io/v1alpha1, or "},
		{"apply -f " + file("kind.yaml", strings.Replace(head, "Device", "Devcie", 1)), exitcode.NotFound, "did you mean Device?"},
		{"apply -f " + file("field.yaml", head+"spec: {nodeNam: n1}\n"), exitcode.Refused, `unknown field "spec.nodeNam"`},
		{"apply lamp.yaml", exitcode.Misused, "edgebus apply -f lamp.yaml"},
		{"pub a b --server mqtt://127.0.0.1:1", exitcode.Unreachable, "Is the hub running, and is this the address of its MQTT listener"},
		{"device add lamp2", exitcode.Misused, `required flag(s) "model", "node" not set`},
		{"history lamp", exitcode.Misused, "edgebus history lamp PROPERTY"},
		{"user add bob --role king --config " + file("hub.yaml", "{}"), exitcode.Misused, "it is operator, viewer, node, controller, enroller, follower"},
		{"user list --config " + filepath.Join(dir, "nothing.yaml"), exitcode.NotFound, "run this on the hub's machine"},
		{"wait device/lamp", exitcode.Misused, "condition=TYPE"},
	} {
		_, errs := clitest.Run(t, c.code, strings.Split(c.line, " ")...)
		require.Contains(t, errs, c.want, c.line)
		require.NotContains(t, errs, "struct {", c.line)
	}
}

// A command that wants the name of one kind alone says so of KIND/NAME, which others take.
func TestANameOfOneKindHasNoKind(t *testing.T) {
	clitest.StartHub(t)
	for _, line := range []string{"twin get device/lamp", "twin set device/lamp power=on", "history device/lamp power", "alarm ack device/lamp"} {
		_, errs := clitest.Run(t, exitcode.Misused, strings.Fields(line)...)
		require.Contains(t, errs, `"device/lamp" is no name of a Device: its name alone is wanted, such as lamp`, line)
	}
	_, errs := clitest.Run(t, exitcode.Misused, "rollout", "status", "fleet/shops")
	require.Contains(t, errs, `"fleet/shops" is no name of a Fleet`)
}
