// SPDX-License-Identifier: Apache-2.0

package enroll

import (
	"crypto/ecdsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/topics/resource"
)

// testCA is an authority, or somebody who would like to be one.
type testCA struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newTestCA(t *testing.T) testCA {
	t.Helper()
	key, _, err := newKey()
	require.NoError(t, err)
	template := certificateTemplate(time.Now().Add(-time.Hour), 24*time.Hour)
	template.IsCA, template.BasicConstraintsValid = true, true
	return testCA{sign(t, template, template, key, key), key}
}

func sign(t *testing.T, template, parent *x509.Certificate, key, by *ecdsa.PrivateKey) *x509.Certificate {
	t.Helper()
	der, err := x509.CreateCertificate(nil, template, parent, key.Public(), by)
	require.NoError(t, err)
	cert, err := x509.ParseCertificate(der)
	require.NoError(t, err)
	return cert
}

// issue is the certificate of the node n1 for a key, in PEM.
func (a testCA) issue(t *testing.T, key *ecdsa.PrivateKey, change func(*x509.Certificate)) string {
	t.Helper()
	template := certificateTemplate(time.Now().Add(-time.Hour), time.Hour)
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	if change != nil {
		change(template)
	}
	return string(encodeCertificate(sign(t, template, a.cert, key, a.key)))
}

func encodeCertificate(cert *x509.Certificate) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.Raw})
}

// What a node asks for, by what it was told: the token's node and authority, the options' and the settings'.
func TestWhatIsAskedOfTheHub(t *testing.T) {
	pin := strings.Repeat("ab", sha256.Size)
	token := func(node string) string {
		return resource.JoinToken{Authority: [sha256.Size]byte{1}, Secret: [16]byte{2}, Node: node}.String()
	}
	for name, c := range map[string]struct {
		o         JoinOptions
		hub, node string
		pin       string
		err       string
	}{
		"a host":                            {o: JoinOptions{Hub: "hub", Default: "n1"}, hub: "hub:8883", node: "n1"},
		"a host and a port":                 {o: JoinOptions{Hub: "hub:9883", Default: "n1"}, hub: "hub:9883", node: "n1"},
		"an URL":                            {o: JoinOptions{Hub: "mqtts://hub", Default: "n1"}, hub: "hub:8883", node: "n1"},
		"IPv6":                              {o: JoinOptions{Hub: "[2001:db8::1]", Default: "n1"}, hub: "[2001:db8::1]:8883", node: "n1"},
		"another scheme":                    {o: JoinOptions{Hub: "https://hub", Default: "n1"}, err: "no hub's address"},
		"a name":                            {o: JoinOptions{Hub: "hub", Default: "n1", Node: "n2"}, hub: "hub:8883", node: "n2"},
		"no name at all":                    {o: JoinOptions{Hub: "hub"}, err: "give one with --name"},
		"a name that is none":               {o: JoinOptions{Hub: "hub", Node: "a/b"}, err: `"a/b" is no node's name`},
		"a fingerprint":                     {o: JoinOptions{Hub: "hub", Default: "n1", Pin: "sha256:" + pin}, hub: "hub:8883", node: "n1", pin: pin},
		"no fingerprint":                    {o: JoinOptions{Hub: "hub", Default: "n1", Pin: "abc"}, err: "--ca-hash: "},
		"a token":                           {o: JoinOptions{Hub: "hub", Default: "n1", Token: token("")}, hub: "hub:8883", node: "n1", pin: "01" + strings.Repeat("00", 31)},
		"a token for a node":                {o: JoinOptions{Hub: "hub", Default: "n1", Token: token("n3")}, hub: "hub:8883", node: "n3", pin: "01" + strings.Repeat("00", 31)},
		"a token for another node":          {o: JoinOptions{Hub: "hub", Node: "n1", Token: token("n3")}, err: "the token is for the node n3, not for n1"},
		"a token of another hub":            {o: JoinOptions{Hub: "hub", Default: "n1", Pin: pin, Token: token("")}, err: "of different hubs"},
		"a token that was not copied whole": {o: JoinOptions{Hub: "hub", Default: "n1", Token: token("n3")[:40]}, err: "the token is damaged"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := c.o.parse()
			if c.err != "" {
				require.ErrorContains(t, err, c.err)
				return
			}
			require.NoError(t, err)
			require.Equal(t, []string{c.hub, c.node, c.pin}, []string{c.o.Hub, c.o.Node, hex.EncodeToString(got)})
		})
	}
}

