package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker/client"
	"github.com/edgebus/edgebus/broker/daemon"
	"github.com/edgebus/edgebus/configs"
	"github.com/edgebus/edgebus/topics/resource"
)

func TestVersionAndUsage(t *testing.T) {
	var out, errs bytes.Buffer
	require.Zero(t, run([]string{"version"}, &out, &errs))
	require.Contains(t, out.String(), "edgebus ")
	require.Equal(t, misused, run([]string{"tree"}, &out, &errs))
	require.Contains(t, errs.String(), "edgebus: ")
	require.Equal(t, 1, run([]string{"tree", "a/b"}, &out, &errs))
	require.Contains(t, errs.String(), `"a/b" is no node's name`)
	require.Equal(t, misused, run([]string{"tree", "n1", "-o", "xml"}, &out, &errs))
	require.Contains(t, errs.String(), "xml")
}

// A command line that can't be understood is answered with what the command takes.
func TestWrongArgumentsAreExplained(t *testing.T) {
	for line, want := range map[string]string{
		"tree":          "takes: edgebus tree NODE",
		"call lamp":     "takes: edgebus call DEVICE COMMAND",
		"pub a":         "takes: edgebus pub TOPIC",
		"sub":           "takes: edgebus sub FILTER…",
		"new-mapper":    "takes: edgebus new-mapper NAME",
		"passwd ann":    "takes: edgebus passwd",
		"twin lamp":     `edgebus twin has no command "lamp"; it has get, set, watch`,
		"session close": `edgebus session has no command "close"; it has end, list`,
		"gett devices":  `unknown command "gett"`,
		"tree --onze":   "edgebus tree --help says more",
		"sub #x":        "a wildcard stands alone",
	} {
		var out, errs bytes.Buffer
		require.Equal(t, misused, run(strings.Fields(line), &out, &errs), line)
		require.Contains(t, errs.String(), want, line)
		require.NotContains(t, errs.String(), "arg(s)", line)
		require.Empty(t, out.String(), line)
	}
	for _, line := range []string{"twin", "session --help", "context set --help", "help twin"} {
		var out, errs bytes.Buffer
		require.Zero(t, run(strings.Fields(line), &out, &errs), line)
		require.Contains(t, out.String(), "Usage:", line)
	}
}

func TestTheDemosProgramsSayWhatTheyAre(t *testing.T) {
	var out bytes.Buffer
	_, done, err := configs.Parse[configs.Hub]("cloudhub", []string{"--help"}, &out)
	require.NoError(t, err)
	require.True(t, done)
	require.True(t, strings.HasPrefix(out.String(), "cloudhub is the hub"), "on the first line")
	require.Contains(t, out.String(), "--version")
	require.NotContains(t, out.String(), "edgebus login string", "words of the text are no names of values")

	out.Reset()
	_, done, err = configs.Parse[configs.Core]("edgecore", []string{"--version", "--config=/nonexistent"}, &out)
	require.NoError(t, err)
	require.True(t, done, "whatever the settings are")
	require.Equal(t, "edgecore "+daemon.Version()+"\n", out.String())
}

func topicMessage(topic, payload string, properties ...client.UserProperty) client.Message {
	return client.Message{Topic: topic, Payload: []byte(payload), User: properties}
}

func TestOnlyStateIsShown(t *testing.T) {
	now := time.Unix(1000, 0)
	c, ok := changeOfMessage(topicMessage("v1/nodes/n1/devices/lamp/desired/power", "ON",
		client.UserProperty{Key: "ver", Value: "42"}, client.UserProperty{Key: "ts", Value: "2026-11-21T10:00:00.123Z"},
		client.UserProperty{Key: "origin", Value: "ann"}), now)
	require.True(t, ok)
	require.Equal(t, "devices/lamp/desired/power", c.Key)
	require.EqualValues(t, 42, c.Ver)
	require.Equal(t, "ann", c.Origin)
	require.Equal(t, 123, c.TS.Nanosecond()/1e6)
	require.Equal(t, "devices/lamp/desired/power = ON  (ver 42)", c.String())
	for _, other := range []string{"v1/nodes/n1/devices/lamp/telemetry/x", "v1/nodes/n1/devices/lamp/commands/blink", "v1/nodes/n1/sync/up", "other"} {
		_, ok := changeOfMessage(topicMessage(other, "x"), now)
		require.False(t, ok, other)
	}
	_, ok = changeOfMessage(topicMessage("v1/nodes/n1/devices/lamp/reported/power", "", client.UserProperty{Key: "ver", Value: "x"}), now)
	require.True(t, ok)
}

