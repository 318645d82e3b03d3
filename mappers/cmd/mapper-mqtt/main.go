// SPDX-License-Identifier: Apache-2.0

// Command mapper-mqtt is the mapper for devices that speak MQTT at the node's own broker.
package main

import (
	"os"

	"github.com/edgebus/edgebus/mappers/mqtt"
)

func main() { os.Exit(mqtt.Main(os.Args[1:], os.Stdout, os.Stderr)) }
