// SPDX-License-Identifier: Apache-2.0

// Package sysinfo reads what a host says of itself: processor, operating system, ids, TPM measurements. It only reads files; it
// never runs a program and never fails: what a host doesn't have is empty.
package sysinfo

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/edgebus/edgebus/topics/resource"
)

// Read describes the host whose root directory is root.
func Read(root string) *resource.SystemInfo {
	at := func(path string) string { return filepath.Join(root, path) }
	return &resource.SystemInfo{
		Architecture: runtime.GOARCH, CPUs: runtime.NumCPU(), OperatingSystem: operatingSystem(root),
		Kernel: readLine(at("/proc/sys/kernel/osrelease")), Hostname: readLine(at("/proc/sys/kernel/hostname")),
		MachineID: readLine(at("/etc/machine-id")), BootID: readLine(at("/proc/sys/kernel/random/boot_id")),
		Measurements: readMeasurements(at("/sys/class/tpm/tpm0/pcr-sha256")),
	}
}

// operatingSystem is the system's name as os-release has it.
func operatingSystem(root string) string {
	for _, path := range []string{"/etc/os-release", "/usr/lib/os-release"} {
		text, err := os.ReadFile(filepath.Join(root, path))
		if err != nil {
			continue
		}
		if name := releaseField(string(text), "PRETTY_NAME"); name != "" {
			return name
		}
	}
	return runtime.GOOS
}

// releaseField is the value of a field of an os-release file, of which the last one counts. Values are quoted as in a shell.
func releaseField(text, field string) (value string) {
	for l := range strings.Lines(text) {
		if v, ok := strings.CutPrefix(strings.TrimSpace(l), field+"="); ok {
			value = unquoteValue(v)
		}
	}
	return strings.ToValidUTF8(value, "")
}

func unquoteValue(v string) string {
	if len(v) < 2 || (v[0] != '"' && v[0] != '\'') || v[len(v)-1] != v[0] {
		return v
	}
	quote := v[0]
	v = v[1 : len(v)-1]
	if quote == '"' {
		v = strings.NewReplacer(`\\`, `\`, `\"`, `"`, `\$`, `$`, "\\`", "`").Replace(v)
	}
	return v
}

// pcrCount is how many platform configuration registers a TPM has.
const pcrCount = 24

// readMeasurements are the registers of a TPM. One that is all zeros or all ones has never been extended, and is left out.
func readMeasurements(dir string) map[string]string {
	var m map[string]string
	for i := range pcrCount {
		value := strings.ToLower(readLine(filepath.Join(dir, fmt.Sprint(i))))
		if strings.Trim(value, "0") == "" || strings.Trim(value, "f") == "" {
			continue
		}
		if m == nil {
			m = map[string]string{}
		}
		m[fmt.Sprintf("pcr%02d", i)] = value
	}
	return m
}

// readLine is a one-line file; empty if there is none.
func readLine(path string) string {
	text, _ := os.ReadFile(path) // not every host has it
	return strings.ToValidUTF8(strings.TrimSpace(string(text)), "")
}
