// SPDX-License-Identifier: Apache-2.0

package topics

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// writeGolden says to write the golden files anew: make golden.
var writeGolden = os.Getenv("GOLDEN") == "write"

// TestContract pins the whole table: a change of it is a change of the contract.
func TestContract(t *testing.T) {
	var b strings.Builder
	for _, row := range Table() {
		fmt.Fprintf(&b, "%-46s %-6s qos=%d retain=%-5v %-14s publish=%v subscribe=%v\n",
			row.Pattern, row.Owner, row.QoS, row.Retain, row.Payload, row.Publish, row.Subscribe)
	}
	const file = "testdata/contract.golden"
	if writeGolden {
		require.NoError(t, os.MkdirAll("testdata", 0o755))
		require.NoError(t, os.WriteFile(file, []byte(b.String()), 0o644))
	}
	want, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, string(want), b.String(), "make golden, if this is meant")
}

// exampleTopic fills a pattern's holes with names.
func exampleTopic(pattern string) string {
	s := strings.NewReplacer("{device}", "lamp", "{property}", "power", "{configuration}", "cameras", "{instance}", "cameras-1",
		"{mapper}", "modbus", "{name}", "blink", "{call}", "4XQ7", "{part}", "0", "{request}", "4xq7", "{secret}", "default.wifi", "{rule}", "default.my-rule", "#", "a/b/c").Replace(pattern)
	return Prefix + "n1/" + s
}

// TestEveryRowParsesAndFormats goes through the table, so that no row is forgotten by the parser.
func TestEveryRowParsesAndFormats(t *testing.T) {
	for _, row := range Table() {
		topic := exampleTopic(row.Pattern)
		a, err := Parse(topic)
		require.NoError(t, err, topic)
		require.Equal(t, row.Kind, a.Kind, topic)
		require.Equal(t, "n1", a.Node)
		require.Equal(t, topic, a.String())
		require.Equal(t, row, a.Kind.Row())
		require.NotEmpty(t, row.Doc)
	}
}

// TestOwnership holds the idea: who may publish to a replicated topic is on its owner's side, or asks for a value.
func TestOwnership(t *testing.T) {
	for _, row := range Table() {
		for _, role := range row.Publish {
			switch {
			case row.Owner == OwnerCloud:
				require.Equal(t, RoleOperator, role, row.Pattern)
			case row.Owner == OwnerEdge && row.Retain:
				require.Contains(t, []Role{RoleMapper, RoleAgent, RoleDiscoverer}, role, row.Pattern)
			}
		}
		require.NotContains(t, row.Publish, RoleViewer, row.Pattern)
	}
}

func TestParseRefuses(t *testing.T) {
	long := strings.Repeat("x", 254)
	for topic, rule := range map[string]string{
		"":                                       "not below",
		"hello":                                  "not below",
		"v1/nodes/n1":                            "nothing after",
		"v1/nodes/N1/status":                     "bad node name",
		"v1/nodes//status":                       "bad node name",
		"v1/nodes/n1/":                           "empty topic",
		"v1/nodes/n1/nonsense":                   "no such topic",
		"v1/nodes/n1/devices":                    "bad name",
		"v1/nodes/n1/devices/":                   "bad name",
		"v1/nodes/n1/devices/Lamp":               "bad name",
		"v1/nodes/n1/devices/-lamp":              "bad name",
		"v1/nodes/n1/devices/" + long:            "bad name",
		"v1/nodes/n1/devices/lamp/nonsense":      "no such topic below a device",
		"v1/nodes/n1/devices/lamp/desired/":      "bad property",
		"v1/nodes/n1/devices/lamp/desired/a/b":   "bad property",
		"v1/nodes/n1/devices/lamp/telemetry/":    "needs a name",
		"v1/nodes/n1/devices/lamp/desired/po+er": "wildcards",
		"v1/nodes/n1/devices/lamp/desired/a\x00": "NUL",
		"v1/nodes/n1/devices/lamp/desired/\xff":  "UTF-8",
		"v1/nodes/n1/mappers/m":                  "state, protocols and settings",
		"v1/nodes/n1/discovery/c/x":              "instances/{instance}",
		"v1/nodes/n1/bridge/":                    "nothing after bridge",
		"v1/nodes/n1/sync/sideways":              "no such topic",
	} {
		_, err := Parse(topic)
		require.ErrorContains(t, err, rule, "%q", topic)
		require.IsType(t, &Error{}, err)
	}
}

func TestNames(t *testing.T) {
	for _, s := range []string{"a", "0", "lamp-1", "a.b", "a--b.c-d.0", strings.Repeat("x", 253)} {
		require.True(t, ValidName(s), s)
	}
	for _, s := range []string{"", "-a", "a-", ".a", "A", "a_b", "a/b", "ä", "a b", "a..b", "a-.b", "a.-b", strings.Repeat("x", 254)} {
		require.False(t, ValidName(s), s)
	}
	require.True(t, ValidProperty("temperatureEnable_2"))
	require.True(t, ValidProperty("a..b"))
	require.False(t, ValidProperty("_private"))
}

