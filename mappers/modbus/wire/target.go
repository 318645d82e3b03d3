// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"time"

	"go.bug.st/serial"
)

// Target is where devices are: behind a host, or on a serial line.
type Target struct {
	scheme, address string
	Line            Line // of a serial line
}

// Line is how a serial line is set.
type Line struct {
	Baud     int
	Parity   byte // N, E or O
	StopBits int
}

// DefaultLine is what most devices come with.
var DefaultLine = Line{Baud: 9600, Parity: 'N', StopBits: 1}

func (l Line) String() string { return fmt.Sprintf("%d baud 8%c%d", l.Baud, l.Parity, l.StopBits) }

// The schemes of targets.
const (
	schemeTCP        = "tcp"
	schemeRTUOverTCP = "rtuovertcp"
	schemeRTU        = "rtu"
)

// ParseTarget reads an address: tcp://host:port, host:port, rtuovertcp://host:port, or rtu:///dev/ttyUSB0. The port is 502 where there is
// none.
func ParseTarget(text string) (Target, error) {
	scheme, rest, ok := strings.Cut(text, "://")
	if !ok {
		scheme, rest = schemeTCP, text
		if strings.HasPrefix(text, "/dev/") {
			scheme = schemeRTU
		}
	}
	switch scheme = strings.ToLower(scheme); scheme {
	case schemeRTU, "serial":
		if rest == "" || strings.ContainsAny(rest, " ?") {
			return Target{}, fmt.Errorf("%q is no address of a serial line, such as rtu:///dev/ttyUSB0", text)
		}
		return Target{schemeRTU, rest, DefaultLine}, nil
	case schemeTCP, schemeRTUOverTCP:
	default:
		return Target{}, fmt.Errorf("%q: %s is not supported; use tcp://host:port, rtuovertcp://host:port or rtu:///dev/ttyUSB0", text, scheme)
	}
	host, port, err := net.SplitHostPort(rest)
	if err != nil {
		host, port = strings.Trim(rest, "[]"), "502"
	}
	if n, err := strconv.Atoi(port); err != nil || n < 0 || n > 65535 || host == "" || strings.ContainsAny(host, "/ ") {
		return Target{}, fmt.Errorf("%q is no address of a host, such as tcp://10.0.0.5:502", text)
	}
	return Target{scheme: scheme, address: net.JoinHostPort(host, port)}, nil
}

func (t Target) String() string { return t.scheme + "://" + t.address }

// Serial is whether it is a serial line.
func (t Target) Serial() bool { return t.scheme == schemeRTU }

// ZeroPort is whether it is a host with port 0, which is none that can be connected to.
func (t Target) ZeroPort() bool { return !t.Serial() && strings.HasSuffix(t.address, ":0") }

// open connects, without any words about where.
func (t Target) open(ctx context.Context, timeout time.Duration) (io.ReadWriteCloser, error) {
	if !t.Serial() {
		return (&net.Dialer{Timeout: timeout}).DialContext(ctx, "tcp", t.address)
	}
	parity := map[byte]serial.Parity{'E': serial.EvenParity, 'O': serial.OddParity}[t.Line.Parity]
	stop := serial.OneStopBit
	if t.Line.StopBits == 2 {
		stop = serial.TwoStopBits
	}
	lock, err := lockLine(t.address)
	if err != nil {
		return nil, err
	}
	port, err := serial.Open(t.address, &serial.Mode{BaudRate: t.Line.Baud, DataBits: 8, Parity: parity, StopBits: stop})
	if err != nil {
		_ = lock.Close()
	}
	var failed *serial.PortError
	switch {
	case errors.As(err, &failed) && failed.Code() == serial.PermissionDenied:
		return nil, errors.New("permission denied: the mapper's user must be in the group of the file, which is often dialout")
	case errors.As(err, &failed) && failed.Code() == serial.PortBusy:
		return nil, errLineTaken
	case err != nil:
		return nil, err
	}
	return &lockedLine{port, lock}, nil
}

// errLineTaken is of a serial line that somebody has open: of two that read from it each gets a part of what comes.
var errLineTaken = errors.New("it is open already: in another program, such as a mapper, or under another name of the line in a Device")

// lockedLine is a serial line that no other program of ours has open. The port's own mark keeps root from nothing.
type lockedLine struct {
	serial.Port
	lock io.Closer
}

func (l *lockedLine) Close() error {
	return errors.Join(l.Port.Close(), l.lock.Close())
}

// silence is the time that separates frames on the target.
func (t Target) silence() time.Duration {
	switch {
	case t.scheme == schemeTCP:
		return 0
	case !t.Serial():
		return 2 * time.Millisecond // the gateway sees to the line's
	}
	const bits = 11 // of a character: start, data, parity, stop
	gap := time.Duration(3.5 * bits * float64(time.Second) / float64(t.Line.Baud))
	return max(gap, 1750*time.Microsecond)
}

// sending is how long n bytes are on the line.
func (t Target) sending(n int) time.Duration {
	if !t.Serial() {
		return 0
	}
	return time.Duration(n) * 11 * time.Second / time.Duration(t.Line.Baud)
}

func (t Target) framing(size func([]byte) int) framing {
	if t.scheme == schemeTCP {
		return mbap{}
	}
	return rtu{size}
}
