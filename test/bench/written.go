// SPDX-License-Identifier: Apache-2.0

//go:build testprogram

package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/edgebus/edgebus/topics"
)

const writtenKeys = 10_000

// measureWritten measures what reaches a disk, the file system's own journal included, for a change of one of many retained messages.
func measureWritten(b benchRun) error {
	disk, err := mountCounted(2 << 30)
	if err != nil {
		fmt.Fprintf(b.w, "Not measured: it mounts a file system, as root (%v).\n", err)
		return nil
	}
	defer disk.unmount()
	fmt.Fprintf(b.w, "Bytes that reach the disk, an ext4 of its own, for a change of one of %d retained messages with values of up to 6 bytes: the file system's journal\n"+
		"and what mosquitto writes again of the others included, until all is on disk. *lost* is what a power cut may take of what was acknowledged.\n\n"+
		"| program | a change | in flight | changes | bytes a change | lost |\n|---|---|---|---|---|---|\n", writtenKeys)
	retained := make([]string, writtenKeys)
	for i := range retained {
		retained[i] = fmt.Sprintf("plant/hall-%02d/press-%04d/temperature", i%20, i/4)
		retained[i] += strconv.Itoa(i % 4)
	}
	reported := reportedKeys(1000, 10)
	for i, key := range reported {
		reported[i] = topics.TopicOf("n1", key)
	}
	for _, c := range []struct {
		program, change string
		topics          []string
		start           func() (*benchProcess, error)
		inflight        []int
		lost            string
	}{
		{"cloudhub", "retained, QoS 1", retained, func() (*benchProcess, error) { return startProgram(filepath.Join(b.bin, "cloudhub"), "") }, []int{1, 64}, "nothing"},
		{"edgecore", "reported", reported, func() (*benchProcess, error) { return shippedCore(b, 1000, 10) }, []int{1, 64}, "nothing"},
		{"mosquitto, `autosave_on_changes true`, `autosave_interval 1`", "retained, QoS 1", retained, func() (*benchProcess, error) {
			return startMosquitto("", "persistence true", "persistence_location {dir}/", "autosave_on_changes true", "autosave_interval 1")
		}, []int{1, 64}, "what came since the last save"},
	} {
		for _, inflight := range c.inflight {
			n, bytes, err := writtenBy(b, disk, c.start, c.topics, inflight)
			if err != nil {
				return fmt.Errorf("%s: %w", c.program, err)
			}
			fmt.Fprintf(b.w, "| %s | %s | %d | %d | %.0f | %s |\n", c.program, c.change, inflight, n, bytes/float64(n), c.lost)
		}
	}
	for _, inflight := range []int{1, reportNodes} {
		n, bytes, err := writtenByReports(b, disk, inflight)
		if err != nil {
			return fmt.Errorf("reports: %w", err)
		}
		fmt.Fprintf(b.w, "| cloudhub | a node's report of a value | %d | %d | %.0f | nothing |\n", inflight, n, bytes/float64(n))
	}
	save, err := savedByMosquitto(b, disk, retained)
	if err != nil {
		return err
	}
	fmt.Fprintf(b.w, "| mosquitto, each 1800 s (its default), a change a second | retained, QoS 1 | 1 | 1800 | %.0f (a save: %.0f) | half an hour |\n", save/1800, save)
	return nil
}

// countedDisk is a file system that counts what is written to it. Programs that are started have their directories on it.
type countedDisk struct {
	base, dir string
	stat      string // of its device
	temporary string // where directories were made before
}

func mountCounted(size int64) (d *countedDisk, err error) {
	d = &countedDisk{temporary: os.Getenv("TMPDIR")}
	if d.base, err = os.MkdirTemp("", "edgebus-bench-"); err != nil {
		return nil, err
	}
	image := filepath.Join(d.base, "image")
	d.dir = filepath.Join(d.base, "mnt")
	if err := os.Mkdir(d.dir, 0o700); err != nil {
		return nil, err
	}
	if err := os.WriteFile(image, nil, 0o600); err != nil {
		return nil, err
	}
	if err := os.Truncate(image, size); err != nil {
		return nil, err
	}
	for _, line := range [][]string{
		{"mkfs.ext4", "-q", "-F", "-E", "lazy_itable_init=0,lazy_journal_init=0", image}, {"mount", "-o", "loop,noatime", image, d.dir},
	} {
		if out, err := exec.Command(line[0], line[1:]...).CombinedOutput(); err != nil {
			_ = os.RemoveAll(d.base)
			return nil, fmt.Errorf("%s: %w: %s", line[0], err, out)
		}
	}
	var s unix.Stat_t
	if err := unix.Stat(d.dir, &s); err != nil {
		return nil, err
	}
	d.stat = fmt.Sprintf("/sys/dev/block/%d:%d/stat", unix.Major(s.Dev), unix.Minor(s.Dev))
	return d, os.Setenv("TMPDIR", d.dir)
}

