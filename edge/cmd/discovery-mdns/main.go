// SPDX-License-Identifier: Apache-2.0

// Command discovery-mdns is the discovery handler of edge/discovery/handlers/mdns as a program of its own.
package main

import (
	"os"

	"github.com/edgebus/edgebus/edge/discovery/handler"
	"github.com/edgebus/edgebus/edge/discovery/handlers/mdns"
)

func main() { os.Exit(handler.Main(mdns.Program, os.Args[1:], os.Stdout, os.Stderr)) }
