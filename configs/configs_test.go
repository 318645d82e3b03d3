// SPDX-License-Identifier: Apache-2.0

package configs

import (
	"bytes"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/topics/limits"
	"github.com/edgebus/edgebus/topics/password"
)

func writeSettings(t *testing.T, text string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "test.yaml")
	require.NoError(t, os.WriteFile(name, []byte(text), 0o600))
	return name
}

// loadCore reads a core's settings from a file's text and arguments.
func loadCore(t *testing.T, text string, args ...string) (Core, error) {
	t.Helper()
	flags := pflag.NewFlagSet("edgecore", pflag.ContinueOnError)
	require.NoError(t, AddFlags[Core]("edgecore", flags))
	require.NoError(t, flags.Parse(args))
	return Load[Core]("edgecore", writeSettings(t, text), flags)
}

func TestDefaultsAreWholeAndOnLoopback(t *testing.T) {
	t.Setenv("XDG_STATE_HOME", "/state")
	hub, err := Load[Hub]("cloudhub", "", nil)
	require.NoError(t, err)
	require.Equal(t, "127.0.0.1:1883", hub.MQTT.Listen)
	require.Equal(t, "127.0.0.1:8080", hub.HTTP.Listen)
	require.Empty(t, hub.MQTT.TLS.Listen)
	require.True(t, hub.Anybody())
	require.Equal(t, Size(limits.MemoryLimit()/4), hub.Limits.Session.All)
	require.False(t, hub.Insecure)

	core, err := Load[Core]("edgecore", "", nil)
	require.NoError(t, err)
	host, err := os.Hostname()
	require.NoError(t, err)
	require.Equal(t, strings.ToLower(host), core.Node.Name)
	require.Equal(t, "node/"+core.Node.Name, core.Link.User)
	require.Equal(t, "127.0.0.1:2883", core.MQTT.Listen)
	require.Equal(t, "127.0.0.1:10550", core.HTTP.Listen)
	require.Equal(t, "mqtt://127.0.0.1:1883", core.Link.Server)
	require.Zero(t, core.Link.Retry.Attempts)
	if os.Geteuid() == 0 {
		require.Equal(t, "/var/lib/edgebus/core", core.Data.Dir)
		require.Equal(t, "/var/lib/edgebus/hub", hub.Data.Dir)
	} else {
		require.Equal(t, "/state/edgebus/core", core.Data.Dir)
		require.Equal(t, "/state/edgebus/hub", hub.Data.Dir)
	}

	modbus, err := Load[Mapper[Modbus]]("mapper-modbus", "", nil)
	require.NoError(t, err)
	require.Equal(t, "mqtt://127.0.0.1:2883", modbus.Server)
	require.Equal(t, "modbus", modbus.Name)
	require.Positive(t, modbus.Driver.Timeout)
	virtual, err := Load[Mapper[Virtual]]("mapper-virtual", "", nil)
	require.NoError(t, err)
	require.Positive(t, virtual.Driver.Interval)
}

func TestFileThenEnvironmentThenFlags(t *testing.T) {
	text := "link: {keepalive: 11s, retry: {timeout: 21s, backoff: {max: 41s}}}\nlimits: {packet: 2MiB}\n"
	t.Setenv("EDGECORE_LINK_RETRY_TIMEOUT", "22s")
	t.Setenv("EDGECORE_LINK_RETRY_BACKOFF_MAX", "42s")
	t.Setenv("EDGECORE_MQTT_TLS_CLIENT_CA", "ca.pem")
	core, err := loadCore(t, text, "--link-retry-backoff-max=43s", "--insecure", "--mqtt-listen", "")
	require.NoError(t, err)
	require.Equal(t, 11*time.Second, core.Link.Keepalive)
	require.Equal(t, 22*time.Second, core.Link.Retry.Timeout)
	require.Equal(t, 43*time.Second, core.Link.Retry.Backoff.Max)
	require.Equal(t, "ca.pem", core.MQTT.TLS.ClientCA)
	require.Equal(t, Size(2<<20), core.Limits.Packet)
	require.True(t, core.Insecure)
	require.Empty(t, core.MQTT.Listen, "an empty flag is a value: it turns the listener off")
	require.Equal(t, 500*time.Millisecond, core.Link.Retry.Backoff.Min, "what nobody sets keeps its default")
}

func TestTextSurvivesAsItWasWritten(t *testing.T) {
	core, err := loadCore(t, "node: {name: \"007\"}\nlink: {user: 0123, password: 1_000}\nauth:\n  users:\n    - {name: Ann, passwordHash: "+secretHash+", role: viewer, devices: [\"lamp*\"]}\n")
	require.NoError(t, err)
	require.Equal(t, "007", core.Node.Name)
	require.Equal(t, "0123", core.Link.User)
	require.Equal(t, "1_000", core.Link.Password)
	require.Equal(t, []User{{Name: "Ann", PasswordHash: secretHash, Role: "viewer", Devices: []string{"lamp*"}}}, core.Auth.Users)
}

func TestUsersFromTheEnvironment(t *testing.T) {
	t.Setenv("EDGECORE_AUTH_USERS", `[{name: bob, role: operator, passwordHash: `+secretHash+`}]`)
	core, err := loadCore(t, "")
	require.NoError(t, err)
	require.Len(t, core.Auth.Users, 1)
	require.Equal(t, "bob", core.Auth.Users[0].Name)
}

