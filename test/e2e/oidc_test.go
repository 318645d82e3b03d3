// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bufio"
	"context"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/test/harness"
	"github.com/edgebus/edgebus/test/stand"
)

const oidcGroups = `
    groups:
      - {group: plant-admins, role: operator, nodes: ["*"]}
      - {group: every*, role: viewer, nodes: ["*"]}
`

// oidcStand is a hub with TLS, an OpenID Connect provider, and people with edgebus and kubectl.
type oidcStand struct {
	*stand.Stand
	t      *testing.T
	tools  string
	issuer string
}

func withProvider(t *testing.T) *oidcStand {
	t.Helper()
	s := &oidcStand{Stand: stand.New(t, 1), t: t}
	s.tools = filepath.Join(filepath.Dir(s.Bin), ".tools")
	stand.RequirePrograms(t, filepath.Join(s.tools, "oidc-provider"))
	s.run("bash", filepath.Join(filepath.Dir(s.Bin), "scripts", "certs.sh"), "ca", "pki")
	s.run("bash", filepath.Join(filepath.Dir(s.Bin), "scripts", "certs.sh"), "server", "pki", "hub", "127.0.0.1")
	require.NoError(t, os.WriteFile(s.file("secret"), []byte("secret\n"), 0o600))
	s.issuer = s.provider("provider", "127.0.0.1:0")
	return s
}

func (s *oidcStand) file(name string) string { return filepath.Join(s.Dir, name) }

// provider starts a provider, and returns its issuer.
func (s *oidcStand) provider(name, address string) string {
	s.t.Helper()
	file := s.file(name + ".issuer")
	require.NoError(s.t, s.Run(s.t.Context(), name, []string{filepath.Join(s.tools, "oidc-provider"), "--listen", address, "--issuer-file", file}, ""))
	var issuer string
	s.Eventually(stand.WaitTimeout, func() error {
		text, err := os.ReadFile(file)
		if err == nil {
			issuer = string(text)
			_, err = harness.Call(s.t.Context(), http.MethodGet, issuer+"/.well-known/openid-configuration", nil)
		}
		return err
	})
	return issuer
}

// hub starts the hub with an audience.
func (s *oidcStand) hub(audience string) {
	s.t.Helper()
	require.NoError(s.t, os.WriteFile(s.file("hub.yaml"), []byte("auth:\n  oidc:\n    issuer: "+s.issuer+"\n    audience: "+audience+"\n    userClaim: preferred_username"+oidcGroups+`
  users:
    - {name: boss, role: operator, nodes: ["*"], passwordHash: $6$MDEyMzQ1Njc4OWFi$qEXipeLbgxRlwd06QHfY5WITkUZg0jLg9SZbXzq3ifXjfj+v3GbJGrSfC5PAg3UNCS+UFfbhUIZX4bmIAs330w==}
`), 0o600))
	require.NoError(s.t, s.Start(s.t.Context(), "hub", "--http-tls-listen", s.WS, "--http-tls-cert", s.file("pki/hub.pem"), "--http-tls-key", s.file("pki/hub.key"),
		"--mqtt-tls-listen", s.TLS, "--mqtt-tls-cert", s.file("pki/hub.pem"), "--mqtt-tls-key", s.file("pki/hub.key")))
}

// command is a program with the people's kubeconfig.
func (s *oidcStand) command(ctx context.Context, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, name, args...)
	if name == "edgebus" {
		cmd.Path, cmd.Err = filepath.Join(s.Bin, name), nil
	}
	cmd.Dir, cmd.Env = s.Dir, append(os.Environ(), "HOME="+s.Dir, "KUBECONFIG="+s.file("config"))
	return cmd
}

func (s *oidcStand) try(name string, args ...string) (string, error) {
	out, err := s.command(s.t.Context(), name, args...).CombinedOutput()
	return string(out), err
}

func (s *oidcStand) run(name string, args ...string) string {
	s.t.Helper()
	out, err := s.try(name, args...)
	require.NoError(s.t, err, "%s %s: %s", name, strings.Join(args, " "), out)
	return out
}

