// SPDX-License-Identifier: Apache-2.0

// Command mapper-dmi drives devices through mappers that were written for KubeEdge.
package main

import (
	"os"

	"github.com/edgebus/edgebus/mappers/dmi"
)

func main() { os.Exit(dmi.Main(os.Args[1:], os.Stdout, os.Stderr)) }
