// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// Programs is the directory of the programs: the repository's bin, as `make build` fills it. Tests build nothing, for
// several processes of tests run at a time. Programs that are older than their sources are an error.
func Programs() (string, error) { return findPrograms() }

var findPrograms = sync.OnceValues(func() (string, error) {
	root, err := findRepository()
	if err != nil {
		return "", err
	}
	bin := filepath.Join(root, "bin")
	oldest := time.Now()
	for _, name := range []string{"cloudhub", "edgebus", "edgecore", "mapper-bacnet", "mapper-modbus", "mapper-mqtt", "mapper-virtual"} {
		info, err := os.Stat(filepath.Join(bin, name))
		if err != nil {
			return "", fmt.Errorf("the programs are not built: run `make build` first: %w", err)
		}
		if info.ModTime().Before(oldest) {
			oldest = info.ModTime()
		}
	}
	for _, dir := range []string{"topics", "broker", "cloud", "edge", "mappers", "configs"} {
		if err := checkUnchanged(filepath.Join(root, dir), oldest); err != nil {
			return "", err
		}
	}
	return bin, nil
})

// checkUnchanged fails if a source of the programs in a directory is newer than they are.
func checkUnchanged(dir string, built time.Time) error {
	return filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && d.Name() == "testdata" {
			return filepath.SkipDir
		}
		if d.IsDir() || strings.HasSuffix(path, "_test.go") {
			return nil
		}
		info, err := d.Info()
		if err == nil && info.ModTime().After(built) {
			err = fmt.Errorf("%s has changed since the programs were built: run `make build` first", path)
		}
		return err
	})
}

// findRepository is the directory of go.mod, above the test's own.
func findRepository() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir, nil
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return "", errors.New("no go.mod above the test")
		}
		dir = parent
	}
}

// Missing names the programs that a test needs and that aren't there. In CI this is
// a failure; elsewhere a test may be skipped for it.
func Missing(programs ...string) (missing []string) {
	for _, p := range programs {
		if _, err := exec.LookPath(p); err != nil {
			missing = append(missing, p)
		}
	}
	return missing
}

// FreePort is an address of the loopback interface that nobody uses, and that no other test is given, in this process
// or another. It is below those that the system gives to whoever asks for any: until a program listens there, and
// while it is down, an outgoing connection could take one of them.
func FreePort() (string, error) { return ownPorts.take() }

// FreeAddress is FreePort for a test.
func FreeAddress(t testing.TB) string {
	t.Helper()
	address, err := FreePort()
	if err != nil {
		t.Fatal(err)
	}
	return address
}

// portBlock is a range of ports that a process has for itself, because it listens on the first of them until it ends.
type portBlock struct {
	sync.Mutex
	held      []net.Listener
	next, end int
}

var ownPorts portBlock

func (b *portBlock) take() (string, error) {
	const lowest, highest, size = 10_000, 32_000, 200
	b.Lock()
	defer b.Unlock()
	for range 10_000 {
		if b.next == b.end {
			first := lowest + size*rand.IntN((highest-lowest)/size)
			l, err := net.Listen("tcp", loopbackAddress(first))
			if err != nil {
				continue // another process has it
			}
			b.held, b.next, b.end = append(b.held, l), first+1, first+size
		}
		address := loopbackAddress(b.next)
		b.next++
		if l, err := net.Listen("tcp", address); err == nil {
			return address, l.Close()
		}
	}
	return "", errors.New("no free port")
}

func loopbackAddress(port int) string { return "127.0.0.1:" + strconv.Itoa(port) }
