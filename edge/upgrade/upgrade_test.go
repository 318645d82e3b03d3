// SPDX-License-Identifier: Apache-2.0

package upgrade

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"aead.dev/minisign"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/edgebus/edgebus/configs"
	"github.com/edgebus/edgebus/topics/resource"
)

// What minisign 0.10 has made.
const (
	minisignKey     = "RWRofH5ZAT9dD6WDHZbOYZqTKEhWZctVt1bIfr2ivX4u0x7dGsHQE6hA"
	signedText      = `{"version":"v1.2.0"}`
	signatureOfHash = `untrusted comment: signature from minisign secret key
RURofH5ZAT9dD/8sm3vGUZseu5DcXRUJCGLMGLM6Of7hcSEGIRACQQC0+Or1NJnifryTYb+jaW7GQV4kDTHAlS63VNuI0TqQDAQ=
trusted comment: version v1.2.0
pbvxubglRguxdj55dB7/9u8TIjrhkw/1XI3rT8mgDGJkDt9+6Of8wLUFjiwhKL/oP89wCgv+ElA2t3/eNyVdBg==
`
	signatureOfText = `untrusted comment: signature from minisign secret key
RWRofH5ZAT9dD+3S00loG+cUhkCcfaysZX/M1Ma/czOqA+R4/jl5n8LkrsnCAe2DlzT9+np+MLNzGZzwskSGPQkXYLZfLtBCRAs=
trusted comment: legacy
NKRzohxo5eKL9SZMJH58SAm//gXKZ79Pbky3RuGJ5sURc232JaxwZ4vAPiMMjdEqnb4iWIJI30t2EwELipV8CA==
`
)

func TestSignaturesOfMinisign(t *testing.T) {
	trusted, err := parseKeys([]string{"RWQf6LRCGA9i53mlYecO4IzT51TGPpvWucNSCh1CBM0QTaLn73Y7GFO3", minisignKey})
	require.NoError(t, err)
	require.NoError(t, trusted.verify([]byte(signedText), signatureOfHash))
	require.NoError(t, trusted.verify([]byte(signedText), strings.ReplaceAll(signatureOfHash, "\n", "\r\n")))
	require.NoError(t, trusted.verify([]byte(signedText), signatureOfText))
	for what, bad := range map[string]struct{ text, signature, err string }{
		"another text":      {signedText + " ", signatureOfHash, "not of this content"},
		"another comment":   {signedText, strings.Replace(signatureOfHash, "version v1.2.0", "version v1.3.0", 1), "trusted comment"},
		"no signature":      {signedText, "", "none of minisign"},
		"a line is missing": {signedText, strings.Join(strings.Split(signatureOfHash, "\n")[:3], "\n"), "none of minisign"},
		"a short one":       {signedText, strings.Replace(signatureOfHash, "RURofH5Z", "", 1), "signature length"},
		"another algorithm": {signedText, strings.Replace(signatureOfHash, "RURo", "WFho", 1), "algorithm"},
	} {
		require.ErrorContains(t, trusted.verify([]byte(bad.text), bad.signature), bad.err, what)
	}
	require.ErrorContains(t, trusted[:1].verify([]byte(signedText), signatureOfHash), "F5D3F01597E7C68, which this node does not trust")
	require.ErrorContains(t, trustedKeys(nil).verify([]byte(signedText), signatureOfHash), "trusts no key")
	_, err = parseKeys([]string{minisignKey[:20]})
	require.ErrorContains(t, err, "upgrade.keys[0]")
}

// A signature that was changed anywhere, but in the comment that nobody trusts, is none.
func TestAChangedSignatureIsNone(t *testing.T) {
	trusted, err := parseKeys([]string{minisignKey})
	require.NoError(t, err)
	from := strings.Index(signatureOfHash, "\n") + 1
	rapid.Check(t, func(t *rapid.T) {
		at := rapid.IntRange(from, len(signatureOfHash)-2).Draw(t, "at")
		to := rapid.SampledFrom([]byte("Aab9+/= \n")).Draw(t, "to")
		changed := []byte(signatureOfHash)
		changed[at] = to
		require.Equal(t, string(changed) == signatureOfHash, trusted.verify([]byte(signedText), string(changed)) == nil, string(changed))
	})
}

func FuzzSignature(f *testing.F) {
	f.Add(signatureOfHash)
	f.Add(signatureOfText)
	trusted, err := parseKeys([]string{minisignKey})
	require.NoError(f, err)
	f.Fuzz(func(t *testing.T, text string) { _ = trusted.verify([]byte(signedText+"x"), text) })
}