func sampleTree(now time.Time) *treeView {
	v := newView("n1")
	for key, val := range map[string]value{
		"state":                        {Value: "online", receivedAt: now},
		"devices/lamp":                 {Value: `{"device":{}}`, Ver: 1, TS: now.Add(-2 * time.Hour)},
		"devices/lamp/desired/power":   {Value: "ON", Ver: 3, TS: now.Add(-5 * time.Second)},
		"devices/lamp/reported/power":  {Value: "OFF", Ver: 9, TS: now.Add(-3 * time.Minute)},
		"devices/lamp/reported/colour": {Value: "\x1b[2J\nred", Ver: 1, TS: now.Add(-72 * time.Hour)},
	} {
		v.apply(change{Key: key, value: val})
	}
	return v
}

func TestTreeIsDrawn(t *testing.T) {
	now := time.Unix(1_000_000, 0)
	require.Equal(t, `n1
├─ devices
│  └─ lamp          {"device":{}}  ver 1, 2h
│     ├─ desired
│     │  └─ power   ON             ver 3, 5s
│     └─ reported
│        ├─ colour  ·[2J·red       ver 1, 3d
│        └─ power   OFF            ver 9, 3m
└─ state            online         now
`, sampleTree(now).text(now, 0), "no value may steer a terminal")
	for _, line := range strings.Split(sampleTree(now).text(now, 20), "\n") {
		require.LessOrEqual(t, len([]rune(line)), 20)
	}
}

func TestWhatIsGoneIsNotShown(t *testing.T) {
	v := sampleTree(time.Now())
	v.apply(change{Key: "devices/lamp/desired/power"})
	require.NotContains(t, v.text(time.Now(), 0), "desired")
	v.apply(change{up: true})
	require.Empty(t, v.values)
}

func TestDocument(t *testing.T) {
	now := time.Unix(1_000_000, 0).UTC()
	text, err := json.Marshal(sampleTree(now).document())
	require.NoError(t, err)
	var back struct {
		Node   string
		Topics map[string]struct {
			Value string
			Ver   uint64
			TS    time.Time
		}
	}
	require.NoError(t, json.Unmarshal(text, &back))
	require.Equal(t, "n1", back.Node)
	require.Equal(t, "ON", back.Topics["devices/lamp/desired/power"].Value)
	require.EqualValues(t, 3, back.Topics["devices/lamp/desired/power"].Ver)
	require.NotContains(t, string(text), "0001-01-01")
}

func TestFrameFitsTheScreen(t *testing.T) {
	text := sampleTree(time.Now()).text(time.Now(), 80)
	for height := 1; height < 20; height++ {
		shown := fitFrame(text, []string{"", "a footer that is wider than the screen"}, 10, height)
		if height > 4 {
			require.LessOrEqual(t, strings.Count(shown, "\n"), height-1, "height %d", height)
		}
		require.Contains(t, shown, "a footer …")
	}
	require.Contains(t, fitFrame(text, nil, 80, 4), "… 7 more")
	require.NotContains(t, fitFrame(text, nil, 80, 40), "more")
}

func TestScreenIsDrawnAndEnds(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	changes := make(chan change, 1)
	var out syncBuffer
	ended := make(chan error, 1)
	go func() {
		ended <- watchScreen(ctx, newView("n1"), changes, &out, func() (int, int) { return 80, 24 })
	}()
	changes <- change{Key: "state", value: value{Value: "online"}}
	require.Eventually(t, func() bool { return strings.Contains(out.String(), "online") }, 30*time.Second, time.Millisecond)
	cancel()
	require.NoError(t, <-ended)
	require.Contains(t, out.String(), "\x1b[?25h", "the cursor is back")

	changes <- change{err: errors.New("refused")}
	require.ErrorContains(t, watchScreen(context.Background(), newView("n1"), changes, &out, func() (int, int) { return 80, 24 }), "refused")
}

func TestTakenPortsAreNamedWithTheirOwner(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer listener.Close()
	taken := listener.Addr().String()
	d := &demo{hubMQTT: "127.0.0.1:0", hubHTTP: taken, coreMQTT: "127.0.0.1:0", coreHTTP: "127.0.0.1:0", modbus: "127.0.0.1:0"}
	err = d.checkPorts()
	require.ErrorContains(t, err, taken)
	require.ErrorContains(t, err, "--hub-http")
	require.NotContains(t, err.Error(), "--hub-mqtt")
	require.ErrorContains(t, err, "pid "+strconv.Itoa(os.Getpid()))
}

func TestProgramsAreFoundOrAskedFor(t *testing.T) {
	d := &demo{programs: t.TempDir()}
	_, err := d.findProgram("cloudhub")
	require.ErrorContains(t, err, "make build")
	require.NoError(t, os.WriteFile(filepath.Join(d.programs, "cloudhub"), nil, 0o755))
	path, err := d.findProgram("cloudhub")
	require.NoError(t, err)
	require.Equal(t, filepath.Join(d.programs, "cloudhub"), path)
	t.Setenv("PATH", d.programs)
	path, err = (&demo{}).findProgram("cloudhub")
	require.NoError(t, err)
	require.Equal(t, filepath.Join(d.programs, "cloudhub"), path)
}

