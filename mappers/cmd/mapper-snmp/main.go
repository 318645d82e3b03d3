// SPDX-License-Identifier: Apache-2.0

// Command mapper-snmp is the mapper for devices with an SNMP agent.
package main

import (
	"os"

	"github.com/edgebus/edgebus/mappers/snmp"
)

func main() { os.Exit(snmp.Main(os.Args[1:], os.Stdout, os.Stderr)) }