func TestTheOrderOfVersions(t *testing.T) {
	rising := []string{
		"v0.9.9", "1.0.0-alpha", "v1.0.0-alpha.1", "v1.0.0-alpha.beta", "v1.0.0-beta", "v1.0.0-beta.2", "v1.0.0-beta.11", "v1.0.0-rc.1",
		"v1.0.0", "v1.0.1", "v1.2.0", "v1.10.0", "v2.0.0", "v18446744073709551616.0.0",
	}
	for i, a := range rising {
		for j, b := range rising {
			require.Equal(t, i < j, isOlder(a, b), "%s before %s", a, b)
		}
	}
	require.False(t, isOlder("v1.0.0+one", "v1.0.0+two"))
	require.False(t, isOlder("dev", "v1.0.0"))
	require.False(t, isOlder("v1.0.0", "dev"))
}

// testService is a unit whose process is real.
type testService struct {
	t       *testing.T
	program string
	cmd     *exec.Cmd
	fails   error
	starts  int
	onStart func() error // says whether the next start fails
}

func (s *testService) Restart(context.Context) error {
	if s.onStart != nil {
		s.fails = s.onStart()
	}
	if err := s.Stop(s.t.Context()); err != nil || s.fails != nil {
		return s.fails
	}
	s.starts++
	s.cmd = exec.Command(s.program, "3600")
	return s.cmd.Start()
}

func (s *testService) Stop(context.Context) error {
	if s.cmd != nil {
		_ = s.cmd.Process.Kill()
		_ = s.cmd.Wait()
		s.cmd = nil
	}
	return nil
}

func (s *testService) MainPID(context.Context) (int, error) {
	if s.cmd == nil {
		return 0, nil
	}
	return s.cmd.Process.Pid, nil
}

// testHost is a directory with versions, whose core tells its state as a handler does.
type testHost struct {
	t *testing.T
	o Options
	s *testService
}

// newTestHost makes a host whose core works alone, in the version with which it was started last.
func newTestHost(t *testing.T) *testHost {
	t.Helper()
	var h *testHost
	h = newTestHostWith(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintf(w, `{"version":%q,"links":[{"state":"alone"}]}`, versionDir{h.o.Config.Dir}.linked(linkCurrent))
	}))
	return h
}

func newTestHostWith(t *testing.T, state http.Handler) *testHost {
	t.Helper()
	dir := t.TempDir()
	sleep, err := exec.LookPath("sleep")
	require.NoError(t, err)
	s := &testService{t: t, program: sleep}
	t.Cleanup(func() { _ = s.Stop(t.Context()) })
	h := &testHost{t: t, s: s, o: Options{
		Config: configs.AgentUpgrade{
			Dir: filepath.Join(dir, "programs"), Keys: []string{minisignKey}, Core: configs.AgentCore{Unit: "edgecore.service", Data: filepath.Join(dir, "core"), Stop: time.Second},
			Trial: configs.AgentTrial{Timeout: time.Second, Watch: time.Millisecond, Memory: 1 << 30},
		},
		Dir: filepath.Join(dir, "agent"), Version: "v1.0.0", Log: zerolog.Nop(), Now: time.Now, Unit: s,
		Order:     func() (*resource.UpgradeOrder, error) { return nil, nil }, //nolint:nilnil // there is none
		Connected: func() error { return nil }, Changed: func() {},
	}}
	require.NoError(t, os.MkdirAll(h.o.Config.Core.Data, 0o755))
	l, err := net.Listen("unix", filepath.Join(h.o.Config.Core.Data, "backup.sock"))
	require.NoError(t, err)
	server := &http.Server{Handler: state}
	go func() { _ = server.Serve(l) }()
	t.Cleanup(func() { _ = server.Close() })
	h.install("v1.0.0")
	require.NoError(t, versionDir{h.o.Config.Dir}.link(linkCurrent, "v1.0.0"))
	return h
}

func (h *testHost) install(version string) {
	h.t.Helper()
	dir := versionDir{h.o.Config.Dir}.path(version)
	require.NoError(h.t, os.MkdirAll(dir, 0o755))
	require.NoError(h.t, os.WriteFile(filepath.Join(dir, programCore), []byte(version), 0o755))
}

func (h *testHost) open() *Upgrader {
	h.t.Helper()
	u, err := New(h.o)
	require.NoError(h.t, err)
	return u
}

// A version that somebody installs by hand is the present one, and the link of one that is missing is put back.
func TestWhatIsInstalledByHandIsThePresentVersion(t *testing.T) {
	h := newTestHost(t)
	require.Equal(t, "v1.0.0", h.open().Report().Version)
	h.install("v1.3.0")
	require.NoError(t, versionDir{h.o.Config.Dir}.link(linkCurrent, "v1.3.0"))
	u := h.open()
	require.Equal(t, "v1.3.0 v1.0.0", u.state.Version+" "+u.state.Previous)
	require.NoError(t, os.Remove(filepath.Join(h.o.Config.Dir, linkCurrent)))
	require.Equal(t, "v1.3.0", h.open().versions.linked(linkCurrent))
}

