// SPDX-License-Identifier: Apache-2.0

// Command edgeagent is the agent: the program that changes a node's host as the node's spec says.
package main

import (
	"os"

	"github.com/edgebus/edgebus/edge/agent"
)

func main() { os.Exit(agent.Main(os.Args[1:], os.Stdout, os.Stderr)) }
