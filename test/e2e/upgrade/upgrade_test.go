// SPDX-License-Identifier: Apache-2.0

package upgrade

import (
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/edge/store"
	"github.com/edgebus/edgebus/test/disk"
	"github.com/edgebus/edgebus/test/harness"
	"github.com/edgebus/edgebus/test/stand"
	"github.com/edgebus/edgebus/topics/resource"
)

// A good version is committed, and the one before is kept.
func TestAGoodVersionIsCommitted(t *testing.T) {
	t.Parallel()
	n := newTestNode(t, time.Minute)
	r := n.order(n.bundle("v1.1.0", map[string][]byte{"edgecore": workingCore(t, "v1.1.0")}))
	require.Equal(t, resource.UpgradeSuccess, r.Result, "%+v", r)
	require.Equal(t, "v1.0.0 v1.1.0 v1.1.0", r.From+" "+r.To+" "+r.Version)
	n.whole("v1.1.0")
	require.FileExists(t, n.programs()+"/versions/v1.0.0/edgecore")
}

// The hub orders an upgrade, the agent gets it and the programs from the core that is replaced, and the hub shows how it went.
func TestAnUpgradeGoesThroughAllPrograms(t *testing.T) {
	t.Parallel()
	n := newTestNode(t, time.Minute, func(n *testNode) { n.chain = true })
	n.publish(n.bundle("v1.2.0", map[string][]byte{"edgecore": brokenCore(t, "v1.2.0", "exits", 0)}), "bad")
	a := n.attempt("bad")
	require.Equal(t, resource.UpgradeRolledBack, a.OperationStatus, "%+v", a)
	require.Contains(t, a.Reason, "Exited: version v1.2.0 does not run: it ended: exit status 3")
	n.runs("v1.0.0")
	n.publish(n.bundle("v1.1.0", map[string][]byte{"edgecore": workingCore(t, "v1.1.0")}), "good")
	a = n.attempt("good")
	require.Equal(t, resource.UpgradeSuccess+" v1.0.0 v1.1.0", a.OperationStatus+" "+a.FromVersion+" "+a.ToVersion, "%+v", a)
	n.whole("v1.1.0")
}

// A version that connects, passes its trial, and then drops the hub for ever is put back by the agent alone. The Upgrade says first that the node is away since
// its success, and then that it has rolled back, and why.
func TestAVersionThatDropsTheHubAfterItsTrialIsPutBack(t *testing.T) {
	t.Parallel()
	n := newTestNode(t, time.Minute, func(n *testNode) { n.chain, n.env = true, []string{"EDGEAGENT_UPGRADE_PROBATION_AWAY=20s"} })
	n.publish(n.bundle("v1.1.0", map[string][]byte{"edgecore": brokenCore(t, "v1.1.0", "drops the hub when it is told to", 0)}), "drops")
	require.Equal(t, resource.UpgradeSuccess, n.attempt("drops").OperationStatus)
	n.write(filepath.Join(n.core(), "drop"), nil)
	n.Eventually(6*stand.WaitTimeout, func() error {
		out, err := exec.Command(filepath.Join(n.Bin, "edgebus"), "upgrade", "status", "drops", "--server", "http://"+n.Hub.HTTP).CombinedOutput()
		if err != nil || !strings.Contains(string(out), "1 away since soon after the upgrade") || !strings.Contains(string(out), "the node is away since") {
			return fmt.Errorf("%s: %w", out, err)
		}
		return nil
	})
	n.Eventually(6*stand.WaitTimeout, func() error {
		if a := n.attempt("drops"); a.OperationStatus != resource.UpgradeRolledBack || !strings.Contains(a.Reason, "NoConnection: version v1.1.0 lost the hub after it was committed: for 20s") {
			return fmt.Errorf("%+v", a)
		}
		return nil
	})
	n.runs("v1.0.0")
	n.whole("v1.0.0")
}