// refused wants a command to fail, and to say why.
func (s *oidcStand) refused(why, name string, args ...string) {
	s.t.Helper()
	out, err := s.try(name, args...)
	require.Error(s.t, err, "%s %s: %s", name, strings.Join(args, " "), out)
	require.Regexp(s.t, why, out)
}

func (s *oidcStand) context(name string) {
	s.t.Helper()
	s.run("edgebus", "context", "set", name, "--server", "https://"+s.WS, "--mqtt", "mqtts://"+s.TLS, "--ca", "pki/ca.pem", "--use")
}

var userCode = regexp.MustCompile(`enter the code (\S+)`)

// login runs edgebus login, and does in a browser's place what it says, as somebody. The action is allowed or denied.
func (s *oidcStand) login(person, action string, args ...string) (string, error) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), time.Minute)
	defer cancel()
	cmd := s.command(ctx, "edgebus", append([]string{"login", "--context", person, "--client-secret-file", "secret"}, args...)...)
	r, w, err := os.Pipe()
	require.NoError(s.t, err)
	cmd.Stdout, cmd.Stderr = w, w
	require.NoError(s.t, cmd.Start())
	require.NoError(s.t, w.Close())
	defer r.Close()
	var out strings.Builder
	for lines := bufio.NewScanner(r); lines.Scan(); {
		out.WriteString(lines.Text() + "\n")
		if found := userCode.FindStringSubmatch(lines.Text()); found != nil {
			s.approve(ctx, found[1], person, action)
		}
	}
	err = cmd.Wait()
	return out.String(), err
}

func (s *oidcStand) approve(ctx context.Context, code, person, action string) {
	s.t.Helper()
	jar, err := cookiejar.New(nil)
	require.NoError(s.t, err)
	browser := &http.Client{Jar: jar, Timeout: stand.WaitTimeout}
	s.post(ctx, browser, s.issuer+"/device/login", url.Values{"user_code": {code}, "username": {person}, "password": {"verysecure"}})
	s.post(ctx, browser, s.issuer+"/device/confirm", url.Values{"action": {action}})
}

func (s *oidcStand) post(ctx context.Context, browser *http.Client, at string, form url.Values) {
	s.t.Helper()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, at, strings.NewReader(form.Encode()))
	require.NoError(s.t, err)
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	answer, err := browser.Do(r)
	require.NoError(s.t, err)
	require.NoError(s.t, answer.Body.Close())
	require.Equal(s.t, http.StatusOK, answer.StatusCode)
}

// token is what a person's context holds.
func (s *oidcStand) token(person string) string {
	return strings.TrimSpace(s.run(filepath.Join(s.tools, "kubectl"), "config", "view", "--raw", "-o", `jsonpath={.users[?(@.name=="`+person+`")].user.token}`))
}

func (s *oidcStand) mosquitto(password, user, topic, value string) error {
	_, port, _ := strings.Cut(s.TLS, ":")
	_, err := s.try("mosquitto_pub", "-h", "127.0.0.1", "-p", port, "--cafile", "pki/ca.pem", "-V", "311", "-u", user, "-P", password, "-q", "1", "-t", topic, "-m", value)
	return err
}

const wantedLamp = "v1/nodes/n1/devices/lamp/desired/power"