// applySamples creates the demo's samples at a hub.
func applySamples(ctx context.Context, hubHTTP, modbus string) error {
	return (&demo{hubHTTP: hubHTTP, modbus: modbus}).apply(ctx)
}

func TestSamplesAreAppliedOnce(t *testing.T) {
	hub := startHub(t)
	apply := func() error { return applySamples(t.Context(), hub.Listener.Addr().String(), "127.0.0.1:9999") }
	require.NoError(t, apply())
	out, _ := runEdgebus(t, 0, "get", "device", "thermostat", "-o", "yaml")
	require.Contains(t, out, "tcp://127.0.0.1:9999")
	require.NoError(t, apply(), "a kept directory has them")
	hub.Close()
	require.ErrorIs(t, apply(), resource.Unavailable)
}

func TestReadiness(t *testing.T) {
	ready := make(chan bool, 1)
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		select {
		case <-ready:
		default:
			ready <- true
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}))
	defer api.Close()
	require.NoError(t, awaitReady(context.Background(), api.URL))
	require.NoError(t, awaitReady(context.Background(), api.Listener.Addr().String()))
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	require.ErrorContains(t, awaitReady(ctx, "127.0.0.1:1"), "refused")
}

// isProcessGone is whether a process has ended.
func isProcessGone(pid string) bool {
	n, err := strconv.Atoi(strings.TrimSpace(pid))
	if err != nil {
		return false
	}
	text, err := os.ReadFile("/proc/" + strconv.Itoa(n) + "/stat")
	return syscall.Kill(n, 0) != nil || err == nil && strings.Contains(string(text), ") Z ")
}

func TestNothingIsLeftRunning(t *testing.T) {
	dir := t.TempDir()
	g := newProcesses(filepath.Join(dir, "logs"))
	g.onExit = func(err error) { t.Errorf("unexpected: %v", err) }
	read := func(name string) string { text, _ := os.ReadFile(filepath.Join(dir, name)); return string(text) }
	require.NoError(t, g.start("first", []string{"sh", "-c", "trap 'echo first >>order; exit' TERM; touch up1; while :; do sleep 0.02; done"}, dir))
	require.NoError(t, g.start("last", []string{"sh", "-c", "trap 'echo last >>order; exit' TERM; sleep 300 & echo $! >child; while :; do sleep 0.02; done"}, dir))
	require.Eventually(t, func() bool { return read("child") != "" && fileExists(filepath.Join(dir, "up1")) }, 30*time.Second, time.Millisecond)
	require.NoError(t, g.stop())
	require.Equal(t, "last\nfirst\n", read("order"), "who was started last goes first")
	require.Eventually(t, func() bool { return isProcessGone(read("child")) }, 30*time.Second, time.Millisecond)
}

func fileExists(file string) bool {
	_, err := os.Stat(file)
	return err == nil
}

func TestWhoDoesNotStopIsKilledInTime(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	g := newProcesses(filepath.Join(dir, "logs"))
	require.NoError(t, g.start("deaf", []string{"sh", "-c", "trap '' TERM; touch up; while :; do sleep 0.05; done"}, dir))
	require.Eventually(t, func() bool { return fileExists(filepath.Join(dir, "up")) }, 30*time.Second, time.Millisecond)
	began := time.Now()
	require.ErrorContains(t, g.stop(), "deaf")
	require.Less(t, time.Since(began), 10*time.Second)
	require.True(t, isProcessGone(strconv.Itoa(g.all[0].cmd.Process.Pid)))
}

func TestWhatIsKilledComesBack(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	g := newProcesses(filepath.Join(dir, "logs"))
	g.pause = time.Millisecond
	g.onExit = func(err error) { t.Errorf("given up: %v", err) }
	said := make(chan string, 100)
	g.say = func(text string) { said <- text }
	pids := func() []string {
		text, _ := os.ReadFile(filepath.Join(dir, "pids"))
		return strings.Fields(string(text))
	}
	require.NoError(t, g.start("phoenix", []string{"sh", "-c", "sleep 300 & echo $$ $! >>pids; wait"}, dir))
	for round := range mostRestarts - 1 {
		require.Eventually(t, func() bool { return len(pids()) == 2*round+2 }, 30*time.Second, time.Millisecond)
		pid, err := strconv.Atoi(pids()[2*round])
		require.NoError(t, err)
		require.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
	}
	require.Eventually(t, func() bool { return len(pids()) == 2*mostRestarts }, 30*time.Second, time.Millisecond)
	require.NoError(t, g.stop())
	close(said)
	var texts []string
	for text := range said {
		texts = append(texts, text)
	}
	require.Contains(t, texts, "phoenix ended unexpectedly (signal: killed), and is started again in 8ms", "the pause doubles")
	for _, pid := range pids() {
		require.Eventually(t, func() bool { return isProcessGone(pid) }, 30*time.Second, time.Millisecond, "no child is left either")
	}
}

