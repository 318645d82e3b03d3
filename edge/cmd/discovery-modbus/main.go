// SPDX-License-Identifier: Apache-2.0

// Command discovery-modbus is the discovery handler of edge/discovery/handlers/modbus as a program of its own.
package main

import (
	"os"

	"github.com/edgebus/edgebus/edge/discovery/handler"
	"github.com/edgebus/edgebus/edge/discovery/handlers/modbus"
)

func main() { os.Exit(handler.Main(modbus.Program, os.Args[1:], os.Stdout, os.Stderr)) }
