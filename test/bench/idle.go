// SPDX-License-Identifier: Apache-2.0

//go:build testprogram

package main

import (
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"time"

	"github.com/edgebus/edgebus/test/simnodes"
)

const idleConnections = 10_000

// measureIdle measures what a connection costs that says nothing: how much a broker's resident memory grows.
func measureIdle(b benchRun) error {
	if err := raiseFileLimit(); err != nil {
		return err
	}
	fmt.Fprintf(b.w, "%d clients connect (MQTT 5, no TLS, one subscription each) and say nothing; the growth of the broker's\n"+
		"resident memory, as the kernel counts it, divided by them.\n\n| broker | bytes a connection |\n|---|---|\n", idleConnections)
	ours, err := idleCost(func() (*benchProcess, error) { return startProgram(filepath.Join(b.bin, "cloudhub"), "") })
	if err != nil {
		return err
	}
	theirs, err := idleCost(func() (*benchProcess, error) { return startMosquitto("") })
	if errors.Is(err, errNoMosquitto) {
		fmt.Fprintf(b.w, "| cloudhub | %.0f |\n\n%v.\n", ours, err)
		return nil
	}
	if err != nil {
		return err
	}
	fmt.Fprintf(b.w, "| cloudhub | %.0f |\n| %s | %.0f |\n\nRatio: %.1f. The aim is less than 16384 bytes. Of ours about 4 kB are the stack of\n"+
		"the goroutine that reads, 3.5 kB the connection, its client, session and subscription, and the rest what the garbage collector\n"+
		"leaves until the heap has doubled.\n", ours, mosquittoVersion(), theirs, ours/theirs)
	return nil
}

// raiseFileLimit lets this process, and those that it starts, have a socket for every connection.
func raiseFileLimit() error { return simnodes.RaiseFileLimit(idleConnections + 1000) }

func idleCost(start func() (*benchProcess, error)) (float64, error) {
	p, err := start()
	if err != nil {
		return 0, err
	}
	defer p.stop()
	time.Sleep(settleTime)
	before, err := residentMemory(p.pid)
	if err != nil {
		return 0, err
	}
	conns, err := connectIdle(p.addr, idleConnections)
	defer closeAll(conns)
	if err != nil {
		return 0, err
	}
	time.Sleep(settleTime)
	after, err := residentMemory(p.pid)
	return (after - before) * 1e6 / idleConnections, err
}

func connectIdle(addr string, n int) (conns []net.Conn, err error) {
	for i := range n {
		c, err := dialClient(addr, fmt.Sprintf("idle-%d", i))
		if err != nil {
			return conns, err
		}
		conns = append(conns, c)
		if err := subscribeClient(c, fmt.Sprintf("idle/%d", i), 1); err != nil {
			return conns, err
		}
	}
	return conns, nil
}

func closeAll(conns []net.Conn) {
	for _, c := range conns {
		_ = c.Close()
	}
}