func TestWhatIsWrongIsNamed(t *testing.T) {
	for _, c := range []struct{ name, text, want string }{
		{"misspelt key", "\nlink:\n  keepalve: 3s\n", "test.yaml:3: link.keepalve: unknown key; did you mean link.keepalive?"},
		{"misspelt section", "lnik: {keepalive: 3s}", "test.yaml:1: lnik: unknown key; did you mean link?"},
		{"key in the wrong place", "keepalive: 3s", "did you mean link.keepalive?"},
		{"key of nobody", "zzzzzzzz: 1", "test.yaml:1: zzzzzzzz: unknown key"},
		{"wrong case", "mqtt: {tls: {clientca: x}}", "did you mean mqtt.tls.clientCA?"},
		{"duration without unit", "link: {keepalive: 30}", `test.yaml:1: link.keepalive: "30" is not a duration`},
		{"negative duration", "link: {keepalive: -3s}", "less than nothing"},
		{"size", "limits: {packet: 3 stones}", "is not a size"},
		{"size overflow", "limits: {packet: 9223372036854775807GiB}", "is not a size"},
		{"packet below what the link needs", "limits: {packet: 1KiB}", "limits.packet: 1KiB is less"},
		{"number", "limits: {inflight: many}", `"many" is not a whole number`},
		{"too large a number", "limits: {inflight: 70000}", "65535"},
		{"too large a receive maximum", "limits: {receiveMaximum: 70000}", "limits.receiveMaximum: 70000 is more than the 65535"},
		{"no aliases", "limits: {topicAliases: 0}", "limits.topicAliases"},
		{"no time to connect", "limits: {connectTimeout: 0s}", "limits.connectTimeout"},
		{"too long a keep-alive", "limits: {keepAlive: 20h}", "18h12m15s"},
		{"bool", "insecure: perhaps", "neither true nor false"},
		{"value for a section", "link: fast", "link: must hold keys"},
		{"section for a value", "link: {server: {a: b}}", "link.server: must be a single value"},
		{"no list", "auth: {users: ann}", "auth.users: must be a list"},
		{"unknown field of a user", "auth:\n  users:\n  - name: ann\n    pasword: x", "test.yaml:4: auth.users[0].pasword: unknown key"},
		{"user without hash", "auth: {users: [{name: ann, role: viewer}]}", "auth.users[0].passwordHash"},
		{"malformed hash", "auth: {users: [{name: ann, role: viewer, passwordHash: $7$101$c2FsdA==}]}", `auth.users[0].passwordHash: user "ann": not a password hash`},
		{"redacted hash", "auth: {users: [{name: ann, role: viewer, passwordHash: <redacted>}]}", `user "ann": <redacted> is what --print-config shows`},
		{"user's role", "auth: {users: [{name: ann, role: king, passwordHash: $7$x}]}", `auth.users[0].role: "king" is not one of`},
		{"user of a view", "auth: {users: [{name: view-x, role: viewer, passwordHash: $7$x}]}", "are the views of this program"},
		{"view without a server", "views: {homeAssistant: {enabled: true, user: x}}", "views.homeAssistant.server"},
		{"view at no address", "views: {homeAssistant: {enabled: true, server: house}}", "is no address such as"},
		{"view below its prefix", "views: {homeAssistant: {topic: homeassistant/x}}", "one is below the other"},
		{"view in the tree", "views: {homeAssistant: {prefix: v1/x}}", "none of the users' own topics"},
		{"namespace in the tree", "views: {uns: {root: v1}}", "views.uns.root"},
		{"level without a label", "views: {uns: {levels: [site, '']}}", "views.uns.levels"},
		{"group of several levels", "views: {sparkplug: {group: a/b}}", "views.sparkplug.group"},
		{"no group", "views: {sparkplug: {group: ''}}", "must not be empty"},
		{"host of any name", "views: {sparkplug: {primaryHost: '+'}}", "views.sparkplug.primaryHost"},
		{"user twice", "auth: {users: [{name: a, role: viewer, passwordHash: $7$x}, {name: a, role: viewer, passwordHash: $7$x}]}", "listed twice"},
		{"a node's user", "auth: {users: [{name: node/p1, role: node, passwordHash: $7$x}]}", `auth.users[0].name: "node/p1": a node's user has the node's name alone: write "p1"`},
		{"glob", "auth: {users: [{name: a, role: viewer, passwordHash: $7$x, devices: ['[']}]}", "is no pattern"},
		{"open listener", "mqtt: {listen: ':2883'}", "test.yaml:1: mqtt.listen: :2883 would be open to other hosts without TLS; use 127.0.0.1:2883, or mqtt.tls.listen, or allow it with insecure: true"},
		{"open api", "http: {listen: '0.0.0.0:80'}", "http.listen: 0.0.0.0:80 would be open"},
		{"open websocket", "mqtt: {websocket: {listen: '[::]:8083'}}", "mqtt.websocket.listen"},
		{"address", "http: {listen: here}", "is not host:port"},
		{"port", "http: {listen: '127.0.0.1:70000'}", "no port"},
		{"tls without certificate", "mqtt: {tls: {listen: ':8883'}}", "needs mqtt.tls.cert and mqtt.tls.key"},
		{"no origin", "mqtt: {websocket: {origins: ['app.example.com']}}", "mqtt.websocket.origins[0]"},
		{"an origin's path", "mqtt: {websocket: {origins: ['https://app.example.com/']}}", "mqtt.websocket.origins[0]"},
		{"wss without certificate", "mqtt: {websocket: {listen: ':8083', tls: true}}", "mqtt.websocket.tls: needs"},
		{"server", "link: {server: 'http://x'}", "is not mqtt://host:port"},
		{"password in url", "link: {server: 'mqtt://u:hunter2@x'}", "link.server"},
		{"one address of several", "link: {server: 'mqtt://a:1883, http://b'}", `link.server: "http://b" is not mqtt://host:port`},
		{"no address between commas", "link: {server: ' , '}", `link.server: " , " has no address`},
		{"an address twice", "link: {server: 'mqtt://a,mqtt://b,mqtt://a'}", "link.server: mqtt://a is there twice"},
		{"two passwords", "link: {password: a, passwordFile: b}", "not both"},
		{"half a certificate", "link: {tls: {cert: a}}", "link.tls.cert"},
		{"backoff", "link: {retry: {backoff: {min: 1m, max: 1s}}}", "link.retry.backoff.max: 1s is less"},
		{"node name", "node: {name: 'a/b'}", "node.name"},
		{"log level", "log: {level: loud}", "log.level"},
		{"anonymous", "auth: {anonymous: always}", "auth.anonymous"},
		{"twice", "data: {dir: a}\nlink: {}\ndata: {dir: b}", "set twice"},
		{"no yaml", "data: [", "test.yaml"},
		{"two documents", "data: {dir: a}\n---\ndata: {dir: b}", "more than one YAML document"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := loadCore(t, c.text)
			require.ErrorContains(t, err, c.want)
			require.NotContains(t, err.Error(), "hunter2")
		})
	}
}

