// SPDX-License-Identifier: Apache-2.0

// Command edgediscovery has discovery handlers look for the devices that a node's Configurations ask for.
package main

import (
	"os"

	"github.com/edgebus/edgebus/edge/discovery"
)

func main() { os.Exit(discovery.Main(os.Args[1:], os.Stdout, os.Stderr)) }