// A version whose signature is none of the keys of today does not run any more, if the one before is whole; without that one, it does.
func TestTheSignatureIsVerifiedAtEachStart(t *testing.T) {
	h := newTestHost(t)
	h.open()
	h.install("v1.3.0")
	dir := versionDir{h.o.Config.Dir}.path("v1.3.0")
	require.NoError(t, os.WriteFile(filepath.Join(dir, manifestName), []byte(signedText), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(dir, signatureName), []byte(signatureOfHash), 0o600))
	require.NoError(t, versionDir{h.o.Config.Dir}.link(linkCurrent, "v1.3.0"))
	h.open() // by hand
	u := h.open()
	require.Equal(t, "v1.0.0", u.versions.linked(linkCurrent))
	require.Contains(t, u.Report().Message, "version v1.3.0, which is installed")
	require.Contains(t, u.Report().Message, "version v1.0.0 runs instead")
	h.install("v1.4.0")
	up := upgradeRecord{Order: resource.UpgradeOrder{ID: "1", Version: "v1.4.0"}, From: "v1.0.0", Step: stepTrial}
	require.NoError(t, u.saveResult(up, resultDone, nil))
	_, err := u.do(t.Context())
	require.NoError(t, err)
	require.Empty(t, u.Report().Message, "another version is the present one")
}

// The owner of a node holds and releases, without the agent.
func TestHoldAndRelease(t *testing.T) {
	h := newTestHost(t)
	u := h.open()
	o := resource.UpgradeOrder{ID: "1", Version: "v1.1.0", Timeout: 60}
	require.Empty(t, u.held(o))
	require.NoError(t, HoldUpgrades(h.o.Dir, "harvest"))
	require.Equal(t, "held by the owner of the node: harvest", u.held(o))
	require.Equal(t, u.held(o), u.Report().Held)
	version, err := ReleaseUpgrade(h.o.Dir)
	require.NoError(t, err)
	require.Empty(t, version)
	require.Empty(t, u.held(o))

	o.Confirm = true
	require.Contains(t, u.held(o), "edgeagent upgrade release")
	u.noteOrder(o)
	u.progress(stepHeld, nil)
	u.Note(u.Report())
	version, err = ReleaseUpgrade(h.o.Dir)
	require.NoError(t, err)
	require.Equal(t, "version v1.1.0", version)
	require.Empty(t, u.held(o))
	o.ID = "2"
	require.NotEmpty(t, u.held(o), "it was another one that was released")

	o.Version, o.Settings = "", map[string]string{"log.level": "debug"}
	u.noteOrder(o)
	u.Note(u.Report())
	what, err := ReleaseUpgrade(h.o.Dir)
	require.NoError(t, err)
	require.Equal(t, "order 2", what)
	require.Empty(t, u.held(o))
}

// A service of systemd that can't be started in a new version is started in the one before.
func TestAServiceThatFailsIsRolledBack(t *testing.T) {
	h := newTestHost(t)
	u := h.open()
	h.install("v1.1.0")
	for _, step := range []string{stepSwitch, stepTrial} {
		h.s.fails = os.ErrInvalid
		up := upgradeRecord{Order: resource.UpgradeOrder{ID: "1", Version: "v1.1.0", Timeout: 60}, From: "v1.0.0", Step: step, Started: time.Now()}
		require.NoError(t, u.save(func(s *upgradeState) { s.Upgrade = &up }))
		h.o.BeforeStep = func(step string) {
			if step == resource.StepRollingBack {
				h.s.fails = nil
			}
		}
		u = h.open()
		require.Equal(t, 1, u.state.Upgrade.Resumed)
		_, err := u.do(t.Context())
		require.NoError(t, err)
		r := u.Report()
		require.Equal(t, resource.UpgradeFailedStart, r.Reason, "%+v", r)
		require.Equal(t, "v1.0.0", u.versions.linked(linkCurrent))
		require.NotContains(t, r.Message, "and then", "it runs again, as far as can be known")
	}
}

// full has no state be written, as a full disk does, until room is called.
func (h *testHost) full() (room func()) {
	h.t.Helper()
	path := filepath.Join(h.o.Dir, "upgrade", "state.json.new")
	require.NoError(h.t, os.Mkdir(path, 0o700))
	return func() { require.NoError(h.t, os.Remove(path)) }
}

