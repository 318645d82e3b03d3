// SPDX-License-Identifier: Apache-2.0

// Command discovery-udev is the discovery handler of edge/discovery/handlers/udev as a program of its own.
package main

import (
	"os"

	"github.com/edgebus/edgebus/edge/discovery/handler"
	"github.com/edgebus/edgebus/edge/discovery/handlers/udev"
)

func main() { os.Exit(handler.Main(udev.Program, os.Args[1:], os.Stdout, os.Stderr)) }
