// SPDX-License-Identifier: Apache-2.0

// Command discovery-bacnet is the discovery handler of edge/discovery/handlers/bacnet as a program of its own.
package main

import (
	"os"

	"github.com/edgebus/edgebus/edge/discovery/handler"
	"github.com/edgebus/edgebus/edge/discovery/handlers/bacnet"
)

func main() { os.Exit(handler.Main(bacnet.Program, os.Args[1:], os.Stdout, os.Stderr)) }
