// SPDX-License-Identifier: Apache-2.0

package limits

import (
	"io/fs"
	"math"
	"os"
	"path"
	"runtime/debug"
	"strconv"
	"strings"
)

// unknownMemory is what a host is assumed to have that doesn't say.
const unknownMemory = 1 << 30

// MemoryLimit is how many bytes of memory this process may use: the least of the host's physical
// memory, the limits of its control groups (version 1 or 2) and GOMEMLIMIT.
func MemoryLimit() int64 { return memoryLimit(os.DirFS("/"), debug.SetMemoryLimit(-1)) }

// MemoryShare is a part of MemoryLimit in bytes, at least least and at most most.
func MemoryShare(part float64, least, most int64) int64 {
	return min(max(int64(part*float64(MemoryLimit())), least), most)
}

func memoryLimit(root fs.FS, goLimit int64) int64 {
	bytes := goLimit
	if p := physicalMemory(root); p > 0 {
		bytes = min(bytes, p)
	}
	for _, group := range controlGroups(root) {
		bytes = min(bytes, controlGroupLimit(root, group))
	}
	if bytes == math.MaxInt64 {
		return unknownMemory
	}
	return bytes
}

// physicalMemory is the memory of the host; 0: it doesn't say.
func physicalMemory(root fs.FS) int64 {
	text, _ := fs.ReadFile(root, "proc/meminfo")
	for line := range strings.Lines(string(text)) {
		if fields := strings.Fields(line); len(fields) > 1 && fields[0] == "MemTotal:" {
			kib, _ := strconv.ParseInt(fields[1], 10, 64)
			return kib << 10
		}
	}
	return 0
}

// controlGroup is a control group: where its hierarchy is mounted, and its path there.
type controlGroup struct {
	mount, path string
	files       []string // that hold limits
}

var (
	cgroupV1Files = []string{"memory.limit_in_bytes"}
	cgroupV2Files = []string{"memory.max", "memory.high"}
)

// controlGroups are those of the process. In a container the path may be the host's, which isn't
// there; then the container's own group is at the mount point, where controlGroupLimit ends.
func controlGroups(root fs.FS) (list []controlGroup) {
	text, _ := fs.ReadFile(root, "proc/self/cgroup")
	for line := range strings.Lines(string(text)) {
		number, rest, _ := strings.Cut(strings.TrimSpace(line), ":")
		controllers, name, _ := strings.Cut(rest, ":")
		for c := range strings.SplitSeq(controllers, ",") {
			switch {
			case c == "memory":
				list = append(list, controlGroup{"sys/fs/cgroup/memory", name, cgroupV1Files})
			case number == "0" && controllers == "":
				list = append(list, controlGroup{"sys/fs/cgroup", name, cgroupV2Files}, controlGroup{"sys/fs/cgroup/unified", name, cgroupV2Files})
			}
		}
	}
	return list
}

// controlGroupLimit is the least limit of a group and of those that it is in.
func controlGroupLimit(root fs.FS, g controlGroup) int64 {
	bytes := int64(math.MaxInt64)
	for at := path.Join("/", g.path); ; at = path.Dir(at) {
		for _, file := range g.files {
			text, _ := fs.ReadFile(root, path.Join(g.mount, at, file))
			if n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64); err == nil && n > 0 {
				bytes = min(bytes, n) // "max" is no number, and no limit
			}
		}
		if at == "/" {
			return bytes
		}
	}
}
