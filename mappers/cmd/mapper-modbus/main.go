// SPDX-License-Identifier: Apache-2.0

// Command mapper-modbus is the mapper for Modbus devices.
package main

import (
	"os"

	"github.com/edgebus/edgebus/mappers/modbus"
)

func main() { os.Exit(modbus.Main(os.Args[1:], os.Stdout, os.Stderr)) }