// A core that was rolled back runs on undisturbed while the state can't be written, and the report says so until it can. A new core that
// fails is rolled back nevertheless.
func TestAStateThatCannotBeWrittenDisturbsNoCore(t *testing.T) {
	h := newTestHost(t)
	u := h.open()
	h.install("v1.1.0")
	up := upgradeRecord{Order: resource.UpgradeOrder{ID: "1", Version: "v1.1.0", Timeout: 60}, From: "v1.0.0", Step: stepTrial, Started: time.Now()}
	require.NoError(t, u.save(func(s *upgradeState) { s.Upgrade = &up }))
	require.NoError(t, u.versions.link(linkCurrent, "v1.1.0"))
	h.s.fails = os.ErrInvalid
	room := func() {}
	h.o.BeforeStep = func(step string) {
		switch step {
		case stepTrial:
			room = h.full()
		case resource.StepRollingBack:
			h.s.fails = nil
		}
	}
	u = h.open()
	for range 5 {
		again, err := u.do(t.Context())
		require.NoError(t, err)
		require.Equal(t, pollPause, again)
		require.Equal(t, "v1.0.0", u.versions.linked(linkCurrent))
		require.Equal(t, 1, h.s.starts, "it was started once")
		r := u.Report()
		require.Equal(t, resource.UpgradeFailedStart, r.Reason)
		require.Empty(t, r.Result)
		require.Equal(t, resource.StepRollingBack, r.Step)
		require.Contains(t, r.Message, "version v1.1.0 can't be started")
		require.Contains(t, r.Message, "version v1.0.0 runs again; the state of the upgrade can't be written")
	}
	room()
	_, err := u.do(t.Context())
	require.NoError(t, err)
	require.Equal(t, 1, h.s.starts)
	r := u.Report()
	require.Equal(t, resource.UpgradeRolledBack+" "+resource.UpgradeFailedStart, r.Result+" "+r.Reason, "%+v", r)
	require.NotContains(t, r.Message, "can't be written")
}

// An agent that can't write its state is started nevertheless, and an upgrade goes on.
func TestAnAgentStartsWithoutRoomForItsState(t *testing.T) {
	h := newTestHost(t)
	u := h.open()
	h.install("v1.1.0")
	up := upgradeRecord{Order: resource.UpgradeOrder{ID: "1", Version: "v1.1.0", Timeout: 60}, From: "v1.0.0", Step: stepRevert, Started: time.Now(), Failed: &Failure{Reason: resource.UpgradeFailedExited}}
	require.NoError(t, u.save(func(s *upgradeState) { s.Upgrade = &up }))
	room := h.full()
	u = h.open()
	_, err := u.do(t.Context())
	require.NoError(t, err)
	require.Equal(t, 1, h.s.starts)
	room()
	_, err = u.do(t.Context())
	require.NoError(t, err)
	require.Equal(t, 1, h.s.starts)
	require.Equal(t, resource.UpgradeRolledBack, u.Report().Result)
}

// A hub that was restored from a backup may order again what a node has done: it gets the outcome, and nothing is done.
func TestAnOrderIsCarriedOutOnce(t *testing.T) {
	h := newTestHost(t)
	require.NoError(t, h.s.Restart(t.Context()))
	var order *resource.UpgradeOrder
	h.o.Order = func() (*resource.UpgradeOrder, error) { return order, nil }
	tried := 0
	h.o.BeforeStep = func(step string) {
		if step == stepFetch {
			tried++
		}
	}
	u := h.open()
	give := func(id string) resource.UpgradeReport {
		order = &resource.UpgradeOrder{ID: id, Version: "v1.2.0", Manifest: "of order " + id, Timeout: 60}
		_, err := u.do(t.Context())
		require.NoError(t, err)
		return u.Report()
	}
	const orders = maxPastOutcomes + 5
	for i := range orders {
		r := give(strconv.Itoa(i))
		require.Equal(t, resource.UpgradeFailedSignature, r.Reason, "%+v", r)
	}
	require.Equal(t, orders, tried)
	at := u.state.PastOutcomes[1].At
	for range 2 {
		for _, id := range []string{"24", "5", "23", "5", "24"} {
			r := give(id)
			require.Equal(t, id+" "+resource.UpgradeRolledBack+" "+resource.UpgradeFailedSignature, r.Order+" "+r.Result+" "+r.Reason)
			if id == "5" {
				require.Equal(t, resource.FormatTime(at), r.At, "the outcome is that of then")
			}
		}
		u = h.open()
	}
	require.Equal(t, orders, tried)
	require.Len(t, u.state.PastOutcomes, maxPastOutcomes)
	give("1")
	require.Equal(t, orders+1, tried, "what is older is not known any more")
	info, err := os.Stat(u.file("state.json"))
	require.NoError(t, err)
	require.Less(t, info.Size(), int64(reserveSize))
}