// Each rule that a tag names is there, and refuses something.
func TestRulesOfTextsRefuse(t *testing.T) {
	used := map[string]bool{}
	var walk func(reflect.Type)
	walk = func(typ reflect.Type) {
		for typ.Kind() == reflect.Slice {
			typ = typ.Elem()
		}
		for i := 0; typ.Kind() == reflect.Struct && i < typ.NumField(); i++ {
			used[typ.Field(i).Tag.Get("is")] = true
			walk(typ.Field(i).Type)
		}
	}
	for _, typ := range []reflect.Type{reflect.TypeFor[Hub](), reflect.TypeFor[Core](), reflect.TypeFor[Agent](), reflect.TypeFor[Discovery](), reflect.TypeFor[Mapper[Virtual]]()} {
		walk(typ)
	}
	delete(used, "")
	require.ElementsMatch(t, slices.Collect(maps.Keys(used)), slices.Collect(maps.Keys(textRules)))
	for name, rule := range textRules {
		require.ErrorContains(t, rule("$"+strings.Repeat("[://", 40)), "[://", name)
	}
}

func TestAllThatIsWrongIsReportedAtOnce(t *testing.T) {
	_, err := loadCore(t, "link: {keepalive: 3, sever: x}\nzzz: 1\n")
	require.ErrorContains(t, err, "link.keepalive")
	require.ErrorContains(t, err, "did you mean link.server?")
	require.ErrorContains(t, err, "zzz")
	var e *Error
	require.ErrorAs(t, err, &e)
}

func TestSourcesOfWrongValues(t *testing.T) {
	t.Setenv("EDGECORE_LINK_KEEPALIVE", "soon")
	_, err := loadCore(t, "", "--link-retry-timeout=later")
	require.ErrorContains(t, err, `EDGECORE_LINK_KEEPALIVE: link.keepalive: "soon" is not a duration`)
	require.ErrorContains(t, err, `--link-retry-timeout: link.retry.timeout: "later" is not a duration`)
	t.Setenv("EDGECORE_LINK_KEEPALIVE", "")
	_, err = loadCore(t, "", "--mqtt-listen=0.0.0.0:1")
	require.ErrorContains(t, err, "--mqtt-listen")
}

func TestHubsThatAreReplacedAreNamed(t *testing.T) {
	hub, err := Load[Hub]("cloudhub", writeSettings(t, "replaces: [hub-5f3c2a11]"), nil)
	require.NoError(t, err)
	require.Equal(t, []string{"hub-5f3c2a11"}, hub.Replaces)
	_, err = Load[Hub]("cloudhub", writeSettings(t, "replaces: [hub-5f3c2a11, 12345678]"), nil)
	require.ErrorContains(t, err, `test.yaml:1: replaces[1]: "12345678" is no hub's identity, such as hub-5f3c2a11`)
}

func TestInsecureAllowsOpenListeners(t *testing.T) {
	core, err := loadCore(t, "insecure: true\nmqtt: {listen: ':2883'}")
	require.NoError(t, err)
	require.Equal(t, ":2883", core.MQTT.Listen)
}

func TestMisspeltVariables(t *testing.T) {
	t.Setenv("EDGECORE_SERVICE_HOST", "10.0.0.1") // what Kubernetes sets for a service named edgecore
	t.Setenv("EDGECORE_PORT", "tcp://10.0.0.1:1883")
	_, err := loadCore(t, "")
	require.NoError(t, err)
	t.Setenv("EDGECORE_LINK_KEEPALVE", "3s")
	_, err = loadCore(t, "")
	require.ErrorContains(t, err, "EDGECORE_LINK_KEEPALVE: unknown; did you mean EDGECORE_LINK_KEEPALIVE?")
}

func TestMissingFileIsAnErrorWhenNamed(t *testing.T) {
	_, err := Load[Core]("edgecore", filepath.Join(t.TempDir(), "none.yaml"), nil)
	require.ErrorIs(t, err, os.ErrNotExist)
	_, err = Load[Core]("toaster", "", nil)
	require.ErrorContains(t, err, "toaster")
}

// secretHash is that of "secret".
const secretHash = "$6$MDEyMzQ1Njc4OWFi$qEXipeLbgxRlwd06QHfY5WITkUZg0jLg9SZbXzq3ifXjfj+v3GbJGrSfC5PAg3UNCS+UFfbhUIZX4bmIAs330w=="

func TestPrintedSettingsLoadAgainAndHideSecrets(t *testing.T) {
	t.Setenv("EDGECORE_LINK_PASSWORD", "hunter2")
	text := "auth: {users: [{name: ann, role: viewer, passwordHash: " + secretHash + ", nodes: [a, b]}]}\nlink: {keepalive: 90s}\nlimits: {packet: 3MiB}\n"
	var out bytes.Buffer
	_, done, err := Parse[Core]("edgecore", "v1.2.3", []string{"--config", writeSettings(t, text), "--print-config", "--node-name=n1"}, &out)
	require.NoError(t, err)
	require.True(t, done)
	require.NotContains(t, out.String(), "hunter2")
	require.NotContains(t, out.String(), "$6$")
	require.Contains(t, out.String(), "<redacted>")
	require.Contains(t, out.String(), "# This node's name.")
	require.Contains(t, out.String(), "keepalive: 1m30s")
	require.Contains(t, out.String(), "packet: 3MiB")

	again, err := Load[Core]("edgecore", writeSettings(t, strings.ReplaceAll(out.String(), "<redacted>", secretHash)), nil)
	require.NoError(t, err, "what is printed is a configuration")
	require.Equal(t, "n1", again.Node.Name)
	require.Equal(t, []string{"a", "b"}, again.Auth.Users[0].Nodes)
}

