// SPDX-License-Identifier: Apache-2.0

// Command discovery-mqtt is the discovery handler of edge/discovery/handlers/mqtt as a program of its own.
package main

import (
	"os"

	"github.com/edgebus/edgebus/edge/discovery/handler"
	"github.com/edgebus/edgebus/edge/discovery/handlers/mqtt"
)

func main() { os.Exit(handler.Main(mqtt.Program, os.Args[1:], os.Stdout, os.Stderr)) }
