// Package harness runs the real programs for tests: it builds them once, gives each
// test a world of its own (ports, directories, a network that can fail), starts,
// stops and kills them, and leaves no process behind.
//
// It never links hub, core or mappers: what a test sees is what a user would.
package harness

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
)

// Programs builds the programs into the repository's bin directory, as `make build`
// does, and returns it. It is quick when nothing has changed.
func Programs() (string, error) { return builder() }

var builder = sync.OnceValues(func() (string, error) {
	root, err := repository()
	if err != nil {
		return "", err
	}
	bin := filepath.Join(root, "bin")
	cmd := exec.Command("go", "build", "-trimpath", "-buildvcs=auto", "-ldflags", "-s -w", "-o", bin+"/",
		"./cloud/cmd/...", "./edge/cmd/...", "./mappers/cmd/...")
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("building the programs: %w\n%s", err, out)
	}
	return bin, nil
})

// repository is the directory of go.mod, above the test's own.
func repository() (string, error) {
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

// FreePort is an address of the loopback interface that nobody uses, and that nobody else in this process has been
// given. It is below those that the system gives to whoever asks for any: until a program listens there, and while it
// is down, an outgoing connection could take one of them.
func FreePort() (string, error) {
	const lowest, highest = 10_000, 32_000
	issued.Lock()
	defer issued.Unlock()
	for range 100 {
		address := "127.0.0.1:" + strconv.Itoa(lowest+rand.IntN(highest-lowest))
		listener, err := net.Listen("tcp", address)
		if err != nil {
			continue
		}
		_ = listener.Close()
		if !issued.ports[address] {
			issued.ports[address] = true
			return address, nil
		}
	}
	return "", errors.New("no free port")
}

var issued = struct {
	sync.Mutex
	ports map[string]bool
}{ports: map[string]bool{}}