func TestSettingsWithTheirSecretsAreAFile(t *testing.T) {
	text := "auth: {users: [{name: ann, role: viewer, passwordHash: " + secretHash + "}]}\nlink: {password: hunter2}\n"
	var out bytes.Buffer
	_, done, err := Parse[Core]("edgecore", "v1.2.3", []string{"--config", writeSettings(t, text), "--print-config", "--show-secrets"}, &out)
	require.NoError(t, err)
	require.True(t, done)
	again, err := Load[Core]("edgecore", writeSettings(t, out.String()), nil)
	require.NoError(t, err)
	require.Equal(t, secretHash, again.Auth.Users[0].PasswordHash)
	require.Equal(t, "hunter2", again.Link.Password)
	_, _, err = Parse[Core]("edgecore", "v1.2.3", []string{"--show-secrets"}, &out)
	require.ErrorContains(t, err, "--show-secrets is for --print-config")
}

func TestACheckReadsTheFilesThatSettingsName(t *testing.T) {
	for text, why := range map[string]string{
		"": "", "http: {tls: {cert: /nobody/reads/this}}": "", "link: {passwordFile: /nowhere}": "passwordFile: open /nowhere", "link: {tls: {ca: /nowhere}}": "open /nowhere",
		"http: {tls: {listen: \"127.0.0.1:0\", cert: /nowhere, key: /nowhere, clientCA: /nowhere}}": "certificate /nowhere",
		"auth: {users: [{name: ann, role: viewer, passwordHash: $7$x}]}":                            `user "ann": not a password hash`,
	} {
		var out bytes.Buffer
		_, done, err := Parse[Core]("edgecore", "v1.2.3", []string{"--config", writeSettings(t, text), "--check-config"}, &out)
		if why != "" {
			require.ErrorContains(t, err, why)
			continue
		}
		require.NoError(t, err)
		require.True(t, done)
		require.Equal(t, "nothing is wrong with the settings of edgecore\n", out.String())
	}
}

func TestParse(t *testing.T) {
	var out bytes.Buffer
	_, done, err := Parse[Hub]("cloudhub", "v1.2.3", []string{"--help"}, &out)
	require.NoError(t, err)
	require.True(t, done)
	require.True(t, strings.HasPrefix(out.String(), "cloudhub is the hub"), "on the first line")
	require.Contains(t, out.String(), "--version")
	require.Contains(t, out.String(), "--mqtt-tls-client-ca")
	require.Contains(t, out.String(), "Address of plain MQTT")
	require.NotContains(t, out.String(), "passwordHash:")
	require.NotContains(t, out.String(), "edgebus login string", "words of the text are no names of values")

	out.Reset()
	_, done, err = Parse[Core]("edgecore", "v1.2.3", []string{"--version", "--config=/nonexistent"}, &out)
	require.NoError(t, err)
	require.True(t, done, "whatever the settings are")
	require.Equal(t, "edgecore v1.2.3\n", out.String())

	_, _, err = Parse[Hub]("cloudhub", "v1.2.3", []string{"serve"}, &out)
	require.ErrorContains(t, err, `not "serve"`)
	_, _, err = Parse[Hub]("cloudhub", "v1.2.3", []string{"--mqtt-lisen=x"}, &out)
	require.ErrorContains(t, err, "mqtt-lisen")
	_, _, err = Parse[Hub]("cloudhub", "v1.2.3", []string{"--insecure=maybe"}, &out)
	require.ErrorContains(t, err, "insecure")
	hub, done, err := Parse[Hub]("cloudhub", "v1.2.3", []string{"--data-dir=/d"}, &out)
	require.NoError(t, err)
	require.False(t, done)
	require.Equal(t, "/d", hub.Data.Dir)
}

func TestEverySettingIsDocumented(t *testing.T) {
	check := func(program string, add func(string, *pflag.FlagSet) error) {
		flags := pflag.NewFlagSet(program, pflag.ContinueOnError)
		require.NoError(t, add(program, flags))
		flags.VisitAll(func(f *pflag.Flag) {
			require.NotEmpty(t, strings.TrimSpace(strings.Split(f.Usage, "(default")[0]), "%s: --%s has no comment on its page", program, f.Name)
		})
	}
	check("cloudhub", AddFlags[Hub])
	check("edgecore", AddFlags[Core])
	check("mapper-bacnet", AddFlags[Mapper[BACnet]])
	check("mapper-modbus", AddFlags[Mapper[Modbus]])
	check("mapper-mqtt", AddFlags[Mapper[MapperMQTT]])
	check("mapper-http", AddFlags[Mapper[HTTPMapper]])
	check("mapper-opcua", AddFlags[Mapper[OPCUA]])
	check("mapper-dmi", AddFlags[Mapper[DMI]])
	check("mapper-snmp", AddFlags[Mapper[SNMP]])
	check("mapper-virtual", AddFlags[Mapper[Virtual]])
}

func TestSecretFromFile(t *testing.T) {
	secret, err := Identity{PasswordFile: writeSettings(t, "s3cret\n")}.Secret()
	require.NoError(t, err)
	require.Equal(t, "s3cret", secret)
	_, err = Identity{PasswordFile: "/nonexistent"}.Secret()
	require.Error(t, err)
	secret, err = Identity{Password: "p"}.Secret()
	require.NoError(t, err)
	require.Equal(t, "p", secret)
}

func TestSize(t *testing.T) {
	for text, want := range map[string]Size{"0": 0, "512": 512, "64KiB": 64 << 10, "64 MiB": 64 << 20, "1GiB": 1 << 30} {
		var s Size
		require.NoError(t, s.UnmarshalText([]byte(text)))
		require.Equal(t, want, s)
		var again Size
		require.NoError(t, again.UnmarshalText([]byte(s.String())))
		require.Equal(t, s, again)
	}
}

// Room is a part of the memory that there is.
func TestSizesFromTheMemoryThatThereIs(t *testing.T) {
	before := debug.SetMemoryLimit(200 << 20) // GOMEMLIMIT
	defer debug.SetMemoryLimit(before)
	var s Size
	require.NoError(t, s.UnmarshalText([]byte("25%")))
	require.Equal(t, Size(50<<20), s)
	require.Equal(t, "50MiB", s.String())
	for _, bad := range []string{"0%", "101%", "-1%", "x%", "%", "NaN%"} {
		require.ErrorContains(t, s.UnmarshalText([]byte(bad)), "is not a part of the memory, such as 25%")
	}
	for _, program := range []string{"hub", "core"} {
		var l Limits
		if program == "hub" {
			hub, err := Load[Hub]("cloudhub", "/dev/null", nil)
			require.NoError(t, err)
			l = hub.Limits.Limits
		} else {
			core, err := Load[Core]("edgecore", "/dev/null", nil)
			require.NoError(t, err)
			l = core.Limits.Limits
		}
		require.Equal(t, []Size{20 << 20, 50 << 20, 10 << 20, 24 << 20}, []Size{l.Session.Bytes, l.Session.All, l.Session.State, l.Retained.Bytes}, program)
	}
}

