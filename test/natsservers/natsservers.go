// SPDX-License-Identifier: Apache-2.0

// Package natsservers runs clusters of NATS servers for tests, as processes on free ports.
package natsservers

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/edgebus/edgebus/test/harness"
)

// Servers are a cluster.
type Servers struct {
	t    testing.TB
	each []*server
}

// Host is where a server runs.
type Host struct {
	Address string   // for all of its ports; empty: free ones of this host's loopback interface
	Prefix  []string // stands before the server's command line
	Dir     string   // for what it stores; empty: one of the test's
}

type server struct {
	settings, store, monitor, client, logFile string
	prefix                                    []string
	secured                                   bool // by TLS

	mu   sync.Mutex
	cmd  *exec.Cmd
	done chan struct{}
}

const settings = `server_name: %[1]s
listen: "%[2]s"
http: "%[3]s"
jetstream { store_dir: "%[4]s", sync_interval: always, max_mem: 64MB, max_file: %[7]s }
max_payload: 1MB
cluster { name: test, listen: "%[5]s", routes: [%[6]s] }
`

// Start starts as many servers, which sync what they store before they say so.
func Start(t testing.TB, count int) *Servers { return StartWith(t, count, nil) }

// StartWith starts servers whose settings a function changes; nil: they are as they must be.
func StartWith(t testing.TB, count int, change func(i int, settings string) string) *Servers {
	return StartOn(t, make([]Host, count), change)
}

