// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"encoding/hex"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// ownGroup puts a child into a process group of its own. The kernel sends it SIGTERM
// when the demo ends, even if that is killed.
func ownGroup() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
}

// whoListens names the process that listens on an address, if this user may see it.
func whoListens(address string) string {
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		return ""
	}
	number, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		return ""
	}
	inodes := map[string]bool{}
	for _, table := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		text, _ := os.ReadFile(table)
		for line := range strings.SplitSeq(string(text), "\n") {
			if inode := listeningInode(line, uint16(number)); inode != "" {
				inodes["socket:["+inode+"]"] = true
			}
		}
	}
	sockets, _ := filepath.Glob("/proc/[0-9]*/fd/*")
	for _, fd := range sockets {
		if target, err := os.Readlink(fd); err == nil && inodes[target] {
			pid := strings.Split(fd, "/")[2]
			name, _ := os.ReadFile("/proc/" + pid + "/comm")
			return fmt.Sprintf("%s, pid %s", strings.TrimSpace(string(name)), pid)
		}
	}
	return ""
}

// listeningInode is the inode of a line of the kernel's table of sockets, if it is one
// that listens on port.
func listeningInode(line string, port uint16) string {
	const listen = "0A"
	fields := strings.Fields(line)
	if len(fields) < 10 || fields[3] != listen {
		return ""
	}
	_, at, _ := strings.Cut(fields[1], ":")
	b, err := hex.DecodeString(at)
	if err != nil || len(b) != 2 || uint16(b[0])<<8|uint16(b[1]) != port {
		return ""
	}
	return fields[9]
}