func TestLogger(t *testing.T) {
	var out bytes.Buffer
	log := Logger(&out, Log{Level: "warn", Format: "auto"})
	log.Info().Msg("unseen")
	log.Warn().Str("node", "n1").Msg("seen")
	require.Equal(t, 1, strings.Count(out.String(), "\n"))
	require.Contains(t, out.String(), `"node":"n1"`)
	require.Regexp(t, `"time":"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}`, out.String())

	out.Reset()
	log = Logger(&out, Log{Level: "info", Format: "pretty"})
	log.Info().Str("node", "n1").Msg("up")
	require.Regexp(t, `^\d\d:\d\d:\d\d\.\d{3} INF up node=n1`, out.String())
}

func TestSamples(t *testing.T) {
	samples, err := Samples()
	require.NoError(t, err)
	var names []string
	for _, s := range samples {
		names = append(names, s.Kind+"/"+s.Name)
	}
	require.Equal(t, []string{"DeviceModel/dimmable-lamp", "Device/lamp", "DeviceModel/modbus-thermostat", "Device/thermostat"}, names)
}

// FuzzLoad: no file makes Load panic, and what it accepts it prints and reads again.
func FuzzLoad(f *testing.F) {
	f.Add("link: {keepalive: 3s}")
	f.Add("auth: {users: [{name: a}]}")
	f.Add("a: &a [*a]")
	f.Add("? {a: b}\n: c")
	f.Add("data: !!binary x\n<<: {}")
	f.Fuzz(func(t *testing.T, text string) {
		var cfg Core
		l, err := newLoader("edgecore", &cfg, nil)
		require.NoError(t, err)
		found, err := l.scan([]byte(text), "fuzz")
		if err != nil || len(l.errs) > 0 {
			return
		}
		require.NoError(t, l.viper.MergeConfigMap(nestKeys(found)))
		l.assign()
		if len(l.errs) > 0 {
			return
		}
		l.check(&cfg)
		require.NoError(t, PrintSettings(&bytes.Buffer{}, "edgecore", cfg, false))
	})
}

// What one setting allows has to fit what another program does with it.
func TestSettingsThatCannotWorkAreRefused(t *testing.T) {
	discovery := func(devices string) error {
		_, err := Load[Discovery]("edgediscovery", writeSettings(t, "limits: {devices: "+devices+"}"), nil)
		return err
	}
	require.NoError(t, discovery("10000"))
	require.ErrorContains(t, discovery("10001"), "limits.devices: 10001 is more than the 10000 devices of a node and Configuration that the hub takes")
	require.ErrorContains(t, discovery("0"), "limits.devices")
	validity := func(d string) error {
		_, err := Load[Hub]("cloudhub", writeSettings(t, "auth: {authority: {nodeValidity: "+d+"}}"), nil)
		return err
	}
	require.NoError(t, validity("1h"))
	require.ErrorContains(t, validity("59m"), "auth.authority.nodeValidity: 59m0s is less than 1h0m0s")
}

func TestTracesGoToTheURLOfACollector(t *testing.T) {
	of := map[string]func(tracing string) error{
		"cloudhub": func(tracing string) error {
			_, err := Load[Hub]("cloudhub", writeSettings(t, "tracing: "+tracing), nil)
			return err
		},
		"edgecore": func(tracing string) error {
			_, err := Load[Core]("edgecore", writeSettings(t, "tracing: "+tracing), nil)
			return err
		},
		"mapper-modbus": func(tracing string) error {
			_, err := Load[Mapper[Modbus]]("mapper-modbus", writeSettings(t, "tracing: "+tracing), nil)
			return err
		},
	}
	for program, load := range of {
		for _, good := range []string{`{endpoint: ""}`, "{endpoint: http://127.0.0.1:4318, ratio: 0}", "{endpoint: https://collector.example/otlp, ratio: 0.1}"} {
			require.NoError(t, load(good), "%s: %s", program, good)
		}
		for _, bad := range []string{"127.0.0.1:4318", "collector.example", "grpc://127.0.0.1:4317", "http://", "/v1/traces", "http://[::1"} {
			require.ErrorContains(t, load("{endpoint: '"+bad+"'}"), `tracing.endpoint: "`+bad+`": must be the URL of a collector`, program)
		}
		for _, bad := range []string{"-0.1", "1.1", ".nan", ".inf"} {
			require.ErrorContains(t, load("{ratio: "+bad+"}"), "tracing.ratio", "%s: %s", program, bad)
		}
	}
}

func TestAHubsUsersHaveNodes(t *testing.T) {
	of := func(user string) error {
		_, err := Load[Hub]("cloudhub", writeSettings(t, "auth: {users: [{passwordHash: "+secretHash+", "+user+"}]}"), nil)
		return err
	}
	for _, role := range []string{"operator", "viewer"} {
		require.ErrorContains(t, of("name: ann, role: "+role),
			`test.yaml:1: auth.users[0].nodes: is missing: user "ann" would see no node; write nodes: ["*"] for all`)
		require.NoError(t, of(`name: ann, nodes: ["*"], role: `+role))
	}
	require.NoError(t, of("name: n1, role: node"))
	require.ErrorContains(t, of("name: N1, role: node"), `auth.users[0].name: "N1" is no node's name`)
}

// A mapper reads all of every node that it connects to: on the hub there is no such user.
func TestNoMapperOnTheHub(t *testing.T) {
	_, err := Load[Hub]("cloudhub", writeSettings(t, "auth: {users: [{name: m, role: mapper, passwordHash: "+secretHash+"}]}"), nil)
	require.ErrorContains(t, err, `test.yaml:1: auth.users[0].role: user "m": mappers sign in on their node's own broker`)
	_, err = loadCore(t, "auth: {users: [{name: m, role: mapper, passwordHash: "+secretHash+"}]}")
	require.NoError(t, err)
}

