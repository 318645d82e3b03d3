// SPDX-License-Identifier: Apache-2.0

// Command mapper-bacnet is the mapper for BACnet/IP devices.
package main

import (
	"os"

	"github.com/edgebus/edgebus/mappers/bacnet"
)

func main() { os.Exit(bacnet.Main(os.Args[1:], os.Stdout, os.Stderr)) }
