// SPDX-License-Identifier: Apache-2.0

// Command mapper-opcua is the mapper for OPC UA servers.
package main

import (
	"os"

	"github.com/edgebus/edgebus/mappers/opcua"
)

func main() { os.Exit(opcua.Main(os.Args[1:], os.Stdout, os.Stderr)) }
