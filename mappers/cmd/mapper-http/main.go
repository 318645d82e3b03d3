// SPDX-License-Identifier: Apache-2.0

// Command mapper-http is the mapper for devices with an HTTP interface.
package main

import (
	"os"

	"github.com/edgebus/edgebus/mappers/http"
)

func main() { os.Exit(http.Main(os.Args[1:], os.Stdout, os.Stderr)) }
