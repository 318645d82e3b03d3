package configs

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The page for people is made of the same text as the defaults: it can't say
// anything else. GOLDEN=write writes it.
func TestConfigurationPage(t *testing.T) {
	const name = "../docs/configuration.md"
	want := configurationPage(t)
	if os.Getenv("GOLDEN") == "write" {
		require.NoError(t, os.WriteFile(name, []byte(want), 0o644))
	}
	got, err := os.ReadFile(name)
	require.NoError(t, err)
	require.Equal(t, want, string(got), "run make golden")
}

func configurationPage(t *testing.T) string {
	t.Helper()
	var page strings.Builder
	page.WriteString(`# Configuration

<!-- Made from the defaults in configs/ by make golden. -->

Every program runs without any configuration, on the loopback interface. A setting ` + "`link.retry.timeout`" + ` of edgecore can be given

1. by a flag: ` + "`--link-retry-timeout 5s`" + `,
2. by the environment: ` + "`EDGECORE_LINK_RETRY_TIMEOUT=5s`" + `, the flag's name in upper case after the program's, so that no program's
   variable means another's setting; an empty variable counts as none,
3. by a credential of systemd (` + "`$CREDENTIALS_DIRECTORY`" + `) that has the setting's name: ` + "`LoadCredential=link.password:/etc/credstore/core`" + ` in
   the service's unit. Of a setting that names a file (` + "`link.tls.key`" + `) it is the file, of all others it holds the value,
4. by a YAML file: the one that ` + "`--config`" + ` names, or else the program's own in ` + "`" + SystemDir + "`" + `, if it is there. For other users than
   root a file in ` + "`$XDG_CONFIG_HOME/edgebus`" + ` (` + "`~/.config/edgebus`" + `) goes before that one,

and the first of these that gives one is taken. Passwords, and lists with their hashes (` + "`auth.users`" + `), have no flag. A list is written in YAML
in the environment and as a flag, ` + "`--bridge '[{direction: up, filter: site/#}]'`" + `; a list of texts also with commas, or with a flag for each:
` + "`--mqtt-websocket-origins https://a.example,https://b.example`" + `.
A key that isn't known, or a value that doesn't fit, is an error that names the key and the place where it stands:

` + "```" + `
core.yaml:3: link.keepalve: unknown key; did you mean link.keepalive?
` + "```" + `

` + "`--print-config`" + ` prints the settings in force, in the form of this page, without passwords.
`)
	for _, program := range []string{"cloudhub", "edgecore", "edgeagent", "edgediscovery", "mapper-modbus", "mapper-mqtt", "mapper-virtual"} {
		text, err := readPage(program)
		require.NoError(t, err)
		page.WriteString("\n## " + program + "\n\n`" + SystemDir + "/" + pageName(program) + ".yaml`\n\n```yaml\n" + string(text) + "```\n")
	}
	return page.String()
}