// The hub orders settings of the core, and shows how that went: what the core refuses, or the node does not allow, changes nothing.
func TestSettingsGoThroughAllPrograms(t *testing.T) {
	t.Parallel()
	n := newTestNode(t, time.Minute, func(n *testNode) { n.chain, n.changes = true, []string{"log.*"} })
	file := filepath.Join(n.Dir, "core.yaml")
	before, err := os.ReadFile(file)
	require.NoError(t, err)
	began := n.began()
	a := n.changesSettings("refused", "log.level: loud")
	require.Equal(t, resource.UpgradeRolledBack, a.OperationStatus, "%+v", a)
	require.Contains(t, a.Reason, "BadSettings: ")
	require.Contains(t, a.Reason, `log.level: "loud"`)
	a = n.changesSettings("forbidden", "auth.anonymous: never")
	require.Equal(t, resource.UpgradeRolledBack, a.OperationStatus, "%+v", a)
	require.Contains(t, a.Reason, "Refused: this node does not let the hub change auth.anonymous")
	require.Equal(t, began, n.began(), "the core was not started again")
	after, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, string(before), string(after))

	// This one as a job of KubeEdge, which then says how it went in its own words.
	n.Create("apiVersion: operations.kubeedge.io/v1alpha2\nkind: ConfigUpdateJob\nmetadata: {name: debug}\n" +
		"spec: {updateFields: {log.level: debug}, nodeNames: [n1], timeoutSeconds: 300, failureTolerate: \"0.3\"}\n")
	a = n.attempt("debug")
	require.Equal(t, resource.UpgradeSuccess, a.OperationStatus, "%+v", a)
	n.Eventually(stand.WaitTimeout, func() error {
		text, err := harness.Call(n.t.Context(), "GET", "http://"+n.Hub.HTTP+"/apis/operations.kubeedge.io/v1alpha2/configupdatejobs/debug", nil)
		if err == nil && !strings.Contains(string(text), `"phase":"Completed"`) {
			err = fmt.Errorf("the job is %s", text)
		}
		return err
	})
	require.NotEqual(t, began, n.began())
	after, err = os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, string(before)+"log:\n  level: debug\n", string(after))
	n.Eventually(stand.WaitTimeout, func() error {
		out, err := os.ReadFile(filepath.Join(n.agentDir(), "upgrade", "core.log"))
		if err == nil && !strings.Contains(string(out), `"level":"debug"`) {
			err = fmt.Errorf("the core has logged %s", out)
		}
		return err
	})
	n.whole("v1.0.0")
}

// Settings with which the core does not reach the hub any more are taken back by the agent alone, and the hub gets to know why.
func TestSettingsThatCutTheLinkAreTakenBack(t *testing.T) {
	t.Parallel()
	n := newTestNode(t, 10*time.Second, func(n *testNode) { n.chain, n.changes = true, []string{"link.server"} })
	file := filepath.Join(n.Dir, "core.yaml")
	before, err := os.ReadFile(file)
	require.NoError(t, err)
	a := n.changesSettings("cut", "link.server: mqtt://127.0.0.1:1")
	require.Equal(t, resource.UpgradeRolledBack, a.OperationStatus, "%+v", a)
	require.Contains(t, a.Reason, "NoConnection: the core with the new settings, after 10s: it has no connection to the hub")
	after, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, string(before), string(after))
	n.whole("v1.0.0")
}

