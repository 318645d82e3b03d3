// SPDX-License-Identifier: Apache-2.0

// Command cloudhub is the hub: the cloud's side of the bus.
package main

import (
	"os"

	"github.com/edgebus/edgebus/cloud"
)

func main() { os.Exit(cloud.Main(os.Args[1:], os.Stdout, os.Stderr)) }
