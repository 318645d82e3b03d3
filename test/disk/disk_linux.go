// SPDX-License-Identifier: Apache-2.0

package disk

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/edgebus/edgebus/test/root"
)

// Disk is a mounted file system of its own.
type Disk struct {
	Dir     string // where it is mounted
	image   string
	mounted bool
}

// New makes a file system of so many megabytes and mounts it until the test ends. Call
// it before what starts the programs that use it, so that they end first.
func New(t testing.TB, megabytes int) *Disk {
	t.Helper()
	root.Require(t)
	for _, program := range []string{"mkfs.ext4", "mount", "umount"} {
		if _, err := exec.LookPath(program); err != nil {
			missingTools(t, program+" is missing; `make needs` installs it")
		}
	}
	base := t.TempDir()
	d := &Disk{Dir: filepath.Join(base, "mnt"), image: filepath.Join(base, "image")}
	if err := shareMounts(base); err != nil {
		missingTools(t, "no directory can be mounted here: "+err.Error())
	}
	t.Cleanup(func() { _ = syscall.Unmount(base, syscall.MNT_DETACH) })
	if err := d.make(int64(megabytes) << 20); err != nil {
		t.Fatal(err)
	}
	if err := d.mount(); err != nil {
		missingTools(t, "no file system can be mounted on a loop device here: "+err.Error())
	}
	t.Cleanup(func() {
		if err := d.unmount(); err != nil {
			t.Error(err)
		}
	})
	return d
}

func (d *Disk) make(size int64) error {
	f, err := os.Create(d.image)
	if err != nil {
		return err
	}
	if err := errors.Join(f.Truncate(size), f.Close(), os.Mkdir(d.Dir, 0o755)); err != nil {
		return err
	}
	return runCommand("mkfs.ext4", "-q", "-F", "-m", "0", "-E", "lazy_itable_init=0,lazy_journal_init=0", d.image)
}

func runCommand(line ...string) error {
	out, err := exec.Command(line[0], line[1:]...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s: %w: %s", strings.Join(line, " "), err, bytes.TrimSpace(out))
	}
	return nil
}

// mount makes it a file system that commits its journal for who syncs, and not every
// five seconds for everybody.
func (d *Disk) mount() error {
	err := runCommand("mount", "-o", "loop,noatime,errors=remount-ro,commit=300", d.image, d.Dir)
	d.mounted = err == nil
	return err
}

// shareMounts makes dir a place whose mounts, and their ends, are seen in namespaces that are made later: `ip netns exec`,
// in another test, copies all mounts into one, and would keep a file system that is unmounted here.
func shareMounts(dir string) error {
	if err := runCommand("mount", "--bind", dir, dir); err != nil {
		return err
	}
	return runCommand("mount", "--make-shared", dir)
}

// unmount waits for the last user of a file to be gone, which a killed process may
// not be at once.
func (d *Disk) unmount() (err error) {
	if !d.mounted {
		return nil
	}
	for range 500 {
		if err = runCommand("umount", d.Dir); err == nil {
			d.mounted = false
			return nil
		}
		time.Sleep(20 * time.Millisecond)
	}
	_ = syscall.Unmount(d.Dir, syscall.MNT_DETACH) // leave nothing behind
	return err
}

// Cut takes the power away: from now on everything fails, and what was not synced
// is lost. Restore brings it back.
func (d *Disk) Cut() error {
	const shutdown, noLogFlush = 0x8004587d, 2 // EXT4_IOC_SHUTDOWN
	dir, err := os.Open(d.Dir)
	if err != nil {
		return err
	}
	defer dir.Close()
	how := uint32(noLogFlush)
	if _, _, errno := syscall.Syscall(syscall.SYS_IOCTL, dir.Fd(), shutdown, uintptr(unsafe.Pointer(&how))); errno != 0 {
		return fmt.Errorf("shutting %s down: %w", d.Dir, errno)
	}
	return nil
}

// Restore mounts the file system anew, which replays its journal. Nobody may use it. Until the namespaces are gone that another program has made of
// all mounts, it is still the one that was cut.
func (d *Disk) Restore() error {
	for range 500 {
		if err := d.unmount(); err != nil {
			return err
		}
		if err := d.mount(); err != nil {
			return err
		}
		f, err := os.CreateTemp(d.Dir, "restored")
		if err == nil {
			return errors.Join(f.Close(), os.Remove(f.Name()))
		}
		if !errors.Is(err, syscall.EIO) {
			return err
		}
		time.Sleep(20 * time.Millisecond)
	}
	return fmt.Errorf("another namespace keeps %s", d.Dir)
}

// ReadOnly makes the file system readable only, under those who use it, or writable again.
func (d *Disk) ReadOnly(yes bool) error {
	if yes {
		// Files that are open for writing keep a plain remount from succeeding; the
		// emergency one is what the kernel does itself when a disk fails.
		dev, err := d.device()
		if err != nil {
			return err
		}
		return os.WriteFile("/sys/fs/ext4/"+dev+"/trigger_fs_error", []byte("a test's"), 0)
	}
	return d.Restore()
}

func (d *Disk) device() (string, error) {
	mounts, err := os.ReadFile("/proc/mounts")
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(mounts)) {
		if fields := strings.Fields(line); len(fields) > 1 && fields[1] == d.Dir {
			return filepath.Base(fields[0]), nil
		}
	}
	return "", fmt.Errorf("%s is not mounted", d.Dir)
}

// Fill leaves no room. Free makes it again.
func (d *Disk) Fill() error {
	f, err := os.Create(d.ballast())
	if err != nil {
		return err
	}
	defer f.Close()
	at := int64(0)
	for size := int64(64 << 20); size >= 512; size /= 2 {
		for err = nil; err == nil || errors.Is(err, syscall.EINTR); {
			if err = syscall.Fallocate(int(f.Fd()), 0, at, size); err == nil {
				at += size
			}
		}
		if !errors.Is(err, syscall.ENOSPC) {
			return err
		}
	}
	if err := f.Sync(); !errors.Is(err, syscall.ENOSPC) {
		return err
	}
	return nil
}

// Free takes back what Fill took.
func (d *Disk) Free() error { return os.Remove(d.ballast()) }

func (d *Disk) ballast() string { return filepath.Join(d.Dir, "ballast") }

// Freeze keeps what is written from being answered, and Thaw answers it; reading goes on. A frozen file system can't be unmounted.
func (d *Disk) Freeze() error {
	const freeze = 0xc0045877 // FIFREEZE
	return d.control(freeze)
}

// Thaw ends what Freeze began.
func (d *Disk) Thaw() error {
	const thaw = 0xc0045878 // FITHAW
	return d.control(thaw)
}

func (d *Disk) control(request uintptr) error {
	dir, err := os.Open(d.Dir)
	if err != nil {
		return err
	}
	defer dir.Close()
	if _, _, errno := syscall.Syscall(syscall.SYS_IOCTL, dir.Fd(), request, 0); errno != 0 {
		return fmt.Errorf("%s: %w", d.Dir, errno)
	}
	return nil
}