// Each of these versions is rolled back by the agent alone.
func TestABadVersionIsRolledBack(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		mode, reason, message, log string
		after                      time.Duration
	}{
		{mode: "exits", reason: resource.UpgradeFailedExited, message: "exit status 3", log: "this core: exits"},
		{mode: "exits later", reason: resource.UpgradeFailedExited, message: "exit status 4", after: 700 * time.Millisecond},
		{mode: "panics", reason: resource.UpgradeFailedExited, message: "exit status 2", log: "panic: out of cheese", after: 700 * time.Millisecond},
		{mode: "hangs", reason: resource.UpgradeFailedHang, message: "does not answer"},
		{mode: "hangs later", reason: resource.UpgradeFailedHang, message: "does not answer", after: 700 * time.Millisecond},
		{mode: "ignores SIGTERM", reason: resource.UpgradeFailedHang, message: "does not answer"},
		{mode: "forks", reason: resource.UpgradeFailedExited, message: "exit status 0"},
		{mode: "never connects", reason: resource.UpgradeFailedConnection, message: "no connection to the hub"},
		{mode: "drops the link", reason: resource.UpgradeFailedConnection, message: "no connection to the hub", after: 500 * time.Millisecond},
		{mode: "eats memory", reason: resource.UpgradeFailedMemory, message: "bytes of memory"},
		{mode: "is another version", reason: resource.UpgradeFailedArtifact, message: "says that it is version v9.9.9"},
	} {
		t.Run(c.mode, func(t *testing.T) {
			t.Parallel()
			timeout := time.Minute // it ends by itself
			if c.reason == resource.UpgradeFailedHang || c.reason == resource.UpgradeFailedConnection {
				timeout = 4 * time.Second
			}
			n := newTestNode(t, timeout)
			r := n.order(n.bundle("v1.1.0", map[string][]byte{"edgecore": brokenCore(t, "v1.1.0", c.mode, c.after)}))
			require.Equal(t, resource.UpgradeRolledBack+" "+c.reason, r.Result+" "+r.Reason, "%+v", r)
			require.Contains(t, r.Message, c.message)
			require.Contains(t, r.Log, c.log, "the end of the version's output")
			n.whole("v1.0.0")
		})
	}
}

