// SPDX-License-Identifier: Apache-2.0

// Command discovery-opcua is the discovery handler of edge/discovery/handlers/opcua as a program of its own.
package main

import (
	"os"

	"github.com/edgebus/edgebus/edge/discovery/handler"
	"github.com/edgebus/edgebus/edge/discovery/handlers/opcua"
)

func main() { os.Exit(handler.Main(opcua.Program, os.Args[1:], os.Stdout, os.Stderr)) }
