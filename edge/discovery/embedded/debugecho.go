// SPDX-License-Identifier: Apache-2.0

//go:build !no_debugecho

package embedded

import "github.com/edgebus/edgebus/edge/discovery/handlers/debugecho"

var _ = addProgram(debugecho.Program)