// What is not exactly what a trusted key has signed, or not for this host, changes nothing: the core that runs is not even started again.
func TestWhatCannotBeVerifiedIsRefused(t *testing.T) {
	t.Parallel()
	n := newTestNode(t, time.Minute)
	core := map[string][]byte{"edgecore": workingCore(t, "v1.1.0")}
	began := n.began()
	for _, c := range []struct {
		name, reason, message string
		order                 func() resource.UpgradeOrder
	}{
		{"another key", resource.UpgradeFailedSignature, "does not trust", func() resource.UpgradeOrder {
			o := n.bundle("v1.1.0", core)
			o.Signature = newSigner(t, 2).sign([]byte(o.Manifest), "version v1.1.0")
			return o
		}},
		{"another key with the same id", resource.UpgradeFailedSignature, "not of this content", func() resource.UpgradeOrder {
			o := n.bundle("v1.1.0", core)
			o.Signature = newSigner(t, 1).sign([]byte(o.Manifest), "version v1.1.0")
			return o
		}},
		{"the signature of an older bundle", resource.UpgradeFailedSignature, "not of this content", func() resource.UpgradeOrder {
			old := n.bundle("v1.0.5", core)
			o := n.bundle("v1.1.0", core)
			o.Signature = old.Signature
			return o
		}},
		{"an older bundle under a new version", resource.UpgradeFailedRefused, "is of version v1.0.5, and v1.1.0 is ordered", func() resource.UpgradeOrder {
			o := n.bundle("v1.0.5", core)
			o.Version = "v1.1.0"
			return o
		}},
		{"a changed trusted comment", resource.UpgradeFailedSignature, "trusted comment", func() resource.UpgradeOrder {
			o := n.bundle("v1.1.0", core)
			o.Signature = strings.Replace(o.Signature, "version v1.1.0", "version v1.2.0", 1)
			return o
		}},
		{"an older version", resource.UpgradeFailedOlder, "does not allow a downgrade", func() resource.UpgradeOrder {
			return n.bundle("v0.9.0", core)
		}},
		{"truncated", resource.UpgradeFailedArtifact, "bytes, and the manifest says", func() resource.UpgradeOrder {
			return n.damaged(func(text []byte) []byte { return text[:len(text)/2] })
		}},
		{"too long", resource.UpgradeFailedArtifact, "more than", func() resource.UpgradeOrder {
			return n.damaged(func(text []byte) []byte { return append(text, 0) })
		}},
		{"changed", resource.UpgradeFailedArtifact, "has the digest", func() resource.UpgradeOrder {
			return n.damaged(func(text []byte) []byte { text[len(text)/2] ^= 1; return text })
		}},
		{"another processor", resource.UpgradeFailedArchitecture, "is for", func() resource.UpgradeOrder {
			text := workingCore(t, "v1.1.0")
			text[18] = 0xf3 // the machine in its ELF header: RISC-V
			return n.bundle("v1.1.0", map[string][]byte{"edgecore": text})
		}},
		{"no program", resource.UpgradeFailedArtifact, "is no program", func() resource.UpgradeOrder {
			return n.bundle("v1.1.0", map[string][]byte{"edgecore": []byte("#!/bin/sh\n")})
		}},
		{"a program that the hub doesn't have", resource.UpgradeFailedArtifact, "no such blob", func() resource.UpgradeOrder {
			o := n.bundle("v1.1.0", map[string][]byte{"edgecore": brokenCore(t, "v1.1.0", "exits", 7)})
			clear(n.blobs)
			return o
		}},
		{"a server that is not allowed", resource.UpgradeFailedRefused, "upgrade.sources", func() resource.UpgradeOrder {
			o := n.bundle("v1.1.0", core)
			o.Source = "https://127.0.0.1:1/x"
			return o
		}},
		{"a command that is not allowed", resource.UpgradeFailedRefused, "allows no command", func() resource.UpgradeOrder {
			o := n.bundle("v1.1.0", core)
			o.Installer = []string{"/bin/touch", "/tmp/x"}
			return o
		}},
		{"a closed window", resource.UpgradeFailedWindow, "closed at", func() resource.UpgradeOrder {
			o := n.bundle("v1.1.0", core)
			o.SwitchBefore = "2020-01-01T00:00:00Z"
			return o
		}},
	} {
		r := n.order(c.order())
		require.Equal(t, resource.UpgradeRolledBack+" "+c.reason, r.Result+" "+r.Reason, "%s: %+v", c.name, r)
		require.Contains(t, r.Message, c.message, c.name)
	}
	require.Equal(t, began, n.began(), "the core was not started again")
	n.whole("v1.0.0")
}

// A version that can't read the format of the node's store is refused, also if a downgrade is allowed, and one that says that it can is taken.
func TestAVersionThatCannotReadTheStoreIsRefused(t *testing.T) {
	t.Parallel()
	n := newTestNode(t, time.Minute)
	n.format = store.Format + 1
	r := n.order(n.bundle("v2.0.0", map[string][]byte{"edgecore": workingCore(t, "v2.0.0")}))
	require.Equal(t, resource.UpgradeSuccess+" v2.0.0", r.Result+" "+r.Version, "%+v", r)
	began := n.began()
	n.format = store.Format
	o := n.bundle("v1.1.0", map[string][]byte{"edgecore": workingCore(t, "v1.1.0")})
	r = n.order(o)
	require.Equal(t, resource.UpgradeRolledBack+" "+resource.UpgradeFailedOlder, r.Result+" "+r.Reason, "%+v", r)
	o.ID, o.AllowDowngrade = "allowed", true
	r = n.order(o)
	require.Equal(t, resource.UpgradeRolledBack+" "+resource.UpgradeFailedFormat, r.Result+" "+r.Reason, "%+v", r)
	require.Contains(t, r.Message, fmt.Sprintf("reads the format %d of the core's store at most, and this node's has the format %d", store.Format, store.Format+1))
	require.Equal(t, began, n.began(), "the core was not started again")
	n.runs("v2.0.0")
	n.format = store.Format + 1
	o = n.bundle("v1.1.0", map[string][]byte{"edgecore": workingCore(t, "v1.1.0")})
	o.AllowDowngrade = true
	require.Equal(t, resource.UpgradeSuccess, n.order(o).Result, "%+v", n.last())
	n.whole("v1.1.0")
}

