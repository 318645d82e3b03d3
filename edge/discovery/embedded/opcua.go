// SPDX-License-Identifier: Apache-2.0

//go:build !no_opcua

package embedded

import "github.com/edgebus/edgebus/edge/discovery/handlers/opcua"

var _ = addProgram(opcua.Program)