// TestMatch follows MQTT 5, section 4.7.
func TestMatch(t *testing.T) {
	for _, tt := range []struct {
		filter, topic string
		want          bool
	}{
		{"a/b", "a/b", true},
		{"a/b", "a/c", false},
		{"a/+", "a/b", true},
		{"a/+", "a/b/c", false},
		{"a/+", "a/", true},
		{"a/+", "a", false},
		{"+", "a", true},
		{"+/+", "/finance", true},
		{"/+", "/finance", true},
		{"+", "/finance", false},
		{"a/#", "a", true},
		{"a/#", "a/b/c", true},
		{"a/#", "ab", false},
		{"#", "a/b", true},
		{"#", "/", true},
		{"#", "$SYS/x", false},
		{"+/x", "$SYS/x", false},
		{"$SYS/#", "$SYS/x", true},
		{"a/+/c", "a//c", true},
		{"a", "a/", false},
		{"a/", "a", false},
	} {
		require.Equal(t, tt.want, Match(tt.filter, tt.topic), "%s on %s", tt.filter, tt.topic)
	}
}

func TestAFilterCoversWhatMatchesNothingElse(t *testing.T) {
	for _, c := range []struct {
		wide, filter string
		want         bool
	}{
		{"a/+", "a/b", true},
		{"a/+", "a/+", true},
		{"a/+", "a/#", false},
		{"a/+", "a", false},
		{"a/+", "a/b/c", false},
		{"a/#", "a/b/#", true},
		{"a/#", "a", true},
		{"a/b", "a/+", false},
		{"a", "#", false},
		{"+", "a", true},
		{"#", "$SYS/#", false},
		{"$SYS/#", "$SYS/+", true},
	} {
		require.Equal(t, c.want, CoversFilter(c.wide, c.filter), "%s %s", c.wide, c.filter)
	}
}

func TestCheckFilter(t *testing.T) {
	for _, s := range []string{"#", "+", "a/+/b/#", "/", "$share/g/a/#", "$SYS/#"} {
		require.NoError(t, CheckFilter(s), s)
	}
	for _, s := range []string{"", "a/#/b", "a+", "a/b#", "$share/g", "$share//a", "$share/g/", "$share/+/a", "a\x00", "\xff"} {
		require.Error(t, CheckFilter(s), "%q", s)
	}
}

func TestSplitAndJoin(t *testing.T) {
	small := []byte(`{"sha256":"looks like a manifest, and is none"}`)
	value, parts := SplitDocument(small)
	require.Empty(t, parts)
	doc, ok := JoinDocument(value, nil)
	require.True(t, ok)
	require.Equal(t, small, doc)

	big := []byte(strings.Repeat("0123456789", 20_000))
	value, parts = SplitDocument(big)
	require.Len(t, parts, 4)
	get := func(n int) ([]byte, bool) {
		if n < len(parts) {
			return parts[n], true
		}
		return nil, false
	}
	doc, ok = JoinDocument(value, get)
	require.True(t, ok)
	require.Equal(t, big, doc)

	parts[2] = []byte("of another version")
	_, ok = JoinDocument(value, get)
	require.False(t, ok)
	parts = parts[:2]
	_, ok = JoinDocument(value, get)
	require.False(t, ok, "a part is missing")
}

func FuzzParse(f *testing.F) {
	for _, row := range Table() {
		f.Add(exampleTopic(row.Pattern))
	}
	f.Fuzz(func(t *testing.T, topic string) {
		a, err := Parse(topic)
		if err != nil {
			require.Less(t, len(err.Error()), 2000, "an error must not carry a hostile topic whole")
			return
		}
		require.Equal(t, topic, a.String())
		require.NoError(t, CheckTopic(topic))
	})
}

// FuzzMatch compares with the rules written out level by level.
func FuzzMatch(f *testing.F) {
	f.Add("a/+/#", "a/b/c")
	f.Add("+/+", "/x")
	f.Fuzz(func(t *testing.T, filter, topic string) {
		if CheckFilter(filter) != nil || CheckTopic(topic) != nil || strings.HasPrefix(filter, "$share/") {
			return
		}
		require.Equal(t, slowMatch(strings.Split(filter, "/"), strings.Split(topic, "/")), Match(filter, topic))
	})
}

func slowMatch(filter, topic []string) bool {
	if len(filter) == 0 {
		return len(topic) == 0
	}
	if filter[0] == "#" {
		return true
	}
	if len(topic) == 0 || filter[0] != "+" && filter[0] != topic[0] {
		return false
	}
	return slowMatch(filter[1:], topic[1:])
}

func BenchmarkMatch(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		Match("v1/nodes/+/devices/+/desired/+", "v1/nodes/n1/devices/lamp/desired/power")
	}
}

func BenchmarkParse(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Parse("v1/nodes/n1/devices/lamp/desired/power"); err != nil {
			b.Fatal(err)
		}
	}
}