// Only when the old core can't open its data any more is the backup put back, and the report says so.
func TestDataThatANewCoreDestroysIsPutBack(t *testing.T) {
	t.Parallel()
	n := newTestNode(t, time.Minute)
	r := n.order(n.bundle("v1.1.0", map[string][]byte{"edgecore": brokenCore(t, "v1.1.0", "destroys the store", 0)}))
	require.Equal(t, resource.UpgradeRolledBack+" "+resource.UpgradeFailedExited, r.Result+" "+r.Reason, "%+v", r)
	require.Contains(t, r.Message, "put back from the backup")
	n.runs("v1.0.0")
}

// A hub that is away during the trial can't hear the new version: it is rolled back.
func TestTheHubIsGoneDuringATrial(t *testing.T) {
	t.Parallel()
	n := newTestNode(t, 4*time.Second)
	o := n.bundle("v1.1.0", map[string][]byte{"edgecore": workingCore(t, "v1.1.0")})
	n.give(o)
	n.reaches(o, resource.StepTrial)
	require.NoError(t, n.Crash("hub"))
	r := n.outcome(o)
	require.Equal(t, resource.UpgradeRolledBack+" "+resource.UpgradeFailedConnection, r.Result+" "+r.Reason, "%+v", r)
	n.Up("hub")
	n.whole("v1.0.0")
}

// The hub says when a node begins, and the node's owner whether it may.
func TestTheOwnerHoldsAndReleases(t *testing.T) {
	t.Parallel()
	n := newTestNode(t, time.Minute)
	n.agentSays("hold", "harvest")
	o := n.bundle("v1.1.0", map[string][]byte{"edgecore": workingCore(t, "v1.1.0")})
	n.give(o)
	n.reaches(o, resource.StepHeld)
	require.Contains(t, n.last().Message, "harvest")
	o.Wait = true
	n.give(o)
	n.agentSays("release")
	n.reaches(o, resource.StepReady)
	o = n.bundle("v1.1.0", map[string][]byte{"edgecore": workingCore(t, "v1.1.0")})
	o.Confirm = true
	n.give(o)
	n.reaches(o, resource.StepHeld)
	require.Contains(t, n.agentSays("release"), "v1.1.0 is released")
	require.Equal(t, resource.UpgradeSuccess, n.outcome(o).Result)
	require.Contains(t, n.agentSays("status"), "core:      v1.1.0")
	n.whole("v1.1.0")
}

// Programs may come from an HTTPS server that the node's settings allow.
func TestProgramsFromAServer(t *testing.T) {
	t.Parallel()
	text := workingCore(t, "v1.1.0")
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/v1.1.0/amd64/edgecore") || strings.HasSuffix(r.URL.Path, "/v1.1.0/arm64/edgecore") {
			_, _ = w.Write(text)
			return
		}
		http.NotFound(w, r)
	}))
	t.Cleanup(server.Close)
	n := newTestNode(t, time.Minute, func(n *testNode) {
		roots := filepath.Join(n.Dir, "roots.pem")
		n.write(roots, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: serverCertificate(server).Raw}))
		n.env = []string{"SSL_CERT_FILE=" + roots}
		n.sources = []string{server.URL + "/releases/"}
	})
	o := n.bundle("v1.1.0", map[string][]byte{"edgecore": text})
	clear(n.blobs)
	missing := o
	missing.ID, missing.Source = "missing", server.URL+"/releases/v1.2.0"
	require.Contains(t, n.order(missing).Message, "404")
	o.Source = server.URL + "/releases/v1.1.0"
	require.Equal(t, resource.UpgradeSuccess, n.order(o).Result, "%+v", n.last())
	n.whole("v1.1.0")
}

