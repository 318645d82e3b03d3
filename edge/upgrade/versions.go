// SPDX-License-Identifier: Apache-2.0

package upgrade

import (
	"context"
	"crypto/sha256"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/mod/semver"

	"github.com/edgebus/edgebus/broker/daemon/datadir"
	"github.com/edgebus/edgebus/topics/resource"
)

// versionDir are the directory of Edgebus' programs on a node:
//
//	versions/v1.2.0/edgecore, edgeagent, …   programs, manifest.json and its signature manifest.json.minisig
//	versions/.v1.3.0.new                     what is being fetched
//	current -> versions/v1.2.0               the version of the core that runs, or is on trial
//	agent -> versions/v1.2.0                 that of the agent
//
// A version's directory has its name only when all of it is there and synced, and a link is replaced by a rename.
type versionDir struct{ dir string }

// Links of the directory.
const (
	linkCurrent = "current"
	linkAgent   = "agent"
)

// Programs.
const (
	programCore  = "edgecore"
	programAgent = "edgeagent"
)

func (v versionDir) path(version string) string { return filepath.Join(v.dir, "versions", version) }

func (v versionDir) staging(version string) string {
	return filepath.Join(v.dir, "versions", "."+version+".new")
}

// linked is the version to which a link leads; empty: there is none.
func (v versionDir) linked(link string) string {
	target, err := os.Readlink(filepath.Join(v.dir, link))
	if err != nil {
		return ""
	}
	return filepath.Base(target)
}

// link makes a link lead to a version, durably.
func (v versionDir) link(link, version string) error {
	if v.linked(link) == version {
		return nil
	}
	fresh := filepath.Join(v.dir, "."+link+".new")
	if err := os.Remove(fresh); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if err := os.Symlink(filepath.Join("versions", version), fresh); err != nil {
		return err
	}
	if err := os.Rename(fresh, filepath.Join(v.dir, link)); err != nil {
		return err
	}
	return datadir.SyncDir(v.dir)
}

// has says whether a version's program is there.
func (v versionDir) has(version, program string) bool {
	info, err := os.Stat(filepath.Join(v.path(version), program))
	return err == nil && info.Mode().IsRegular() && version != ""
}

// prune removes all versions except those to keep, and what is left of fetching others.
func (v versionDir) prune(keep ...string) error {
	entries, err := os.ReadDir(filepath.Join(v.dir, "versions"))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	for _, e := range entries {
		if !slices.Contains(keep, e.Name()) {
			err = errors.Join(err, os.RemoveAll(filepath.Join(v.dir, "versions", e.Name())))
		}
	}
	return err
}

// install gives a staged version its name.
func (v versionDir) install(version string) error {
	staging := v.staging(version)
	if err := datadir.SyncDir(staging); err != nil {
		return err
	}
	path := v.path(version)
	err := os.Rename(staging, path)
	if errors.Is(err, os.ErrExist) || errors.Is(err, syscall.ENOTEMPTY) { // what it replaces may be what the agent is started from
		err = errors.Join(exchangeFiles(staging, path), datadir.SyncDir(filepath.Dir(path)), os.RemoveAll(staging))
	}
	return errors.Join(err, datadir.SyncDir(filepath.Dir(path)))
}

// writeVerified writes a content to a new file, durably, and checks its size and digest meanwhile.
func writeVerified(path string, mode os.FileMode, from io.Reader, size int64, digest string) (err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, mode)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if err := checkContent(filepath.Base(path), from, f, size, digest); err != nil {
		return err
	}
	return errors.Join(f.Chmod(mode), f.Sync())
}

// checkContent compares the size and the digest of a content, which it writes to a file meanwhile; nil: to none.
func checkContent(name string, from io.Reader, to *os.File, size int64, digest string) error {
	h := sha256.New()
	out := io.Writer(h)
	if to != nil {
		out = io.MultiWriter(to, h)
	}
	n, err := io.Copy(out, io.LimitReader(from, size+1))
	switch found := resource.FormatDigest([sha256.Size]byte(h.Sum(nil))); {
	case err != nil:
		return err
	case n > size:
		return failf(resource.UpgradeFailedArtifact, "%s has more than the %d bytes that the manifest says", name, size)
	case n < size:
		return failf(resource.UpgradeFailedArtifact, "%s has %d bytes, and the manifest says %d", name, n, size)
	case found != digest:
		return failf(resource.UpgradeFailedArtifact, "%s has the digest %s, and the manifest says %s", name, found, digest)
	}
	return nil
}

// elfHeaders are the ELF headers of programs, by GOARCH.
var elfHeaders = map[string]struct {
	machine elf.Machine
	class   elf.Class
	order   elf.Data
}{
	"amd64":   {elf.EM_X86_64, elf.ELFCLASS64, elf.ELFDATA2LSB},
	"arm64":   {elf.EM_AARCH64, elf.ELFCLASS64, elf.ELFDATA2LSB},
	"arm":     {elf.EM_ARM, elf.ELFCLASS32, elf.ELFDATA2LSB},
	"386":     {elf.EM_386, elf.ELFCLASS32, elf.ELFDATA2LSB},
	"riscv64": {elf.EM_RISCV, elf.ELFCLASS64, elf.ELFDATA2LSB},
	"ppc64le": {elf.EM_PPC64, elf.ELFCLASS64, elf.ELFDATA2LSB},
	"s390x":   {elf.EM_S390, elf.ELFCLASS64, elf.ELFDATA2MSB},
}

// checkProgram says why this host can't run a program.
func checkProgram(path string) error {
	name := filepath.Base(path)
	f, err := elf.Open(path)
	if err != nil {
		return failf(resource.UpgradeFailedArtifact, "%s is no program, or not whole: %v", name, err)
	}
	defer f.Close()
	if f.Type != elf.ET_EXEC && f.Type != elf.ET_DYN {
		return failf(resource.UpgradeFailedArtifact, "%s is no program: its type is %s", name, f.Type)
	}
	info, err := os.Stat(path)
	if err != nil {
		return toFailure(context.Background(), resource.UpgradeFailedDisk, err)
	}
	for _, p := range f.Progs {
		if p.Off+p.Filesz > uint64(info.Size()) || p.Off+p.Filesz < p.Off {
			return failf(resource.UpgradeFailedArtifact, "%s is not whole: by its ELF header it has more than its %d bytes", name, info.Size())
		}
	}
	own, ok := elfHeaders[runtime.GOARCH]
	if ok && (f.Machine != own.machine || f.Class != own.class || f.Data != own.order) {
		return failf(resource.UpgradeFailedArchitecture, "%s is for %s (%s), and this host is %s", name, f.Machine, f.Class, runtime.GOARCH)
	}
	return nil
}

// isOlder says whether a version comes before another by Semantic Versioning. Nothing is known of one that isn't of that form: then it does not.
func isOlder(a, b string) bool {
	a, b = "v"+strings.TrimPrefix(a, "v"), "v"+strings.TrimPrefix(b, "v")
	return semver.IsValid(a) && semver.IsValid(b) && semver.Compare(a, b) < 0
}

// freeSpace is how many bytes may be written on the file system of a directory.
func freeSpace(dir string) (int64, error) {
	for {
		n, err := freeBytes(dir)
		if !errors.Is(err, os.ErrNotExist) || dir == filepath.Dir(dir) {
			if err != nil {
				return 0, fmt.Errorf("%s: %w", dir, err)
			}
			return n, nil
		}
		dir = filepath.Dir(dir)
	}
}