// onDiskOfItsOwn starts a hub whose files are on a file system that counts; nil: there is none, for it takes root.
func onDiskOfItsOwn(b benchRun) (hub *benchProcess, web string, disk *countedDisk, err error) {
	if disk, err = mountCounted(2 << 30); err != nil {
		disk = nil
	}
	hub, web, err = hubWithAPI(b)
	if disk != nil {
		_ = os.Setenv("TMPDIR", disk.temporary)
		if err != nil {
			disk.unmount()
		}
	}
	return hub, web, disk, err
}

func (d *countedDisk) unmount() {
	if d == nil {
		return
	}
	_ = os.Setenv("TMPDIR", d.temporary)
	_ = exec.Command("umount", d.dir).Run()
	_ = os.RemoveAll(d.base)
}

// written is how many bytes have reached the device, with all that waited.
func (d *countedDisk) written() (float64, error) {
	f, err := os.Open(d.dir)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	if err := unix.Syncfs(int(f.Fd())); err != nil {
		return 0, err
	}
	text, err := os.ReadFile(d.stat)
	if err != nil {
		return 0, err
	}
	const writtenSectors = 6
	sectors, err := strconv.ParseFloat(strings.Fields(string(text))[writtenSectors], 64)
	return sectors * 512, err
}

// during is what reaches the device while fn runs.
func (d *countedDisk) during(fn func() error) (float64, error) {
	before, err := d.written()
	if err != nil {
		return 0, err
	}
	if err := fn(); err != nil {
		return 0, err
	}
	after, err := d.written()
	return after - before, err
}

// filledBroker starts a broker with a retained message of each topic.
func filledBroker(start func() (*benchProcess, error), list []string) (to *benchProcess, p *pump, next func(int) (string, []byte), err error) {
	if to, err = start(); err != nil {
		return nil, nil, nil, err
	}
	if p, err = newPump(to.addr); err != nil {
		to.stop()
		return nil, nil, nil, err
	}
	p.retain = true
	n := 0
	next = func(int) (string, []byte) {
		n++
		return list[n%len(list)], strconv.AppendInt(nil, int64(n), 10)
	}
	if err = writeEveryKey(p, len(list), next); err != nil {
		p.close()
		to.stop()
	}
	return to, p, next, err
}

func writtenBy(b benchRun, d *countedDisk, start func() (*benchProcess, error), list []string, inflight int) (n int, bytes float64, err error) {
	to, p, next, err := filledBroker(start, list)
	if err != nil {
		return 0, 0, err
	}
	defer to.stop()
	defer p.close()
	bytes, err = d.during(func() (err error) {
		n, err = p.run(b.d, inflight, next)
		return err
	})
	return n, bytes, err
}

// savedByMosquitto is what reaches the disk when mosquitto saves.
func savedByMosquitto(b benchRun, d *countedDisk, list []string) (float64, error) {
	to, p, next, err := filledBroker(func() (*benchProcess, error) {
		return startMosquitto("", "persistence true", "persistence_location {dir}/", "autosave_interval 1800")
	}, list)
	if err != nil {
		return 0, err
	}
	defer to.stop()
	defer p.close()
	const saves = 5
	file := filepath.Join(to.dir, "mosquitto.db")
	bytes, err := d.during(func() error {
		for range saves {
			was, _ := os.Stat(file)
			if _, err := p.run(time.Millisecond, 1, next); err != nil {
				return err
			}
			if err := syscall.Kill(to.pid, syscall.SIGUSR1); err != nil {
				return err
			}
			for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
				if now, err := os.Stat(file); err == nil && (was == nil || !os.SameFile(was, now)) {
					break
				}
				if time.Now().After(deadline) {
					return fmt.Errorf("mosquitto saved nothing at %s", file)
				}
			}
		}
		return nil
	})
	return bytes / saves, err
}