// Programs may be blobs of a registry, which gives anybody a token to read them.
func TestProgramsFromARegistry(t *testing.T) {
	t.Parallel()
	const token = "let me in"
	blobs := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	var server *httptest.Server
	asked := make(chan string, 100)
	server = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path == "/token":
			asked <- r.URL.Query().Get("service") + " " + r.URL.Query().Get("scope")
			_ = json.NewEncoder(w).Encode(map[string]string{"token": token})
		case r.Header.Get("Authorization") != "Bearer "+token:
			w.Header().Set("WWW-Authenticate", `Bearer realm="`+server.URL+`/token",service="blobs",scope="repository:plant/edgebus:pull"`)
			w.WriteHeader(http.StatusUnauthorized)
		default:
			blobs.ServeHTTP(w, r)
		}
	}))
	t.Cleanup(server.Close)
	host := strings.TrimPrefix(server.URL, "https://")
	n := newTestNode(t, time.Minute, func(n *testNode) {
		roots := filepath.Join(n.Dir, "roots.pem")
		n.write(roots, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: serverCertificate(server).Raw}))
		n.env = []string{"SSL_CERT_FILE=" + roots}
		n.sources = []string{"oci://" + host + "/plant/"}
	})
	text := workingCore(t, "v1.1.0")
	repository, err := name.NewRepository(host + "/plant/edgebus")
	require.NoError(t, err)
	require.NoError(t, remote.WriteLayer(repository, static.NewLayer(text, "application/octet-stream"), remote.WithTransport(server.Client().Transport)))

	o := n.bundle("v1.1.0", map[string][]byte{"edgecore": text})
	clear(n.blobs)
	for id, source := range map[string]string{"other": "oci://" + host + "/other/edgebus", "above": "oci://" + host + "/plant/../other"} {
		o.ID, o.Source = id, source
		require.Contains(t, n.order(o).Message, "upgrade.sources", id)
	}
	missing := n.bundle("v1.1.0", map[string][]byte{"edgecore": brokenCore(t, "v1.1.0", "exits", 0)})
	missing.Source = "oci://" + host + "/plant/edgebus"
	r := n.order(missing)
	require.Equal(t, resource.UpgradeFailedArtifact, r.Reason, "%+v", r)
	require.Contains(t, r.Message, "404")
	for len(asked) > 0 {
		<-asked
	}
	o.ID, o.Source = "good", "oci://"+host+"/plant/edgebus"
	require.Equal(t, resource.UpgradeSuccess, n.order(o).Result, "%+v", n.last())
	require.Equal(t, "blobs repository:plant/edgebus:pull", <-asked)
	n.whole("v1.1.0")
}

func serverCertificate(s *httptest.Server) *x509.Certificate { return s.Certificate() }