// An order that is withdrawn, replaced or held up to the moment in which it is begun is not begun.
func TestAnOrderThatIsWithdrawnWhileItIsBegun(t *testing.T) {
	for _, when := range []string{"before the state is written", "after the state is written", "after it was read"} {
		for what, then := range map[string]func(h *testHost, o *resource.UpgradeOrder) *resource.UpgradeOrder{
			"withdrawn": func(*testHost, *resource.UpgradeOrder) *resource.UpgradeOrder { return nil },
			"replaced":  func(_ *testHost, o *resource.UpgradeOrder) *resource.UpgradeOrder { o.ID = "2"; return o },
			"to wait":   func(_ *testHost, o *resource.UpgradeOrder) *resource.UpgradeOrder { o.Wait = true; return o },
			"held": func(h *testHost, o *resource.UpgradeOrder) *resource.UpgradeOrder {
				require.NoError(t, HoldUpgrades(h.o.Dir, "harvest"))
				return o
			},
		} {
			t.Run(what+" "+when, func(t *testing.T) {
				h := newTestHost(t)
				require.NoError(t, h.s.Restart(t.Context()))
				first := resource.UpgradeOrder{ID: "1", Version: "v1.1.0", Command: []string{"install"}, Timeout: 60}
				order, u := &first, h.open()
				change := sync.OnceFunc(func() {
					next := first
					order = then(h, &next)
				})
				u.o.Allows = func([]string) error { return nil }
				u.o.Order = func() (*resource.UpgradeOrder, error) {
					read := order
					if when == "after it was read" {
						change()
					}
					return read, nil
				}
				u.before = func(step string) {
					require.NotEqual(t, stepBackUp, step, "it was begun")
					if step == when {
						change()
						u.OrderChanged()
					}
				}
				_, err := u.do(t.Context())
				require.NoError(t, err)
				s, damage, err := readState(h.o.Dir)
				require.NoError(t, errors.Join(damage, err))
				for _, s := range []upgradeState{u.state, s} {
					require.Nil(t, s.Upgrade)
					require.Nil(t, s.LastOutcome)
				}
			})
		}
	}
}

// An upgrade that is interrupted again and again is rolled back.
func TestAnUpgradeThatEndsTheAgentIsRolledBack(t *testing.T) {
	h := newTestHost(t)
	u := h.open()
	up := upgradeRecord{Order: resource.UpgradeOrder{ID: "1", Version: "v1.1.0", Timeout: 60}, From: "v1.0.0", Step: stepTrial, Resumed: maxResumed}
	require.NoError(t, u.save(func(s *upgradeState) { s.Upgrade = &up }))
	u = h.open()
	require.Equal(t, stepRevert, u.state.Upgrade.Step)
	require.Equal(t, resource.UpgradeFailedInterrupted, u.state.Upgrade.Failed.Reason)
}

// A core with a hub has been heard when the hub has confirmed what it had to tell, though somebody writes all the time.
func TestWhenTheHubHasHeardACore(t *testing.T) {
	for _, c := range []struct{ link, err string }{
		{`{"state":"alone"}`, ""},
		{`{"state":"online","inStep":true}`, ""},
		{`{"state":"online","inStep":false,"behind":{"keys":3,"seconds":0.4}}`, ""},
		{`{"state":"online","inStep":false,"behind":{"keys":3,"seconds":4}}`, "not confirmed"},
		{`{"state":"online","inStep":false,"behind":{"keys":0,"seconds":0}}`, "not confirmed"},
		{`{"state":"offline","inStep":true,"lastError":"connection refused"}`, "connection refused"},
	} {
		var r coreState
		require.NoError(t, json.Unmarshal([]byte(`{"links":[`+c.link+`]}`), &r))
		if err := checkHeard(r, time.Second); c.err == "" {
			require.NoError(t, err, c.link)
		} else {
			require.ErrorContains(t, err, c.err, c.link)
		}
	}
	require.Error(t, checkHeard(coreState{}, time.Second))
}

// A registry may want a token over HTTPS before it gives a blob, and no other login.
func TestLoginsOfRegistriesThatAreRefused(t *testing.T) {
	for _, challenge := range []string{`Basic realm="x"`, `Bearer realm="http://auth.example.com/token"`, `Bearer service="x"`, "Bearer", `Negotiate realm="https://auth.example.com"`} {
		_, err := registryToken(t.Context(), http.Client{}, challenge)
		require.ErrorAs(t, err, new(*Failure), challenge)
		require.ErrorContains(t, err, "wants the login")
	}
}

