//go:build !no_opcua

package embedded

import "github.com/edgebus/edgebus/edge/discovery/handlers/opcua"

var _ = addProgram(opcua.Program)