// The agent is replaced after the core. One that fails, on trial or when it has taken the place of the present one, leaves that in place, and
// the core upgraded.
func TestTheAgentReplacesItself(t *testing.T) {
	t.Parallel()
	n := newTestNode(t, 20*time.Second, func(n *testNode) { n.installAgent("v1.0.0") })
	for _, c := range []struct {
		mode, message string
		ends          bool
	}{
		{mode: "exits", message: "this core: exits"},
		{mode: "hangs", message: "this core: hangs"},
		{mode: "works on trial, then can't be started", message: "it can't take over: permission denied"},
		{mode: "works on trial, then exits", message: "it ended or did not report in time", ends: true},
		{mode: "works on trial, then hangs", message: "it ended or did not report in time", ends: true},
	} {
		o := n.bundle("v1.1.0", map[string][]byte{"edgecore": workingCore(t, "v1.1.0"), "edgeagent": brokenCore(t, "v1.1.0", c.mode, 0)})
		n.give(o)
		if c.ends {
			require.NoError(t, n.Doom("agent"))
			n.Eventually(2*stand.WaitTimeout, func() error {
				if n.Running("agent") {
					return errUpgrading
				}
				return nil
			})
			require.Equal(t, "v1.0.0", n.agentLink(), c.mode)
			n.start() // as its unit does
		}
		r := n.outcome(o)
		require.Equal(t, resource.UpgradeSuccess+" AgentFailed", r.Result+" "+r.Reason, "%s: %+v", c.mode, r)
		require.Contains(t, r.Message, c.message)
		require.Equal(t, "v1.1.0 v1.0.0 v1.0.0", r.Version+" "+r.Agent+" "+n.agentLink(), c.mode)
		back := n.bundle("v1.0.0", map[string][]byte{"edgecore": workingCore(t, "v1.0.0")})
		back.AllowDowngrade = true
		require.Equal(t, resource.UpgradeSuccess, n.order(back).Result, "%+v", n.last())
		require.FileExists(t, n.agent, "a version that is fetched again without an agent keeps the one that the link leads to")
	}
	text, err := os.ReadFile(readProgram(t, "agent-1.1.0"))
	require.NoError(t, err)
	pid := n.Pid("agent")
	r := n.order(n.bundle("v1.1.0", map[string][]byte{"edgecore": workingCore(t, "v1.1.0"), "edgeagent": text}))
	require.Equal(t, "upgrade_success v1.1.0 v1.1.0 v1.1.0", r.Result+" "+r.Version+" "+r.Agent+" "+n.agentLink(), "%+v", r)
	require.Equal(t, pid, n.Pid("agent"))
	n.Eventually(stand.WaitTimeout, func() error { // the process that observed it is gone
		if c := childProcesses(pid); len(c) > 1 {
			return fmt.Errorf("the agent has other children than the core: %v", c)
		}
		return nil
	})
	n.whole("v1.1.0")
}

// A disk may be full from any step on. How the upgrade goes on depends on what the file system has left, for whom: it ends, or waits for room. Whatever
// it does, once there is room it has an end, with a reason if it failed; and the node runs a whole version, and has lost nothing.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	tryOnDisk(t)
	for _, c := range []struct {
		at  string // the step before which it is filled
		bad bool   // the version is rolled back
	}{
		{at: resource.StepDownloading}, {at: resource.StepBackingUp}, {at: resource.StepSwitching}, {at: resource.StepTrial}, {at: resource.StepRollingBack, bad: true},
	} {
		t.Run(c.at, func(t *testing.T) {
			d := disk.New(t, 200)
			paused := filepath.Join(t.TempDir(), "paused")
			n := newTestNode(t, 20*time.Second, func(n *testNode) {
				n.data, n.kills, n.env = d.Dir, true, []string{"PAUSE_AT=" + c.at, "PAUSE=" + paused}
			})
			text := workingCore(t, "v1.1.0")
			if c.bad {
				text = brokenCore(t, "v1.1.0", "exits", 0)
			}
			o := n.bundle("v1.1.0", map[string][]byte{"edgecore": text})
			n.give(o)
			n.Eventually(2*stand.WaitTimeout, func() error { _, err := os.Stat(paused); return err })
			require.NoError(t, d.Fill())
			require.NoError(t, os.Remove(paused))
			for range 30 { // it ends meanwhile, or does not
				if n.last().Result == "" {
					time.Sleep(100 * time.Millisecond) // for so long the disk is full: any moment will do
				}
			}
			require.NoError(t, d.Free())
			n.Eventually(4*time.Minute, func() error {
				if r := n.last(); r.Order != o.ID || r.Result == "" {
					return fmt.Errorf("the node reports %+v", r)
				}
				return nil
			})
			r := n.last()
			t.Logf("%s %s: %s", r.Result, r.Reason, r.Message)
			require.Equal(t, r.Result == resource.UpgradeSuccess, r.Reason == "", "%+v", r)
			require.Equal(t, r.Result == resource.UpgradeSuccess, r.Version == "v1.1.0", "%+v", r)
			require.False(t, c.bad && r.Result == resource.UpgradeSuccess, "%+v", r)
			n.whole(r.Version)
		})
	}
}