func TestNothingIsStartedOnceStopped(t *testing.T) {
	dir := t.TempDir()
	g := newProcesses(filepath.Join(dir, "logs"))
	g.pause = time.Hour
	paused := make(chan string, 1)
	g.say = func(text string) { paused <- text }
	require.NoError(t, g.start("weak", []string{"sh", "-c", "echo >>runs"}, dir))
	require.Contains(t, <-paused, "started again in 1h0m0s")
	require.NoError(t, g.stop())
	text, err := os.ReadFile(filepath.Join(dir, "runs"))
	require.NoError(t, err)
	require.Equal(t, "\n", string(text))
	require.ErrorIs(t, g.start("late", []string{"true"}, dir), errStopping)
}

func TestAFailedDemoKeepsItsDirectoryAndNamesIt(t *testing.T) {
	d := &demo{out: io.Discard}
	require.NoError(t, d.makeDataDir())
	defer os.RemoveAll(d.dataDir)
	d.group = newProcesses(filepath.Join(d.dataDir, "logs"))
	err := d.stop(errors.New("alas"))
	require.ErrorContains(t, err, "alas")
	require.ErrorContains(t, err, d.dataDir)
	require.DirExists(t, d.dataDir)
	d.group = newProcesses(filepath.Join(d.dataDir, "logs"))
	require.NoError(t, d.stop(nil))
	require.NoDirExists(t, d.dataDir)
}

// startHangingUpListener is no broker: it closes every connection.
func startHangingUpListener(t *testing.T) string {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			_, _ = conn.Write([]byte("HTTP/1.1 400 Bad Request\r\n\r\n"))
			_ = conn.Close()
		}
	}()
	return "mqtt://" + listener.Addr().String()
}

func TestNoBrokerIsToldFromAnEmptyTree(t *testing.T) {
	t.Parallel()
	silent, err := net.Listen("tcp", "127.0.0.1:0") // connections are made, and never answered
	require.NoError(t, err)
	defer silent.Close()
	for _, server := range []string{startHangingUpListener(t), "mqtt://" + silent.Addr().String(), "mqtt://127.0.0.1:1"} {
		var out, errs bytes.Buffer
		require.Equal(t, 1, run([]string{"tree", "n1", "--once", "--server", server}, &out, &errs))
		require.Contains(t, errs.String(), "no connection to "+server)
		require.NotContains(t, errs.String(), "nothing is known")
	}
}

func TestALiveTreeSaysThatItIsNotConnected(t *testing.T) {
	server := startHangingUpListener(t)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	changes, err := treeSource{target: hubTarget{MQTT: server}}.follow(ctx, "n1")
	require.NoError(t, err)
	c := <-changes
	require.Contains(t, c.String(), "not connected to "+server)
	v := newView("n1")
	v.apply(c)
	require.Contains(t, strings.Join(v.footer(), "\n"), "not connected to "+server)
	v.apply(change{note: "cloudhub runs again"})
	require.Contains(t, strings.Join(v.notes, "\n"), "cloudhub runs again")
	v.apply(change{up: true})
	require.NotContains(t, strings.Join(v.footer(), "\n"), "not connected")
}

func TestWhoEndsAgainAndAgainIsGivenUpWithItsLastWords(t *testing.T) {
	dir := t.TempDir()
	g := newProcesses(filepath.Join(dir, "logs"))
	g.pause = time.Millisecond
	gaveUp := make(chan error, 1)
	g.onExit = func(err error) { gaveUp <- err }
	t.Setenv("CLOUDHUB_DATA_DIR", "/elsewhere")
	require.NoError(t, g.start("weak", []string{"sh", "-c", `echo "dir=$CLOUDHUB_DATA_DIR"; echo alas >&2; exit 3`}, dir))
	err := <-gaveUp
	require.ErrorContains(t, err, "weak ended unexpectedly (exit status 3), 5 times within 30s")
	require.ErrorContains(t, err, "alas")
	require.ErrorContains(t, err, "dir=\n", "settings of this host must not change the demo")

	ctx, cancel := context.WithCancelCause(context.Background())
	cancel(err)
	require.Equal(t, err, exitReason(ctx, errors.New("connection refused")), "the cause, not what followed from it")
	plain, stop := context.WithCancel(context.Background())
	require.ErrorContains(t, exitReason(plain, errors.New("x")), "x")
	stop()
	require.NoError(t, exitReason(plain, errors.New("interrupted")))
	require.NoError(t, g.stop())
}

// syncBuffer can be read while it is written.
type syncBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}
