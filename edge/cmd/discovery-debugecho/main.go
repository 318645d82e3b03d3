// SPDX-License-Identifier: Apache-2.0

// Command discovery-debugecho is the discovery handler of edge/discovery/handlers/debugecho as a program of its own.
package main

import (
	"os"

	"github.com/edgebus/edgebus/edge/discovery/handler"
	"github.com/edgebus/edgebus/edge/discovery/handlers/debugecho"
)

func main() { os.Exit(handler.Main(debugecho.Program, os.Args[1:], os.Stdout, os.Stderr)) }