func TestPeopleSignInAtAProvider(t *testing.T) {
	t.Parallel()
	s := withProvider(t)
	s.hub("edgebus")
	kubectl := filepath.Join(s.tools, "kubectl")

	s.refused("there is no context to keep the token in", "edgebus", "login")
	s.context("ann")
	s.refused("not signed in", "edgebus", "get", "devices")
	out, err := s.login("ann", "denied")
	require.Error(t, err)
	require.Contains(t, out, "the login was denied")
	out, err = s.login("ann", "allowed", "--client-id", "nobody")
	require.Error(t, err)
	require.Contains(t, out, "the provider "+s.issuer+" refused: client not found")
	out, err = s.login("ann", "allowed")
	require.NoError(t, err, out)
	require.Regexp(t, `signed in for the context ann as ann \(operator of the nodes \*\), until 20`, out)
	s.context("bob")
	out, err = s.login("bob", "allowed")
	require.NoError(t, err, out)
	require.Contains(t, out, "bob (viewer of the nodes *)")

	// ann writes, over all three.
	model := s.file("model.yaml")
	require.NoError(t, os.WriteFile(model, []byte(stand.ModelManifest("lamp", "{name: power, accessMode: ReadWrite, type: string}")+stand.DeviceManifests("lamp", "by-hand", "lamp")), 0o600))
	s.run(kubectl, "--context", "ann", "apply", "-f", model)
	s.run("edgebus", "twin", "set", "lamp", "power=ON", "--context", "ann")
	s.run("edgebus", "pub", wantedLamp, "OFF", "--context", "ann")
	require.NoError(t, s.mosquitto(s.token("ann"), "ann", wantedLamp, "ON"))
	require.Contains(t, s.run(kubectl, "--context", "ann", "auth", "whoami"), "ann")

	// bob reads.
	require.Contains(t, s.run(kubectl, "--context", "bob", "get", "devices"), "lamp")
	require.Contains(t, s.run("edgebus", "sub", wantedLamp, "--count", "1", "--context", "bob"), wantedLamp+" ON")
	s.refused(`bob is a viewer of the nodes \* \(auth.oidc.groups\)`, kubectl, "--context", "bob", "label", "device", "lamp", "a=b")
	s.refused(`viewer`, "edgebus", "twin", "set", "lamp", "power=ON", "--context", "bob")
	s.refused(`edgebus`, "edgebus", "pub", wantedLamp, "x", "--context", "bob")
	require.NoError(t, s.mosquitto(s.token("bob"), "bob", wantedLamp, "x"), "MQTT 3.1.1 has no refusal of a message")
	require.Contains(t, s.run("edgebus", "sub", wantedLamp, "--count", "1", "--context", "bob"), wantedLamp+" ON")
	require.Error(t, s.mosquitto(s.token("ann"), "bob", wantedLamp, "x"), "the token is another's")

	// A token that was changed, one of another issuer, and one that is no token.
	good := s.token("ann")
	other := s.provider("other", "127.0.0.1:0")
	mine := s.issuer
	s.issuer = other
	s.context("mallory")
	out, err = s.loginAs("ann", "mallory", "--issuer", other, "--client-id", "edgebus")
	s.issuer = mine
	require.Error(t, err)
	require.Contains(t, out, "the provider accepted the login, and the hub did not: token: it is of the issuer \""+other)
	for _, wrong := range []string{good[:len(good)-8] + "AAAAAAAA", "eyJ.eyJ.x", "nonsense"} {
		require.NoError(t, os.WriteFile(s.file("wrong"), []byte(wrong), 0o600))
		s.refused("token", "edgebus", "get", "devices", "--context", "ann", "--token-file", "wrong")
		require.Error(t, s.mosquitto(wrong, "ann", wantedLamp, "x"))
	}

	// The provider is away: who has a token that was verified stays, and other users come in.
	require.NoError(t, s.Crash("provider"))
	s.run(kubectl, "--context", "ann", "get", "devices")
	s.refused("no answer from the OpenID Connect provider", "edgebus", "login", "--context", "ann", "--client-secret-file", "secret")
	require.NoError(t, s.Term("hub"))
	require.NoError(t, s.Start(t.Context(), "hub"))
	s.refused("can't be asked", "edgebus", "get", "devices", "--context", "ann")
	require.NoError(t, s.mosquitto("secret", "boss", wantedLamp, "OFF"))
}

func TestATokenForAnotherClientIsRefused(t *testing.T) {
	t.Parallel()
	s := withProvider(t)
	s.hub("another-client")
	s.context("ann")
	out, err := s.login("ann", "allowed", "--client-id", "edgebus")
	require.Error(t, err)
	require.Contains(t, out, `expected audience "another-client" got ["edgebus"]`)
	text, err := os.ReadFile(s.file("config"))
	require.NoError(t, err)
	require.NotContains(t, string(text), "token", "what the hub refuses isn't kept")
}

// loginAs is login as a person for a context of another name.
func (s *oidcStand) loginAs(person, context string, args ...string) (string, error) {
	return s.login(person, "allowed", append(args, "--context", context)...)
}
