package edge

import (
	"os"
	"runtime"
	"strings"

	"github.com/edgebus/edgebus/topics/resource"
)

// report is what the node says of itself. It changes with the machine and the
// program, not with every start: an unchanged status is not sent again.
func report(version string) resource.NodeReport {
	return resource.NodeReport{Version: version, SystemInfo: &resource.SystemInfo{
		Architecture: runtime.GOARCH, OperatingSystem: operatingSystem(), CPUs: runtime.NumCPU(),
		MachineID: line("/etc/machine-id"), BootID: line("/proc/sys/kernel/random/boot_id"),
	}}
}

func operatingSystem() string {
	text, err := os.ReadFile("/etc/os-release")
	if err != nil {
		return runtime.GOOS
	}
	for l := range strings.Lines(string(text)) {
		if name, ok := strings.CutPrefix(l, "PRETTY_NAME="); ok {
			return strings.Trim(strings.TrimSpace(name), `"`)
		}
	}
	return runtime.GOOS
}

// line is a one-line file; empty if there is none.
func line(path string) string {
	text, _ := os.ReadFile(path) // not every system has it
	return strings.TrimSpace(string(text))
}