// An answer of the hub is kept only if it is whole, and for this key and this node.
func TestWhichAnswersOfTheHubAreKept(t *testing.T) {
	authority, other := newTestCA(t), newTestCA(t)
	key, text, err := newKey()
	require.NoError(t, err)
	otherKey, _, err := newKey()
	require.NoError(t, err)
	roots := string(encodeCertificate(authority.cert))
	for name, c := range map[string]struct{ certificate, roots, err string }{
		"whole":                   {certificate: authority.issue(t, key, nil), roots: roots},
		"no certificate":          {roots: roots, err: "holds no certificate"},
		"no authority":            {certificate: authority.issue(t, key, nil), err: "holds no authority"},
		"for another key":         {certificate: authority.issue(t, otherKey, nil), roots: roots, err: "for another key"},
		"for another node":        {certificate: authority.issue(t, key, func(c *x509.Certificate) { c.Subject.CommonName = "n2" }), roots: roots, err: `for "n2", and this node is n1`},
		"signed by somebody else": {certificate: other.issue(t, key, nil), roots: roots, err: "not signed by the authority in it"},
		"for no client":           {certificate: authority.issue(t, key, func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth} }), roots: roots, err: "not signed by the authority in it"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := checkAnswer(resource.JoinAnswer{Certificate: c.certificate, Authorities: c.roots}, "n1", key, text)
			if c.err != "" {
				require.ErrorContains(t, err, c.err)
				return
			}
			require.NoError(t, err)
			i := Identity{Dir: t.TempDir()}
			require.NoError(t, got.write(i))
			cert, err := i.read()
			require.NoError(t, err)
			require.True(t, cert.Equal(got.cert))
		})
	}
}

// A node asks again unless it has a certificate that is valid, for its name and, if it was given a token, by this token.
func TestWhenANodeHasJoinedAlready(t *testing.T) {
	now := time.Now()
	i := newTestIdentity(t, now, time.Hour)
	used := JoinOptions{Token: "one"}
	require.NoError(t, os.WriteFile(filepath.Join(i.Dir, usedTokenName), []byte(used.tokenHash()), 0o600))
	for name, c := range map[string]struct {
		dir, node, token string
		after            time.Duration
		yes              bool
	}{
		"without a token":        {dir: i.Dir, node: "n1", yes: true},
		"with the same token":    {dir: i.Dir, node: "n1", token: "one", yes: true},
		"with another token":     {dir: i.Dir, node: "n1", token: "two"},
		"under another name":     {dir: i.Dir, node: "n2"},
		"when it has expired":    {dir: i.Dir, node: "n1", after: 2 * time.Hour},
		"without a certificate":  {dir: t.TempDir(), node: "n1"},
		"with a token and a key": {dir: t.TempDir(), node: "n1", token: "one"},
	} {
		t.Run(name, func(t *testing.T) {
			o := JoinOptions{Node: c.node, Token: c.token, Now: func() time.Time { return now.Add(c.after) }}
			_, yes := o.joinedBefore(Identity{Dir: c.dir})
			require.Equal(t, c.yes, yes)
		})
	}
}