// An order that was withdrawn, or was to wait, has all its time when it is given again, however long that was.
func TestTheTimeOfAnOrderBeginsAnew(t *testing.T) {
	for what, between := range map[string]*resource.UpgradeOrder{"withdrawn": nil, "to wait": {ID: "1", Images: []string{"a"}, Wait: true, Timeout: 60}} { // and then with another Begun
		h := newTestHost(t)
		now := time.Now()
		h.o.Now = func() time.Time { return now }
		begins := resource.UpgradeOrder{ID: "1", Images: []string{"a"}, Timeout: 60, Begun: "2026-01-01T00:00:00Z"}
		order, reachable := &begins, false
		h.o.Order = func() (*resource.UpgradeOrder, error) { return order, nil }
		h.o.Pull = func(context.Context, string) error { return nil }
		h.o.Exceeded = func(context.Context, resource.UpgradeChecks) error {
			if reachable {
				return nil
			}
			return errors.New("the processors are busy")
		}
		begins.Checks = &resource.UpgradeChecks{CPU: 50}
		u := h.open()
		do := func() {
			_, err := u.do(t.Context())
			require.NoError(t, err)
		}
		do()
		require.Equal(t, stepWait, u.Report().Step, what)
		order = between
		do()
		now = now.Add(time.Hour)
		begins.Begun = "2026-01-01T01:00:00Z"
		order, reachable = &begins, true
		do()
		require.Equal(t, resource.UpgradeSuccess, u.Report().Result, "%s: %+v", what, u.Report())
	}
}

// An order of which nothing is known for a moment, because the agent has connected anew, is not withdrawn: its download goes on, its time too, and the
// report stays.
func TestAnOrderThatIsNotKnownForAMomentGoesOn(t *testing.T) {
	h := newTestHost(t)
	now := time.Now()
	h.o.Now = func() time.Time { return now }
	order := &resource.UpgradeOrder{ID: "1", Images: []string{"a"}, Timeout: 600}
	known := true
	h.o.Order = func() (*resource.UpgradeOrder, error) {
		if !known {
			return nil, errors.New("the node's broker has not said yet what it has")
		}
		return order, nil
	}
	var u *Upgrader
	h.o.Pull = func(ctx context.Context, _ string) error {
		known = false
		u.OrderChanged()
		require.NoError(t, ctx.Err(), "it was cancelled")
		return resource.Errorf(resource.Unavailable, "", "the registry is away")
	}
	h.o.Exceeded = func(context.Context, resource.UpgradeChecks) error { return errors.New("the processors are busy") }
	u = h.open()
	do := func() resource.UpgradeReport {
		_, err := u.do(t.Context())
		require.NoError(t, err)
		return u.Report()
	}
	order.ID = "2"
	order.Checks = &resource.UpgradeChecks{CPU: 50}
	r := do()
	require.Equal(t, stepWait, r.Step)
	for range 11 { // the core's connection flaps
		now, known = now.Add(time.Minute), false
		require.Equal(t, r.Step+r.Message, do().Step+do().Message)
		known = true
		r = do()
	}
	require.Equal(t, resource.UpgradeRolledBack+" "+resource.UpgradeFailedTimeout, r.Result+" "+r.Reason)
	require.Contains(t, r.Message, "the processors are busy")
	order.ID, order.Checks = "3", nil
	require.Equal(t, resource.UpgradeFailedPull, func() string { _, _ = u.do(t.Context()); return u.Report().Reason }())
}

// A command that the node doesn't allow is refused before anything is changed, and the next order is carried out.
func TestACommandThatIsNotAllowedIsRefusedBeforeAnythingIsChanged(t *testing.T) {
	h := newTestHost(t)
	require.NoError(t, h.s.Restart(t.Context()))
	order := &resource.UpgradeOrder{ID: "1", Version: "v1.1.0", Command: []string{"sh", "-c", "true"}, Timeout: 60}
	h.o.Order = func() (*resource.UpgradeOrder, error) { return order, nil }
	h.o.Allows = func(argv []string) error {
		if argv[0] == "install" {
			return nil
		}
		return failf(resource.UpgradeFailedRefused, "this node allows no command %q", argv)
	}
	var ran []string
	h.o.Run = func(_ context.Context, argv, _ []string) error {
		ran = append(ran, argv[0])
		return versionDir{h.o.Config.Dir}.link(linkCurrent, "v1.1.0")
	}
	h.o.BeforeStep = func(step string) {
		require.False(t, order.ID != "3" && (step == stepBackUp || step == stepSwitch || step == resource.StepRollingBack), step)
	}
	u := h.open()
	for id, command := range map[string][]string{"1": {"sh", "-c", "true"}, "2": {"install"}} {
		order = &resource.UpgradeOrder{ID: id, Version: "v1.1.0", Installer: []string{"sh"}, Command: command, Timeout: 60}
		_, err := u.do(t.Context())
		require.NoError(t, err)
		require.Equal(t, resource.UpgradeRolledBack+" "+resource.UpgradeFailedRefused, u.Report().Result+" "+u.Report().Reason)
	}
	require.Empty(t, ran)
	order = &resource.UpgradeOrder{ID: "3", Version: "v1.1.0", Command: []string{"install"}, Timeout: 60}
	u.runsBackups(h)
	_, err := u.do(t.Context())
	require.NoError(t, err)
	require.Equal(t, resource.UpgradeSuccess, u.Report().Result, "%+v", u.Report())
	require.Equal(t, []string{"install"}, ran)
}

