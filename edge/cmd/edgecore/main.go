// SPDX-License-Identifier: Apache-2.0

// Command edgecore is the core: the program that runs on every node.
package main

import (
	"os"

	"github.com/edgebus/edgebus/edge"
)

func main() { os.Exit(edge.Main(os.Args[1:], os.Stdout, os.Stderr)) }
