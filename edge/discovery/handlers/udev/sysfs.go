// SPDX-License-Identifier: Apache-2.0

package udev

import (
	"bufio"
	"bytes"
	"cmp"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// sysfs is a host's sysfs and the database of its udevd.
type sysfs struct{ sys, db string }

// maxAttribute bounds what is read of an attribute, in bytes: those of sysfs are a page at most.
const maxAttribute = 4 << 10

// devices are all of the host, in the order of their devpaths.
func (t sysfs) devices() ([]*device, error) {
	root, err := filepath.EvalSymlinks(t.sys)
	if err != nil {
		return nil, err
	}
	seen := map[string]*device{}
	for _, glob := range []string{"class/*/*", "bus/*/devices/*"} {
		links, err := filepath.Glob(filepath.Join(root, glob))
		if err != nil {
			return nil, err
		}
		for _, link := range links {
			path, err := filepath.EvalSymlinks(link)
			if err != nil {
				continue // it has gone
			}
			if devpath, ok := strings.CutPrefix(path, root); ok && strings.HasPrefix(devpath, "/devices/") && seen[devpath] == nil {
				seen[devpath] = &device{tree: sysfs{root, t.db}, devpath: devpath}
			}
		}
	}
	return slices.SortedFunc(maps.Values(seen), func(a, b *device) int { return cmp.Compare(a.devpath, b.devpath) }), nil
}

// device is a device of sysfs. Its attributes and properties are read when a rule names them.
type device struct {
	tree       sysfs
	devpath    string // below /sys: /devices/…
	properties map[string]string
	dbTags     []string
	read       bool
}

func (d *device) path(name string) string { return filepath.Join(d.tree.sys, d.devpath, name) }

// parent is the device above; nil: there is none.
func (d *device) parent() *device {
	for up := filepath.Dir(d.devpath); strings.HasPrefix(up, "/devices/"); up = filepath.Dir(up) {
		p := &device{tree: d.tree, devpath: up}
		if _, err := os.Stat(p.path("uevent")); err == nil {
			return p
		}
	}
	return nil
}

// value is what the device has under a key of a rule.
func (d *device) value(key, name string) (string, bool) {
	switch key {
	case "DEVPATH":
		return d.devpath, true
	case "KERNEL":
		return strings.ReplaceAll(filepath.Base(d.devpath), "!", "/"), true
	case "SUBSYSTEM", "DRIVER":
		target, err := os.Readlink(d.path(strings.ToLower(key)))
		return filepath.Base(target), err == nil
	case "ENV":
		return d.property(name)
	case "ATTR":
		return d.attribute(name)
	}
	return "", false
}

// attribute is the content of a file of the device, or the name of what a link points to.
func (d *device) attribute(name string) (string, bool) {
	if !filepath.IsLocal(name) {
		return "", false
	}
	path := d.path(name)
	info, err := os.Lstat(path)
	switch {
	case err != nil:
		return "", false
	case info.Mode().Type() == os.ModeSymlink:
		target, err := os.Readlink(path)
		return filepath.Base(target), err == nil
	case !info.Mode().IsRegular() || info.Mode().Perm()&0o444 == 0:
		return "", false
	}
	text, err := readFile(path, maxAttribute)
	return strings.TrimRight(string(text), " \t\r\n\x00"), err == nil
}

func readFile(path string, limit int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	return io.ReadAll(io.LimitReader(f, limit))
}

// property is one of the kernel's or of udevd's.
func (d *device) property(name string) (string, bool) {
	d.readProperties()
	value, ok := d.properties[name]
	return value, ok
}

func (d *device) tags() []string {
	d.readProperties()
	return d.dbTags
}

// readProperties reads what the kernel says of the device, and what udevd has noted of it.
func (d *device) readProperties() {
	if d.read {
		return
	}
	d.read, d.properties = true, map[string]string{"DEVPATH": d.devpath}
	text, _ := readFile(d.path("uevent"), maxAttribute) // not every one may be read
	for line := range bytes.Lines(text) {
		if key, value, ok := strings.Cut(strings.TrimRight(string(line), "\r\n"), "="); ok {
			d.properties[key] = value
		}
	}
	if subsystem, ok := d.value("SUBSYSTEM", ""); ok {
		d.properties["SUBSYSTEM"] = subsystem
	}
	if name, ok := d.properties["DEVNAME"]; ok && !strings.HasPrefix(name, "/") {
		d.properties["DEVNAME"] = "/dev/" + name
	}
	f, err := os.Open(filepath.Join(d.tree.db, d.record()))
	if err != nil {
		return
	}
	defer func() { _ = f.Close() }()
	for lines := bufio.NewScanner(io.LimitReader(f, 1<<20)); lines.Scan(); {
		kind, text, _ := strings.Cut(lines.Text(), ":")
		switch kind {
		case "E":
			if key, value, ok := strings.Cut(text, "="); ok {
				d.properties[key] = value
			}
		case "G":
			d.dbTags = append(d.dbTags, text)
		}
	}
	if len(d.dbTags) > 0 {
		d.properties["TAGS"] = ":" + strings.Join(d.dbTags, ":") + ":"
	}
}

// record is the name of the device's file in udevd's database.
func (d *device) record() string {
	if major, minor := d.properties["MAJOR"], d.properties["MINOR"]; major != "" && filepath.IsLocal(major+minor) {
		kind := "c"
		if d.properties["SUBSYSTEM"] == "block" {
			kind = "b"
		}
		return kind + major + ":" + minor
	}
	if index := d.properties["IFINDEX"]; index != "" && filepath.IsLocal(index) {
		return "n" + index
	}
	return "+" + d.properties["SUBSYSTEM"] + ":" + filepath.Base(d.devpath)
}