// runsBackups has the present core be a program that makes any backup.
func (u *Upgrader) runsBackups(h *testHost) {
	h.t.Helper()
	require.NoError(h.t, os.WriteFile(filepath.Join(u.versions.path(u.state.Version), programCore), []byte("#!/bin/sh\n"), 0o755))
}

// A roll-back whose command is refused ends at once, and one whose command keeps failing after some attempts, of all runs of the agent: each says so,
// and the next order begins.
func TestARollBackThatKeepsFailingEnds(t *testing.T) {
	for what, fails := range map[string]error{
		"refused": failf(resource.UpgradeFailedRefused, "this node allows no command %q", "install"),
		"failing": errors.New("exit status 1"),
	} {
		t.Run(what, func(t *testing.T) {
			h := newTestHost(t)
			tries := 0
			h.o.Run = func(context.Context, []string, []string) error { tries++; return fails }
			up := upgradeRecord{
				Order: resource.UpgradeOrder{ID: "1", Version: "v1.1.0", Command: []string{"install"}, Timeout: 60}, From: "v1.0.0", Step: stepRevert,
				Started: time.Now(), Failed: &Failure{Reason: resource.UpgradeFailedExited, Message: "it ended"},
			}
			u := h.open()
			require.NoError(t, u.save(func(s *upgradeState) { s.Upgrade = &up }))
			for rounds := 0; u.state.Upgrade != nil; rounds++ {
				require.LessOrEqual(t, rounds, maxRevertAttempts)
				u = h.open() // the agent is started again and again
				again, err := u.do(t.Context())
				require.NoError(t, err)
				require.LessOrEqual(t, again, pollPause)
			}
			require.Equal(t, map[string]int{"refused": 1, "failing": maxRevertAttempts}[what], tries)
			r := u.Report()
			require.Equal(t, resource.UpgradeRollbackFailed+" "+resource.UpgradeFailedExited, r.Result+" "+r.Reason)
			require.Contains(t, r.Message, "it ended; and then version v1.0.0 could not be put back: "+fails.Error())
			require.Equal(t, 1, h.s.starts, "what is there runs")
			h.o.Order = func() (*resource.UpgradeOrder, error) {
				return &resource.UpgradeOrder{ID: "2", Version: "v1.0.0", Timeout: 60}, nil
			}
			u = h.open()
			_, err := u.do(t.Context())
			require.NoError(t, err)
			require.Equal(t, "2 "+resource.UpgradeSuccess, u.Report().Order+" "+u.Report().Result)
		})
	}
}

// An installer is run when all is verified and fetched, and once, though the hub is away meanwhile and the agent ends.
func TestAnInstallerIsRunOnceAndLast(t *testing.T) {
	h := newTestHost(t)
	require.NoError(t, h.s.Restart(t.Context()))
	secret := newOrderAuthor(h)
	self, err := os.ReadFile(ownProgram)
	require.NoError(t, err)
	order := secret.order("v1.2.0", self)
	order.Installer = []string{"install"}
	good := order.Signature
	order.Signature = "none"
	h.o.Order = func() (*resource.UpgradeOrder, error) { return &order, nil }
	h.o.Allows = func([]string) error { return nil }
	runs := 0
	dies, die := context.WithCancel(t.Context())
	h.o.Run = func(ctx context.Context, _, _ []string) error {
		require.True(t, versionDir{h.o.Config.Dir}.has("v1.2.0", programCore), "it was fetched")
		runs++
		die()
		return ctx.Err()
	}
	away := true
	h.o.Blob = func(context.Context, resource.Content, func(int64)) (io.ReadCloser, error) {
		if away {
			return nil, errors.New("the hub is away")
		}
		return io.NopCloser(bytes.NewReader(self)), nil
	}
	u := h.open()
	do := func() resource.UpgradeReport {
		_, err := u.do(dies)
		require.NoError(t, err)
		return u.Report()
	}
	require.Equal(t, resource.UpgradeFailedSignature, do().Reason)
	require.Zero(t, runs)
	order.ID, order.Signature = "2", good
	for range 3 {
		require.Equal(t, stepWait, do().Step)
	}
	require.Zero(t, runs)
	away = false
	do()
	require.Equal(t, 1, runs)
	dies = t.Context()
	u = h.open() // the agent ended in the midst of it
	r := do()
	require.Equal(t, 1, runs)
	require.Equal(t, resource.UpgradeRolledBack+" "+resource.UpgradeFailedInterrupted, r.Result+" "+r.Reason, "%+v", r)

	u.runsBackups(h)
	order.ID = "3"
	h.o.BeforeStep = nil
	u = h.open()
	_ = do()
	require.Equal(t, 2, runs, "another order runs it again")
}

