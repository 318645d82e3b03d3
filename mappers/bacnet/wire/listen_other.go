// SPDX-License-Identifier: Apache-2.0

//go:build !unix

package wire

import (
	"errors"
	"net"
)

func listenOwn(local *net.UDPAddr) (*net.UDPConn, error) { return net.ListenUDP("udp4", local) }

// listenBroadcast is not to be had: this system has no sockets that get broadcasts only.
func listenBroadcast(string) (*net.UDPConn, error) { return nil, errors.ErrUnsupported }
