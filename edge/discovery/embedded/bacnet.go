// SPDX-License-Identifier: Apache-2.0

//go:build !no_bacnet

package embedded

import "github.com/edgebus/edgebus/edge/discovery/handlers/bacnet"

var _ = addProgram(bacnet.Program)