// Loopback administers without a password until somebody is configured who does with one.
func TestLoopbackUntilThereAreUsers(t *testing.T) {
	secure := "tls: {listen: ':0', cert: c, key: k, clientCA: ca}"
	for _, c := range []struct {
		text    string
		anybody bool
	}{
		{"", true},
		{"auth: {users: [{name: ann, role: operator, nodes: [x], passwordHash: " + secretHash + "}]}", false},
		{"mqtt: {" + secure + "}", false},
		{"http: {" + secure + "}", false},
		{"mqtt: {tls: {cert: c, key: k}, websocket: {listen: ':0', tls: true}}", false},
		{"auth: {anonymous: loopback, users: [{name: ann, role: operator, nodes: [x], passwordHash: " + secretHash + "}]}", true},
		{"{auth: {anonymous: loopback}, mqtt: {" + secure + "}}", true},
		{"auth: {anonymous: never}", false},
	} {
		hub, err := Load[Hub]("cloudhub", writeSettings(t, c.text), nil)
		require.NoError(t, err, c.text)
		require.Equal(t, c.anybody, hub.Anybody(), c.text)
		core, err := loadCore(t, c.text)
		require.NoError(t, err, c.text)
		require.Equal(t, c.anybody, core.Anybody(), c.text)
	}
	hub, err := Load[Hub]("cloudhub", writeSettings(t, "auth: {users: [{name: ann, role: operator, nodes: [x], passwordHash: "+secretHash+"}]}"), nil)
	require.NoError(t, err)
	_, why := hub.Anonymous()
	require.Equal(t, "auth.users lists ann", why)
	core, err := loadCore(t, "link: {server: mqtts://hub:8883, tls: {ca: ca, cert: c, key: k}}")
	require.NoError(t, err)
	require.True(t, core.Anybody(), "a link with TLS lets nobody in")
}

// A hub that nobody can administer says so when its settings are checked.
func TestHubWithoutAdministratorIsTold(t *testing.T) {
	for text, warned := range map[string]bool{
		"":                         false,
		"auth: {anonymous: never}": true,
		"auth: {users: [{name: ann, role: operator, nodes: ['*'], passwordHash: " + secretHash + "}]}": false,
	} {
		var out strings.Builder
		_, done, err := Parse[Hub]("cloudhub", "v1.2.3", []string{"--config", writeSettings(t, text), "--check-config"}, &out)
		require.NoError(t, err)
		require.True(t, done)
		require.Equal(t, warned, strings.Contains(out.String(), "warning: auth.users: nobody is listed"), text)
	}
}

func TestWhatIsDeniedIsNamedOneWay(t *testing.T) {
	const print = "3F:00:" + "11:22:33:44:55:66:77:88:99:AA:BB:CC:DD:EE:FF:00:11:22:33:44:55:66:77:88:99:AA:BB:CC:DD:EE"
	hub, err := Load[Hub]("cloudhub", writeSettings(t, "auth: {nodes: registered, deny: [{name: n7}, {serial: '00:4A:1F'}, {fingerprint: '"+print+"'}]}"), nil)
	require.NoError(t, err)
	require.Equal(t, "4a1f", NormalizeHex(hub.Auth.Deny[1].Serial))
	for entry, why := range map[string]string{
		"{}": "give one of", "{name: n7, serial: 1}": "give one of", "{name: node/n7}": `write "n7"`,
		"{serial: xyz}": "no hexadecimal number", "{fingerprint: 12}": "64 hexadecimal digits",
	} {
		_, err := Load[Hub]("cloudhub", writeSettings(t, "auth: {deny: ["+entry+"]}"), nil)
		require.ErrorContains(t, err, "auth.deny[0]", entry)
		require.ErrorContains(t, err, why, entry)
	}
	_, err = Load[Hub]("cloudhub", writeSettings(t, "auth: {nodes: some}"), nil)
	require.ErrorContains(t, err, `auth.nodes: "some" is not one of auto, registered, any`)
}

// A check says of what is no error, but should not be, what to do about it.
func TestWeakHashesAndOpenFilesAreTold(t *testing.T) {
	text := "auth: {users: [{name: ann, role: viewer, passwordHash: " + secretHash + "}]}"
	file := writeSettings(t, text)
	check := func() string {
		var out strings.Builder
		_, done, err := Parse[Core]("edgecore", "v1.2.3", []string{"--config", file, "--check-config"}, &out)
		require.NoError(t, err)
		require.True(t, done)
		return out.String()
	}
	require.NoError(t, os.Chmod(file, 0o644))
	require.Contains(t, check(), "warning: "+file+" holds passwords or their hashes and is readable by everybody on this host")
	require.Contains(t, check(), `warning: auth.users[0].passwordHash: user "ann"`)
	require.NoError(t, os.Chmod(file, 0o640))
	require.NotContains(t, check(), "readable")

	strong := strings.Replace(secretHash, "$6$", "$7$210000$", 1)
	require.NoError(t, os.WriteFile(file, []byte(strings.ReplaceAll(text, secretHash, strong)), 0o600))
	require.Equal(t, "nothing is wrong with the settings of edgecore\n", check())

	secret := filepath.Join(t.TempDir(), "password")
	require.NoError(t, os.WriteFile(secret, []byte("secret"), 0o600))
	require.NoError(t, os.Chmod(secret, 0o644))
	require.NoError(t, os.WriteFile(file, []byte("link: {passwordFile: "+secret+"}"), 0o644))
	require.Contains(t, check(), "warning: "+secret+" holds a password and is readable by everybody")
	require.NotContains(t, check(), "hashes")
}

