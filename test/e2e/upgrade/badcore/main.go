// SPDX-License-Identifier: Apache-2.0

//go:build testprogram

// Command badcore is a core, or an agent, that misbehaves, as the end of its own file says: tests append that, so that each is another program.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/edgebus/edgebus/broker/daemon"
	"github.com/edgebus/edgebus/configs"
	"github.com/edgebus/edgebus/edge"
)

// behaviour is what stands behind marker at the end of the file.
type behaviour struct {
	Mode    string
	Version string
	After   time.Duration
}

const behaviourMarker = "\n-- behaviour --\n"

func main() {
	b, err := readBehaviour()
	if err == nil {
		err = b.run()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "badcore:", err)
		os.Exit(1)
	}
}

func readBehaviour() (b behaviour, err error) {
	path, err := os.Executable()
	if err != nil {
		return b, err
	}
	f, err := os.Open(path)
	if err != nil {
		return b, err
	}
	defer f.Close()
	if _, err := f.Seek(-300, io.SeekEnd); err != nil {
		return b, err
	}
	text, err := io.ReadAll(f)
	if err != nil {
		return b, err
	}
	_, last, _ := bytes.Cut(text, []byte(behaviourMarker))
	return b, json.Unmarshal(last, &b)
}

func (b behaviour) run() error {
	fmt.Fprintln(os.Stderr, "this core:", b.Mode)
	if file := os.NewFile(3, "proof"); os.Getenv("EDGEAGENT_TRIAL") == "3" && strings.HasPrefix(b.Mode, "works on trial") {
		return b.agentOnTrial(file)
	}
	switch b.Mode {
	case "works on trial, then hangs":
		time.Sleep(time.Hour)
	case "works on trial, then exits":
		os.Exit(5)
	case "exits":
		os.Exit(3)
	case "exits later":
		time.AfterFunc(b.After, func() { os.Exit(4) })
	case "panics":
		time.AfterFunc(b.After, func() { panic("out of cheese") })
	case "ignores SIGTERM":
		signal.Ignore(syscall.SIGTERM)
		time.Sleep(time.Hour)
	case "hangs":
		time.Sleep(time.Hour)
	case "hangs later":
		time.AfterFunc(b.After, func() { _ = syscall.Kill(os.Getpid(), syscall.SIGSTOP) })
	case "forks":
		if os.Getenv("FORKED") == "" {
			return b.fork()
		}
	case "eats memory":
		eatMemory()
	case "destroys the store":
		return b.destroy()
	}
	return b.core()
}

// agentOnTrial is an agent that says that it has reported, until it is ended.
func (b behaviour) agentOnTrial(proof *os.File) error {
	if b.Mode == "works on trial, then can't be started" {
		path, err := os.Executable()
		if err != nil {
			return err
		}
		if err := os.Chmod(path, 0o600); err != nil {
			return err
		}
	}
	if _, err := proof.WriteString("proven\n"); err != nil {
		return err
	}
	time.Sleep(time.Hour)
	return nil
}

// fork leaves a core that belongs to nobody.
func (b behaviour) fork() error {
	path, err := os.Executable()
	if err != nil {
		return err
	}
	cmd := exec.Command(path, os.Args[1:]...)
	cmd.Env = append(os.Environ(), "FORKED=yes")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	return cmd.Start()
}

func eatMemory() {
	for range 16 {
		eatenMemory = append(eatenMemory, bytes.Repeat([]byte{1}, 16<<20))
	}
}

var eatenMemory [][]byte

// destroy leaves a store that no core can open.
func (b behaviour) destroy() error {
	db := filepath.Join(dataDir(), "tree", "core.db")
	text, err := os.ReadFile(db)
	if err != nil {
		return err
	}
	for i := range text {
		text[i] ^= 0x5a
	}
	return os.WriteFile(db, text, 0o600)
}

func dataDir() string {
	for i, arg := range os.Args {
		if arg == "--data-dir" && i+1 < len(os.Args) {
			return os.Args[i+1]
		}
	}
	return ""
}

// core is a real core that says its version, with a link that is cut if it is to be.
func (b behaviour) core() error {
	cfg, _, err := configs.Parse[configs.Core]("edgecore", daemon.Version(), os.Args[1:], os.Stdout)
	if err != nil {
		return err
	}
	switch b.Mode {
	case "never connects":
		cfg.Link.Server = "mqtt://127.0.0.1:1"
	case "drops the link":
		if cfg.Link.Server, err = b.proxy(strings.TrimPrefix(cfg.Link.Server, "mqtt://")); err != nil {
			return err
		}
	case "drops the hub when it is told to":
		if cfg.Link.Server, err = b.silence(strings.TrimPrefix(cfg.Link.Server, "mqtt://")); err != nil {
			return err
		}
	}
	version := b.Version
	if b.Mode == "is another version" {
		version = "v9.9.9"
	}
	os.Exit(daemon.Run("edgecore", configs.Logger(os.Stderr, cfg.Log), func(ctx context.Context, p daemon.Program) error {
		return edge.Run(ctx, edge.Options{Config: cfg, Version: version, Log: p.Log, Ready: func(daemon.Addresses) { p.Ready() }})
	}))
	return nil
}

// proxy passes a connection to the hub on, for some time.
func (b behaviour) proxy(to string) (server string, err error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	var mu sync.Mutex
	var conns []net.Conn
	var cut sync.Once
	go func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", to)
			if err != nil {
				_ = in.Close()
				continue
			}
			mu.Lock()
			conns = append(conns, in, out)
			mu.Unlock()
			go func() { _, _ = io.Copy(in, out) }()
			go func() { _, _ = io.Copy(out, in) }()
			cut.Do(func() {
				time.AfterFunc(b.After, func() {
					_ = l.Close()
					mu.Lock()
					defer mu.Unlock()
					for _, c := range conns {
						_ = c.Close()
					}
				})
			})
		}
	}()
	return "mqtt://" + l.Addr().String(), nil
}

// silence passes connections to the hub on, until there is a file "drop" in the data directory: then it cuts them, and keeps all others that come.
func (b behaviour) silence(to string) (server string, err error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	dropped := func() bool { _, err := os.Stat(filepath.Join(dataDir(), "drop")); return err == nil }
	go func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			if dropped() {
				go func() { _, _ = io.Copy(io.Discard, in) }()
				continue
			}
			out, err := net.Dial("tcp", to)
			if err != nil {
				_ = in.Close()
				continue
			}
			go func() { _, _ = io.Copy(in, out) }()
			go func() { _, _ = io.Copy(out, in) }()
			go func() {
				for !dropped() {
					time.Sleep(20 * time.Millisecond)
				}
				_, _ = in.Close(), out.Close()
			}()
		}
	}()
	return "mqtt://" + l.Addr().String(), nil
}