// Only a notice that the node's own authority has signed, for this node and its present certificate, ends its identity.
func TestWhichNoticesOfDecommissioningAreBelieved(t *testing.T) {
	authority, other := newTestCA(t), newTestCA(t)
	roots := filepath.Join(t.TempDir(), rootsName)
	require.NoError(t, os.WriteFile(roots, encodeCertificate(authority.cert), 0o600))
	own, err := newTestIdentity(t, time.Now(), time.Hour).read()
	require.NoError(t, err)
	notice := func(by testCA, node string, cert *x509.Certificate) string {
		text, err := resource.Decommissioning{Node: node, Certificate: resource.Fingerprint(cert.Raw)}.Sign(by.key)
		require.NoError(t, err)
		return text
	}
	for name, c := range map[string]struct {
		notice string
		own    *x509.Certificate
		err    string
	}{
		"its own":                    {notice: notice(authority, "n1", own), own: own},
		"of somebody else":           {notice: notice(other, "n1", own), own: own, err: "signed by none of the authorities"},
		"for another node":           {notice: notice(authority, "n2", own), own: own, err: `for "n2", and this node is n1`},
		"for its certificate before": {notice: notice(authority, "n1", other.cert), own: own, err: "for another certificate"},
		"without a certificate":      {notice: notice(authority, "n1", own), err: "for another certificate"},
		"that is none":               {notice: "?", own: own, err: "malformed"},
	} {
		t.Run(name, func(t *testing.T) {
			why, err := VerifyDecommission(c.notice, roots, "n1", c.own)
			if name == "its own" {
				require.NoError(t, err)
				require.Contains(t, why, "n1 was decommissioned")
				return
			}
			require.ErrorContains(t, err, c.err)
			require.Empty(t, why)
		})
	}
}

func TestLabelsOfANode(t *testing.T) {
	info := &resource.SystemInfo{Architecture: "arm64"}
	for name, c := range map[string]struct {
		given, from      []string
		labels, followed map[string]string
	}{
		"none":                       {followed: map[string]string{}},
		"given":                      {given: []string{"hall=2"}, labels: map[string]string{"hall": "2"}, followed: map[string]string{}},
		"of the system":              {from: []string{"arch=architecture"}, labels: map[string]string{"arch": "arm64"}, followed: map[string]string{"arch": "architecture"}},
		"of what the system lacks":   {from: []string{"os=osImage"}, followed: map[string]string{"os": "osImage"}},
		"given, and so not followed": {given: []string{"arch=mine"}, from: []string{"arch=architecture"}, labels: map[string]string{"arch": "mine"}, followed: map[string]string{}},
		"the beginning of another's": {given: []string{"architecture=x"}, from: []string{"arch=architecture"}, labels: map[string]string{"arch": "arm64", "architecture": "x"}, followed: map[string]string{"arch": "architecture"}},
	} {
		t.Run(name, func(t *testing.T) {
			require.Equal(t, c.labels, Labels(c.given, c.from, info))
			require.Equal(t, c.followed, FollowedLabels(c.given, c.from))
		})
	}
}

// A certificate is renewed by the core only if it is where join has put it.
func TestWhichCertificatesAreRenewed(t *testing.T) {
	for file, owned := range map[string]bool{
		"/data/identity/abc/node.pem": true, "/data/identity/../other.pem": false, "/etc/edgebus/node.pem": false, "/data/identity.decommissioned/abc/node.pem": false, "": false,
	} {
		require.Equal(t, owned, OwnsCertificate("/data", file), file)
	}
}

// The wait after failures grows, and leaves many attempts before a certificate ends, however long that lives.
func TestTheWaitBeforeARenewalIsTriedAgain(t *testing.T) {
	for life, c := range map[time.Duration]struct{ first, last time.Duration }{
		time.Minute:         {time.Second, 3 * time.Second},
		24 * time.Hour:      {time.Minute, time.Hour},
		90 * 24 * time.Hour: {time.Minute, time.Hour},
	} {
		require.LessOrEqual(t, renewPause(life, 1), c.first, life)
		require.Positive(t, renewPause(life, 1), life)
		require.LessOrEqual(t, renewPause(life, 100), c.last, life)
		require.Greater(t, renewPause(life, 100), renewPause(life, 1), life)
	}
}
