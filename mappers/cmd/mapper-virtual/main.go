// SPDX-License-Identifier: Apache-2.0

// Command mapper-virtual is the mapper for simulated devices.
package main

import (
	"os"

	"github.com/edgebus/edgebus/mappers/virtual"
)

func main() { os.Exit(virtual.Main(os.Args[1:], os.Stdout, os.Stderr)) }