// tryOnDisk skips a test that needs a disk of its own.
func tryOnDisk(t *testing.T) {
	t.Helper()
	if os.Getenv("ROOT_TESTS") == "" {
		t.Skip("needs root: ROOT_TESTS=1")
	}
}

// After a power cut before each step, and around each write of the state, the node has what was synced, and runs a whole version again.
func TestPowerCutAtEveryStep(t *testing.T) {
	t.Parallel()
	tryOnDisk(t)
	d := disk.New(t, 200)
	killUpgrades(t, 1, func(n *testNode) { n.data = d.Dir }, func(n *testNode) {
		require.NoError(t, d.Cut())
		require.NoError(t, d.Restore())
	})
}

// The agent, and the core with it, is killed before each step and around each write of the state: then the upgrade goes on, or is rolled back.
func TestKilledAtEveryStep(t *testing.T) {
	t.Parallel()
	killUpgrades(t, killStride(6), func(*testNode) {}, func(*testNode) {})
}

// A roll-back that is interrupted goes on.
func TestKilledInARollBack(t *testing.T) {
	t.Parallel()
	n := newTestNode(t, time.Minute, func(n *testNode) { n.kills = true })
	for at := 11; at < 17; at += killStride(3) {
		require.NoError(t, n.Term("agent"))
		n.env = []string{"KILL_AT=" + strconv.Itoa(at)}
		n.start()
		n.runs("v1.0.0")
		n.format++
		o := n.bundle("v1.1.0", map[string][]byte{"edgecore": brokenCore(t, "v1.1.0", "exits", 0)})
		n.give(o)
		n.Eventually(time.Minute, func() error {
			if r := n.last(); n.Running("agent") && (r.Order != o.ID || r.Result == "") {
				return errUpgrading
			}
			return nil
		})
		if !n.Running("agent") {
			require.NoError(t, n.Doom("agent"))
			n.env = nil
			n.start()
		}
		r := n.outcome(o)
		require.Equal(t, resource.UpgradeRolledBack+" "+resource.UpgradeFailedExited, r.Result+" "+r.Reason, "killed at %d: %+v", at, r)
		n.runs("v1.0.0")
	}
	n.whole("v1.0.0")
}

// killStride is how many steps lie between two that are tried: one if ALL_TESTS is set, as `make chaos` does.
func killStride(quick int) int {
	if os.Getenv("ALL_TESTS") != "" {
		return 1
	}
	return quick
}

// killUpgrades makes one upgrade after another, and kills the agent and the core in each at a later step.
func killUpgrades(t *testing.T, stride int, prepare, afterwards func(*testNode)) {
	t.Helper()
	n := newTestNode(t, time.Minute, func(n *testNode) { n.kills = true; prepare(n) })
	version, killed := "v1.0.0", 0
	for at := 1; ; at += stride {
		require.NoError(t, n.Term("agent"))
		n.env = []string{"KILL_AT=" + strconv.Itoa(at)}
		n.start()
		n.runs(version)
		next := map[string]string{"v1.0.0": "v1.1.0", "v1.1.0": "v1.0.0"}[version]
		n.format++ // another manifest, so that it is fetched again
		o := n.bundle(next, map[string][]byte{"edgecore": workingCore(t, next)})
		o.AllowDowngrade = true
		n.give(o)
		n.Eventually(time.Minute, func() error {
			if r := n.last(); n.Running("agent") && (r.Order != o.ID || r.Result == "") {
				return errUpgrading
			}
			return nil
		})
		if n.Running("agent") {
			require.Greater(t, at, 12, "the upgrade has more steps")
			break
		}
		killed++
		require.NoError(t, n.Doom("agent"))
		afterwards(n)
		n.env = nil
		n.start()
		r := n.outcome(o)
		require.Equal(t, resource.UpgradeSuccess, r.Result, "killed at %d: %+v", at, r)
		version = r.Version
		n.runs(version)
	}
	require.NotZero(t, killed)
	n.whole(n.last().Version)
}
