// SPDX-License-Identifier: Apache-2.0

//go:build !no_mdns

package embedded

import "github.com/edgebus/edgebus/edge/discovery/handlers/mdns"

var _ = addProgram(mdns.Program)
