// SPDX-License-Identifier: Apache-2.0

// Package debugecho is the discovery handler debugEcho, as Akri has it: it finds what the Configuration tells it, to try
// Configurations without any device. It never looks at the host, but for one file that takes all its devices away.
package debugecho

import (
	"bytes"
	"cmp"
	"context"
	"os"
	"time"

	"github.com/edgebus/edgebus/edge/discovery/handler"
)

// The environment variables of Akri's handler, and one for the file that it reads.
const (
	sharedVariable       = "DEBUG_ECHO_INSTANCES_SHARED"
	availabilityVariable = "DEBUG_ECHO_AVAILABILITY_FILE"
	availabilityFile     = "/tmp/debug-echo-availability.txt"
)

// Program is the handler.
var Program = handler.Program{
	Name: "debugEcho", Short: "Finds the devices that a Configuration lists, to try Configurations with",
	Shared: os.Getenv(sharedVariable) != "false",
	New: func(handler.Env) handler.Handler {
		return echoHandler{file: cmp.Or(os.Getenv(availabilityVariable), availabilityFile), pause: time.Second}
	},
}

// echoHandler finds devices until file has the text OFFLINE.
type echoHandler struct {
	file  string
	pause time.Duration
}

// Discover implements handler.Handler.
func (e echoHandler) Discover(ctx context.Context, details string, _ map[string][]byte, found func([]handler.Device)) error {
	var want struct {
		Descriptions []string `yaml:"descriptions"`
	}
	if err := handler.Details(details, &want); err != nil {
		return err
	}
	return handler.RunEvery(ctx, e.pause, func() error {
		text, _ := os.ReadFile(e.file) // mostly there is none
		if string(bytes.TrimSpace(text)) == "OFFLINE" {
			found(nil)
			return nil
		}
		var devices []handler.Device
		for _, d := range want.Descriptions {
			devices = append(devices, handler.Device{ID: d, Properties: map[string]string{"DEBUG_ECHO_DESCRIPTION": d}})
		}
		found(devices)
		return nil
	})
}
