// SPDX-License-Identifier: Apache-2.0

package udev

import (
	"context"
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// ueventGroups are those of the kernel's events, and of udevd's, which follow when the device file is ready.
const ueventGroups = 1 | 2

// uevents sends after each event of the kernel or udevd. The content of the event is ignored: the handler reads sysfs.
func uevents(ctx context.Context) (<-chan struct{}, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_KOBJECT_UEVENT)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: ueventGroups}); err != nil {
		_ = unix.Close(fd)
		return nil, os.NewSyscallError("bind", err)
	}
	return receiveDatagrams(ctx, os.NewFile(uintptr(fd), "uevents")), nil
}

// receiveDatagrams sends after each datagram of a socket, until ctx ends or the socket can't be read. It closes the socket and the channel.
func receiveDatagrams(ctx context.Context, f *os.File) <-chan struct{} {
	events := make(chan struct{}, 1)
	stop := context.AfterFunc(ctx, func() { _ = f.Close() })
	go func() {
		defer close(events)
		defer stop()
		defer func() { _ = f.Close() }()
		buffer := make([]byte, 16<<10)
		for ctx.Err() == nil {
			// ENOBUFS says that events were lost: devices have changed.
			if _, err := f.Read(buffer); err != nil && !errors.Is(err, unix.ENOBUFS) {
				return
			}
			select {
			case events <- struct{}{}:
			default:
			}
		}
	}()
	return events
}