func TestAProviderOfIdentities(t *testing.T) {
	const good = "issuer: https://login.example.org, audience: edgebus, groups: [{group: admins, role: operator, nodes: ['*']}]"
	of := func(text string) error {
		_, err := Load[Hub]("cloudhub", writeSettings(t, "auth: {oidc: {"+text+"}}"), nil)
		return err
	}
	require.NoError(t, of(good))
	require.NoError(t, of("issuer: 'http://127.0.0.1:5556', audience: edgebus, groups: [{group: 'a*', role: controller}]"))
	for text, says := range map[string]string{
		"audience: edgebus": "auth.oidc.issuer: is missing",
		"issuer: 'login'":   `auth.oidc.issuer: "login" is no URL`,
		"issuer: 'http://login.example.org', audience: a":                                                     "over https:// only",
		"issuer: 'https://u:p@login.example.org'":                                                             "auth.oidc.issuer",
		"issuer: 'https://login.example.org'":                                                                 "auth.oidc.audience: is missing",
		good + ", userClaim: ''":                                                                              "auth.oidc.userClaim: is missing",
		good + ", groupsClaim: ''":                                                                            "auth.oidc.groupsClaim: is missing",
		"issuer: 'https://login.example.org', audience: a":                                                    "auth.oidc.groups: is missing",
		"issuer: 'https://login.example.org', audience: a, groups: [{role: viewer, nodes: [a]}]":              `auth.oidc.groups[0].group: ""`,
		"issuer: 'https://login.example.org', audience: a, groups: [{group: g, role: node, nodes: [a]}]":      "auth.oidc.groups[0].role",
		"issuer: 'https://login.example.org', audience: a, groups: [{group: g, role: viewer}]":                "auth.oidc.groups[0].nodes: is missing",
		"issuer: 'https://login.example.org', audience: a, groups: [{group: g, role: viewer, nodes: ['[']}]":  `auth.oidc.groups[0].nodes[0]: "[" is no pattern`,
		"issuer: 'https://login.example.org', audience: a, groups: [{group: g, rolle: viewer, nodes: ['[']}]": "did you mean",
	} {
		require.ErrorContains(t, of(text), says, text)
	}
	hub, err := Load[Hub]("cloudhub", writeSettings(t, "auth: {oidc: {"+good+"}}"), nil)
	require.NoError(t, err)
	require.False(t, hub.Anybody(), "people are users")
	hub, err = Load[Hub]("cloudhub", writeSettings(t, "auth: {anonymous: loopback, oidc: {"+good+"}}"), nil)
	require.NoError(t, err)
	require.True(t, hub.Anybody())
}

func TestRulesOfUsersTopics(t *testing.T) {
	const text = "auth:\n  users:\n    - {name: ann, role: operator, local: ann, publish: [], subscribe: [\"site/%u/#\"]}\n    - {name: bob, role: operator, local: bob}\n"
	core, err := loadCore(t, text)
	require.NoError(t, err)
	require.NotNil(t, core.Auth.Users[0].Publish)
	require.Empty(t, core.Auth.Users[0].Publish)
	require.Nil(t, core.Auth.Users[1].Publish)
	var printed bytes.Buffer
	require.NoError(t, PrintSettings(&printed, "edgecore", core, true))
	again, err := loadCore(t, printed.String())
	require.NoError(t, err)
	require.Equal(t, core, again, "an empty list stays one: without it the user would have more")

	_, err = loadCore(t, "auth:\n  users:\n    - {name: vic, role: viewer, local: vic, publish: [a]}\n    - {name: ann, role: mapper, local: vic, publish: [v1/nodes/n1/x, a%u], subscribe: [a/#/b]}\n")
	for _, text := range []string{
		`auth.users[0].publish: user "vic": the role viewer may publish no topics`, "auth.users[1].publish", "follow from the role", "auth.users[1].subscribe",
		`auth.users[1].local: user "ann": vic signs in as "vic" already`,
	} {
		require.ErrorContains(t, err, text)
	}
	_, err = loadCore(t, "mqtt: {socket: \"\"}\n"+text)
	require.ErrorContains(t, err, "there is no Unix socket to sign in at")
	_, err = Load[Hub]("cloudhub", writeSettings(t, "auth:\n  users:\n    - {name: ann, role: operator, nodes: [\"*\"], local: ann}\n"), nil)
	require.ErrorContains(t, err, "a hub has no Unix socket")
}

func TestWhoSignsInOverTheSocketDoesntEndLoopback(t *testing.T) {
	core, err := loadCore(t, "auth:\n  users:\n    - {name: modbus, role: mapper, local: mapper}\n")
	require.NoError(t, err)
	require.True(t, core.Anybody())
	core.Auth.Users = append(core.Auth.Users, User{Name: "ann", Role: "operator"}) // with a certificate
	require.False(t, core.Anybody())
}

func TestARelativeSocketIsInTheWorkingDirectory(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	want := filepath.Join(dir, "try.sock")
	flags := func(add func(string, *pflag.FlagSet) error, program string) *pflag.FlagSet {
		f := pflag.NewFlagSet(program, pflag.ContinueOnError)
		require.NoError(t, add(program, f))
		require.NoError(t, f.Parse([]string{"--mqtt-socket", "try.sock"}))
		return f
	}
	core, err := Load[Core]("edgecore", "", flags(AddFlags[Core], "edgecore"))
	require.NoError(t, err)
	require.Equal(t, want, core.MQTT.Socket)
	agent, err := Load[Agent]("edgeagent", "", flags(AddFlags[Agent], "edgeagent"))
	require.NoError(t, err)
	require.Equal(t, []string{"unix://" + want}, agent.MQTT.Sockets())
	discovery, err := Load[Discovery]("edgediscovery", "", flags(AddFlags[Discovery], "edgediscovery"))
	require.NoError(t, err)
	require.Equal(t, []string{"unix://" + want}, discovery.MQTT.Sockets())
}

func TestWhereTheSocketAndTheAuditLogAre(t *testing.T) {
	core, err := loadCore(t, "", "--data-dir", "/data/"+strings.Repeat("x", maxSocketPath))
	require.NoError(t, err)
	if !isWritableDir(RuntimeDir) {
		path, why := core.SocketPath()
		require.Empty(t, path)
		require.Contains(t, why, "mqtt.socket")
		core.Data.Dir = "/data"
		path, _ = core.SocketPath()
		require.Equal(t, "/data/mqtt.sock", path)
	}
	require.Empty(t, core.Audit.Path("/data"))
	hub, err := Load[Hub]("cloudhub", "", nil)
	require.NoError(t, err)
	require.Equal(t, "/data/audit.log", hub.Audit.Path("/data"))
	_, err = loadCore(t, "mqtt: {socket: /"+strings.Repeat("x", maxSocketPath)+"}\naudit: {size: 1KiB}")
	require.ErrorContains(t, err, "mqtt.socket: the path of a Unix socket has 107 bytes at most")
	require.ErrorContains(t, err, "audit.size")
}

