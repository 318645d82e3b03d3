// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// releaseBuild is one run: the programs of a version, for some architectures.
type releaseBuild struct {
	root    string // of the sources
	out     string // gets what is made
	built   string // gets the programs; empty: with what is made on the way
	version string // v0.9.0
	arches  []string
	time    time.Time         // of the commit: every file has it
	mains   map[string]string // the packages of the programs, by their names
	large   bool              // compression is for who downloads; tests don't wait for it

	noticeOnce sync.Once
	noticeText []byte
	noticeErr  error
}

var versionForm = regexp.MustCompile(`^v\d+\.\d+\.\d+(-[0-9A-Za-z.-]+)?$`)

// prepare finds the programs and the time that all files get.
func (b *releaseBuild) prepare() error {
	if !versionForm.MatchString(b.version) {
		return fmt.Errorf("--version %q: must be like v0.9.0 or v0.9.0-rc.1", b.version)
	}
	b.mains = map[string]string{}
	for _, floor := range []string{"cloud", "edge", "mappers"} {
		files, err := filepath.Glob(filepath.Join(b.root, floor, "cmd", "*", "main.go"))
		if err != nil {
			return err
		}
		for _, file := range files {
			name := filepath.Base(filepath.Dir(file))
			b.mains[name] = "./" + floor + "/cmd/" + name
		}
	}
	if len(b.mains) == 0 {
		return fmt.Errorf("--root %s: has no programs", b.root)
	}
	epoch := os.Getenv("SOURCE_DATE_EPOCH")
	if epoch == "" {
		out, err := b.command("git", "log", "-1", "--format=%ct").Output()
		if err != nil {
			return fmt.Errorf("the time of the commit, which all files get, is not known (%w): set SOURCE_DATE_EPOCH", err)
		}
		epoch = strings.TrimSpace(string(out))
	}
	seconds, err := strconv.ParseInt(epoch, 10, 64)
	if err != nil {
		return fmt.Errorf("SOURCE_DATE_EPOCH: %w", err)
	}
	b.time = time.Unix(seconds, 0).UTC()
	return os.MkdirAll(b.work(), 0o755)
}

// programs are the names of all programs, in order.
func (b *releaseBuild) programs() []string { return slices.Sorted(maps.Keys(b.mains)) }

// mappers are the names of the mappers.
func (b *releaseBuild) mappers() (names []string) {
	for _, name := range b.programs() {
		if strings.HasPrefix(name, "mapper-") {
			names = append(names, name)
		}
	}
	return names
}

// work is the directory of what is made on the way.
func (b *releaseBuild) work() string { return filepath.Join(b.out, ".work") }

// binary is where a program for an architecture is.
func (b *releaseBuild) binary(arch, program string) string {
	return filepath.Join(cmp.Or(b.built, b.work()), arch, program)
}

// compression is one of two.
func (b *releaseBuild) compression(small, fast string) string {
	if b.large {
		return fast
	}
	return small
}

// command runs in the sources.
func (b *releaseBuild) command(name string, args ...string) *exec.Cmd {
	cmd := exec.Command(name, args...)
	cmd.Dir = b.root
	cmd.Stderr = os.Stderr
	return cmd
}

// compile builds programs for an architecture, as make build does; those that are there stay.
func (b *releaseBuild) compile(arch string, programs ...string) error {
	var mains []string
	for _, program := range programs {
		if _, err := os.Stat(b.binary(arch, program)); errors.Is(err, os.ErrNotExist) {
			mains = append(mains, b.mains[program])
		}
	}
	if len(mains) == 0 {
		return nil
	}
	dir := filepath.Dir(b.binary(arch, "x"))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	cmd := b.command("go", append([]string{
		"build", "-tags", "grpcnotrace", "-trimpath", "-buildvcs=auto", "-ldflags", "-s -w -X github.com/edgebus/edgebus/broker/daemon.version=" + b.version, "-o", dir + "/",
	}, mains...)...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH="+arch, "GOARM=7")
	return cmd.Run()
}

// manual makes the man pages of programs and of edgebus.
func (b *releaseBuild) manual(programs ...string) error {
	if err := b.compile(runtime.GOARCH, programs...); err != nil {
		return err
	}
	args := []string{"run", "-ldflags", "-X github.com/edgebus/edgebus/broker/daemon.version=" + b.version, "./scripts/manpages", filepath.Join(b.work(), "man")}
	for _, program := range programs {
		if program != "edgebus" {
			args = append(args, b.binary(runtime.GOARCH, program))
		}
	}
	return b.command("go", args...).Run()
}
