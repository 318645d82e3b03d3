// SPDX-License-Identifier: Apache-2.0

//go:build !no_modbus

package embedded

import "github.com/edgebus/edgebus/edge/discovery/handlers/modbus"

var _ = addProgram(modbus.Program)