func TestAUserIsAddedToTheFile(t *testing.T) {
	u := User{Name: "modbus", Role: "mapper", Local: "mapper", Devices: []string{"a"}}
	for _, text := range []string{"", "# only a comment\n", "auth:\n", "auth:\n  users: []\n", "# first\nauth:\n  anonymous: never # why\n  users:\n    - {name: ann, role: operator, local: ann} # hers\n"} {
		file := writeSettings(t, text)
		require.NoError(t, AddUser[Core]("edgecore", file, u), text)
		core, err := Load[Core]("edgecore", file, nil)
		require.NoError(t, err)
		require.Equal(t, u, core.Auth.Users[len(core.Auth.Users)-1])
		after, err := os.ReadFile(file)
		require.NoError(t, err)
		require.Equal(t, strings.Count(text, "#"), strings.Count(string(after), "#"), "comments stay")
		require.ErrorContains(t, AddUser[Core]("edgecore", file, u), `"modbus" is listed already`)
		require.ErrorContains(t, AddUser[Core]("edgecore", file, User{Name: "x", Role: "mapper"}), "could not sign in")
		again, err := os.ReadFile(file)
		require.NoError(t, err)
		require.Equal(t, string(after), string(again), "what is refused changes nothing")
	}
	require.ErrorContains(t, AddUser[Core]("edgecore", writeSettings(t, "auth:\n  users: ann\n"), u), "is no list")
}

func TestAUserIsRemovedFromTheFile(t *testing.T) {
	const before, ann, after = "# first\nauth:\n  anonymous: never # why\n  users:\n", "    # hers\n    - {name: ann, role: viewer, nodes: [\"*\"], passwordHash: HASH} # still hers\n", "    - {name: n1, role: node, passwordHash: HASH} # its\n"
	text := strings.ReplaceAll(before+ann+after, "HASH", "'"+password.NewHash([]byte("x"))+"'")
	file := writeSettings(t, text)
	require.NoError(t, RemoveUser[Hub]("cloudhub", file, "ann"))
	got, err := os.ReadFile(file)
	require.NoError(t, err)
	require.NotContains(t, string(got), "hers")
	for _, comment := range []string{"# first", "# why", "# its"} {
		require.Contains(t, string(got), comment)
	}
	require.ErrorContains(t, RemoveUser[Hub]("cloudhub", file, "ann"), `auth.users: "ann" is not listed`)
	require.NoError(t, RemoveUser[Hub]("cloudhub", file, "n1"))
	hub, err := Load[Hub]("cloudhub", file, nil)
	require.NoError(t, err)
	require.Empty(t, hub.Auth.Users)
	require.ErrorContains(t, AddUser[Hub]("cloudhub", file, User{Name: "ann", Role: "viewer"}), file+":")

	shared := writeSettings(t, "auth:\n  users:\n    - &ann {name: ann, role: viewer, nodes: ['*'], passwordHash: x}\n  deny:\n    - *ann\n")
	require.ErrorContains(t, RemoveUser[Hub]("cloudhub", shared, "ann"), "the alias *ann stands for line 3")
}

// The commands of an OS are all set or none, and those of compose have a program.
func TestAgentOSAndHost(t *testing.T) {
	_, err := Load[Agent]("edgeagent", writeSettings(t, `
host: {podman: rel, docker: /d, compose: [[x], []]}
os: {status: [s], discard: [d]}
hooks: {afterUpdating: [{run: x, timeout: soon, if: [{path: etc, op: [made]}]}]}
upgrade: {sources: ["http://x/"], keys: [k]}
`), nil)
	for _, want := range []string{
		`host.podman: "rel" is neither auto nor an absolute path`, "host.compose[1]: has no program", "os.switch: is missing: give status, switch, upgrade, rollback and reboot, or none of them",
		"os.discard: is used only with a program, with os.download and with the other commands of os",
		`hooks.afterUpdating[0].run: "x" is not listed in commands`, `hooks.afterUpdating[0].timeout: "soon" is not a duration`,
		`hooks.afterUpdating[0].if[0].path: "etc" is not an absolute path`, `hooks.afterUpdating[0].if[0].op[0]: "made" is not one of created, updated, removed`,
		`upgrade.sources[0]: "http://x/" is not the beginning of an address`, `upgrade.keys[0]: "k" is no public key`,
	} {
		require.ErrorContains(t, err, want)
	}
	_, err = Load[Agent]("edgeagent", writeSettings(t, "host: {systemd: auto, podman: auto, docker: auto}"), nil)
	require.NoError(t, err)
}

// A variable begins with the name of the program that it is for: edgebus' address of the hub, which README sets, is no mapper's broker.
func TestAProgramsVariablesMeanNoOthersSettings(t *testing.T) {
	usual, err := Load[Mapper[Virtual]]("mapper-virtual", "", nil)
	require.NoError(t, err)
	for _, name := range []string{"EDGEBUS_SERVER", "MAPPER_MODBUS_SERVER", "EDGECORE_SERVER", "SERVER"} {
		t.Setenv(name, "mqtt://other:1883")
	}
	cfg, err := Load[Mapper[Virtual]]("mapper-virtual", "", nil)
	require.NoError(t, err)
	require.Equal(t, usual.Server, cfg.Server)
	t.Setenv("MAPPER_VIRTUAL_SERVER", "mqtt://node:1883")
	cfg, err = Load[Mapper[Virtual]]("mapper-virtual", "", nil)
	require.NoError(t, err)
	require.Equal(t, "mqtt://node:1883", cfg.Server)

	clean := WithoutSettings([]string{"CLOUDHUB_DATA_DIR=x", "MAPPER_KNX_NAME=x", "EDGEBUS_SERVER=x", "PATH=x", "EDGECORE=x"})
	require.Equal(t, []string{"PATH=x", "EDGECORE=x"}, clean)
}