// orderAuthor makes orders that a host takes.
type orderAuthor struct {
	key minisign.PrivateKey
}

func newOrderAuthor(h *testHost) orderAuthor {
	h.t.Helper()
	public, private, err := minisign.GenerateKey(nil)
	require.NoError(h.t, err)
	text, err := public.MarshalText()
	require.NoError(h.t, err)
	h.o.Config.Keys = []string{string(text)}
	return orderAuthor{private}
}

func (a orderAuthor) order(version string, core []byte) resource.UpgradeOrder {
	text := fmt.Sprintf(`{"version":%q,"programs":[{"name":"edgecore","architecture":%q,"digest":%q,"size":%d}]}`, version, runtime.GOARCH, resource.DigestOf(core), len(core))
	return resource.UpgradeOrder{ID: "1", Version: version, Manifest: text, Signature: string(minisign.Sign(a.key, []byte(text))), Timeout: 3600}
}

// What is no program, or half of one, is a bad artifact; only a whole program of another processor is of another architecture.
func TestWhatIsNoProgramIsABadArtifact(t *testing.T) {
	self, err := os.ReadFile(ownProgram)
	require.NoError(t, err)
	other := bytes.Clone(self)
	other[18], other[19] = 0xf3, 0 // RISC-V, where these tests don't run
	headers := bytes.Clone(self[:len(self)/2])
	copy(headers[0x28:0x30], make([]byte, 8)) // without sections, as a program may be
	copy(headers[0x3c:0x40], make([]byte, 4))
	for what, c := range map[string]struct {
		text   []byte
		reason string
	}{
		"empty": {nil, resource.UpgradeFailedArtifact}, "a script": {[]byte("#!/bin/sh\n"), resource.UpgradeFailedArtifact},
		"a head": {self[:20], resource.UpgradeFailedArtifact}, "half": {self[:len(self)/2], resource.UpgradeFailedArtifact},
		"half of one without sections": {headers, resource.UpgradeFailedArtifact}, "another processor": {other, resource.UpgradeFailedArchitecture},
	} {
		path := filepath.Join(t.TempDir(), "edgecore")
		require.NoError(t, os.WriteFile(path, c.text, 0o755))
		var f *Failure
		require.ErrorAs(t, checkProgram(path), &f, what)
		require.Equal(t, c.reason, f.Reason, "%s: %s", what, f.Message)
	}
	require.NoError(t, checkProgram(ownProgram))
}

// An order that can't be read is refused. Until that can be written the node says why, and tries again soon.
func TestAnOrderThatCannotBeRead(t *testing.T) {
	h := newTestHost(t)
	h.o.Order = func() (*resource.UpgradeOrder, error) {
		return &resource.UpgradeOrder{ID: "1", Version: "v1.2.0"}, errors.New("it has an unknown field")
	}
	u := h.open()
	room := h.full()
	again, err := u.do(t.Context())
	require.NoError(t, err)
	require.Equal(t, retryAfter, again)
	require.Contains(t, u.Report().Message, "the state of the upgrade can't be written")
	room()
	_, err = u.do(t.Context())
	require.NoError(t, err)
	r := u.Report()
	require.Equal(t, "1 upgrade_failed_rollback_success Refused: it has an unknown field", r.Order+" "+r.Result+" "+r.Reason+": "+r.Message)
}

// A server that sends nothing more is given up.
func TestAServerThatStopsSending(t *testing.T) {
	from, to := io.Pipe()
	go func() { _, _ = to.Write([]byte("half")) }()
	text, err := io.ReadAll(timedContent{from, 20 * time.Millisecond})
	require.EqualError(t, err, "the server has sent nothing for 20ms")
	require.Equal(t, "half", string(text))
	text, err = io.ReadAll(timedContent{io.NopCloser(strings.NewReader("whole")), time.Minute})
	require.NoError(t, err)
	require.Equal(t, "whole", string(text))
}