// StartOn is StartWith of a server on each host.
func StartOn(t testing.TB, hosts []Host, change func(i int, settings string) string) *Servers {
	t.Helper()
	s := &Servers{t: t}
	dir := t.TempDir()
	var routes, clusters []string
	at := func(h Host, port string) string {
		if h.Address == "" {
			return harness.FreeAddress(t)
		}
		return net.JoinHostPort(h.Address, port)
	}
	for _, h := range hosts {
		a := at(h, "6222")
		clusters, routes = append(clusters, a), append(routes, fmt.Sprintf("%q", "nats://"+a))
	}
	for i, h := range hosts {
		one := &server{
			settings: filepath.Join(dir, fmt.Sprint(i, ".conf")), store: filepath.Join(cmp.Or(h.Dir, dir), fmt.Sprint(i)), monitor: at(h, "8222"), client: at(h, "4222"), logFile: filepath.Join(dir, fmt.Sprint(i, ".log")), prefix: h.Prefix,
		}
		most := "4GB"
		if h.Dir != "" {
			most = "256MB"
		}
		text := fmt.Sprintf(settings, fmt.Sprint("n", i), one.client, one.monitor, one.store, clusters[i], strings.Join(routes, ", "), most)
		if change != nil {
			text = change(i, text)
			one.secured = strings.Contains(text, "https:")
		}
		if err := os.WriteFile(one.settings, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		s.each = append(s.each, one)
	}
	t.Cleanup(func() {
		for i := range s.each {
			s.Kill(i)
		}
	})
	for i := range s.each {
		s.Restart(i)
	}
	s.AwaitHealthy()
	return s
}

// StartUnsynced starts servers with their default, which acknowledges what isn't on a disk.
func StartUnsynced(t testing.TB, count int) *Servers {
	return StartWith(t, count, func(_ int, settings string) string {
		return strings.Replace(settings, "sync_interval: always", "sync_interval: 2m", 1)
	})
}

// StartSecured starts servers with the settings that a command wrote into a directory for each, n0, n1, …
func StartSecured(t testing.TB, count int, dirs string) *Servers {
	t.Helper()
	return StartWith(t, count, func(i int, settings string) string {
		dir := filepath.Join(dirs, fmt.Sprint("n", i))
		written, err := os.ReadFile(filepath.Join(dir, "nats-server.conf"))
		if err != nil {
			t.Fatal(err)
		}
		part := func(pattern string) string { return regexp.MustCompile(pattern).FindStringSubmatch(settings)[1] }
		text := regexp.MustCompile(`routes: \[.*\]`).ReplaceAllLiteralString(string(written), "routes: ["+strings.ReplaceAll(part(`routes: \[(.*)\]`), "nats://", "tls://")+"]")
		own := fmt.Sprint("n", i) // no name that is known here
		return strings.NewReplacer(own+":4222", part(`(?m)^listen: "([^"]*)"`), own+":6222", part(`cluster .*listen: "([^"]*)"`), "/etc/nats", dir, "/var/lib/nats", part(`store_dir: "([^"]*)"`), "0.0.0.0:4222", part(`(?m)^listen: "([^"]*)"`), "0.0.0.0:8222", part(`http: "([^"]*)"`),
			"0.0.0.0:6222", part(`cluster .*listen: "([^"]*)"`)).Replace(text)
	})
}

// Cluster is the address at which a server takes connections of other servers.
func (s *Servers) Cluster(i int) string {
	text, _ := os.ReadFile(s.each[i].settings)
	return regexp.MustCompile(`(?s)cluster .*listen: "([^"]*)"`).FindStringSubmatch(string(text))[1]
}

// program is the server that `make` builds into .tools.
func (s *Servers) program() string {
	bin, err := filepath.Abs(".")
	for err == nil && bin != "/" {
		file := filepath.Join(bin, ".tools", "nats-server")
		if _, err := os.Stat(file); err == nil {
			return file
		}
		bin = filepath.Dir(bin)
	}
	s.t.Fatal("nats-server is not there: run `make .tools/nats-server` first")
	return ""
}

// URLs are the servers' addresses for clients.
func (s *Servers) URLs() (all []string) {
	for _, one := range s.each {
		if one.secured {
			all = append(all, "tls://"+one.client)
			continue
		}
		all = append(all, "nats://"+one.client)
	}
	return all
}

// Monitors are the addresses at which servers say what they are.
func (s *Servers) Monitors() (all []string) {
	for _, one := range s.each {
		all = append(all, one.monitorURL())
	}
	return all
}

// Pids are the servers' processes; 0 for one that doesn't run.
func (s *Servers) Pids() (all []int) {
	for _, one := range s.each {
		one.mu.Lock()
		pid := 0
		if one.cmd != nil {
			pid = one.cmd.Process.Pid
		}
		one.mu.Unlock()
		all = append(all, pid)
	}
	return all
}

func (one *server) monitorURL() string {
	if one.secured {
		return "https://" + one.monitor
	}
	return "http://" + one.monitor
}

// Restart starts a server that was killed.
func (s *Servers) Restart(i int) {
	one := s.each[i]
	one.mu.Lock()
	defer one.mu.Unlock()
	log, err := os.OpenFile(one.logFile, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		s.t.Error(err)
		return
	}
	defer log.Close()
	line := append(slices.Clone(one.prefix), s.program(), "-c", one.settings)
	cmd := exec.Command(line[0], line[1:]...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		s.t.Error(err)
		return
	}
	one.cmd, one.done = cmd, make(chan struct{})
	go func(done chan struct{}) {
		_ = cmd.Wait()
		close(done)
	}(one.done)
}

// Kill ends a server at once.
func (s *Servers) Kill(i int) {
	one := s.each[i]
	one.mu.Lock()
	defer one.mu.Unlock()
	if one.cmd != nil {
		_ = one.cmd.Process.Kill()
		<-one.done
		one.cmd = nil
	}
}

// Damage flips a bit in each of some blocks of the newest messages that a killed server has of a stream.
func (s *Servers) Damage(i int, stream string) {
	s.t.Helper()
	files, err := filepath.Glob(filepath.Join(s.each[i].store, "jetstream", "$G", "streams", stream, "msgs", "*.blk"))
	if err != nil || len(files) == 0 {
		s.t.Fatalf("server %d has no messages of %s: %v", i, stream, err)
	}
	file := slices.MaxFunc(files, func(a, b string) int { return cmp.Or(len(a)-len(b), strings.Compare(a, b)) })
	text, err := os.ReadFile(file)
	if err != nil {
		s.t.Fatal(err)
	}
	const block = 512
	for at := len(text) / 2; at < len(text); at += block {
		text[at] ^= 1
	}
	if err := os.WriteFile(file, text, 0o600); err != nil {
		s.t.Fatal(err)
	}
}

// Running is whether a server's process is there.
func (s *Servers) Running(i int) bool {
	one := s.each[i]
	one.mu.Lock()
	defer one.mu.Unlock()
	if one.cmd == nil {
		return false
	}
	select {
	case <-one.done:
		return false
	default:
		return true
	}
}

// Log is what a server has written last.
func (s *Servers) Log(i int) string {
	text, _ := os.ReadFile(s.each[i].logFile)
	return string(text[max(0, len(text)-4<<10):])
}

// Pause stops a server's process, Resume has it go on.
func (s *Servers) Pause(i int) { s.signal(i, syscall.SIGSTOP) }

// Resume has a paused server go on.
func (s *Servers) Resume(i int) { s.signal(i, syscall.SIGCONT) }

// Freeze pauses a server, and returns when none of its threads runs any more.
func (s *Servers) Freeze(i int) error {
	s.Pause(i)
	return harness.Eventually(s.t.Context(), 10*time.Second, func(context.Context) error {
		stats, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", s.each[i].cmd.Process.Pid))
		for _, file := range stats {
			text, _ := os.ReadFile(file)
			if _, state, _ := strings.Cut(string(text), ") "); state != "" && state[0] != 'T' && state[0] != 'D' {
				return fmt.Errorf("server %d: a thread is in state %c", i, state[0])
			}
		}
		return nil
	})
}

// Reload has a server read its settings and certificates again.
func (s *Servers) Reload(i int) { s.signal(i, syscall.SIGHUP) }

func (s *Servers) signal(i int, sig syscall.Signal) {
	one := s.each[i]
	one.mu.Lock()
	defer one.mu.Unlock()
	if one.cmd != nil {
		_ = one.cmd.Process.Signal(sig)
	}
}

// Leader is the server that leads a stream; -1: nobody says so.
func (s *Servers) Leader(stream string) int {
	for _, one := range s.each {
		text, err := get(one.monitorURL(), "/jsz?streams=true")
		var said struct {
			Accounts []struct {
				Streams []struct {
					Name    string `json:"name"`
					Cluster struct {
						Leader string `json:"leader"`
					} `json:"cluster"`
				} `json:"stream_detail"`
			} `json:"account_details"`
		}
		if err != nil || json.Unmarshal([]byte(text), &said) != nil {
			continue
		}
		for _, a := range said.Accounts {
			for _, st := range a.Streams {
				if i, err := strconv.Atoi(strings.TrimPrefix(st.Cluster.Leader, "n")); st.Name == stream && err == nil {
					return i
				}
			}
		}
	}
	return -1
}

// AwaitHealthy waits until all servers that run are whole.
func (s *Servers) AwaitHealthy() {
	s.t.Helper()
	for i, one := range s.each {
		if one.cmd == nil {
			continue
		}
		if err := one.await(s.t.Context(), time.Minute); err != nil {
			log, _ := os.ReadFile(one.logFile)
			s.t.Fatalf("server %d: %v\n%s", i, err, log)
		}
	}
}

// AwaitHealthyOrRenew is AwaitHealthy, but for a server that has to take back many entries, one at a time: it does with that what docs/cluster.md says
// (Repair), and returns its name.
func (s *Servers) AwaitHealthyOrRenew() (renewed []string) {
	s.t.Helper()
	for i := range s.each {
		if s.takesBack(i) {
			s.Kill(i)
			if err := os.RemoveAll(s.each[i].store); err != nil {
				s.t.Fatal(err)
			}
			s.Restart(i)
			renewed = append(renewed, fmt.Sprint("n", i))
			break // one at a time
		}
	}
	s.AwaitHealthy()
	return renewed
}

// takesBack is whether a server is still behind after half a minute, says what one says that takes entries back, and all others are whole.
func (s *Servers) takesBack(i int) bool {
	one := s.each[i]
	if one.cmd == nil || one.await(s.t.Context(), 30*time.Second) == nil {
		return false
	}
	for _, other := range s.each {
		if other != one && other.await(s.t.Context(), 10*time.Second) != nil {
			return false
		}
	}
	log, _ := os.ReadFile(one.logFile)
	log = log[bytes.LastIndex(log, []byte("Starting nats-server"))+1:]
	return bytes.Count(log, []byte("Expected first catchup entry to be a snapshot and peerstate")) > 5
}

// await waits for so long until a server is whole.
func (one *server) await(ctx context.Context, within time.Duration) error {
	return harness.Eventually(ctx, within, func(context.Context) error {
		_, err := get(one.monitorURL(), "/healthz")
		return err
	})
}

func get(address, path string) (string, error) {
	client := http.Client{Timeout: 2 * time.Second, Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	r, err := client.Get(address + path)
	if err != nil {
		return "", err
	}
	defer r.Body.Close()
	var text strings.Builder
	if _, err := io.Copy(&text, r.Body); err != nil {
		return "", err
	}
	if r.StatusCode != http.StatusOK {
		return "", fmt.Errorf("%s", text.String())
	}
	return text.String(), nil
}
