//go:build !no_debugecho

package embedded

import "github.com/edgebus/edgebus/edge/discovery/handlers/debugecho"

var _ = addProgram(debugecho.Program)
