// SPDX-License-Identifier: Apache-2.0

//go:build !no_mqtt

package embedded

import "github.com/edgebus/edgebus/edge/discovery/handlers/mqtt"

var _ = addProgram(mqtt.Program)
