// SPDX-License-Identifier: Apache-2.0

// Command edgebus is the command line for people. Package cloud/cli has its commands.
package main

import (
	"os"

	"github.com/edgebus/edgebus/cloud/cli"
)

func main() { os.Exit(cli.Run(os.Args[1:], os.Stdout, os.Stderr)) }
