// SPDX-License-Identifier: Apache-2.0

// Command discovery-onvif is the discovery handler of edge/discovery/handlers/onvif as a program of its own.
package main

import (
	"os"

	"github.com/edgebus/edgebus/edge/discovery/handler"
	"github.com/edgebus/edgebus/edge/discovery/handlers/onvif"
)

func main() { os.Exit(handler.Main(onvif.Program, os.Args[1:], os.Stdout, os.Stderr)) }
