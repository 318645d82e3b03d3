// SPDX-License-Identifier: Apache-2.0

//go:build !no_onvif

package embedded

import "github.com/edgebus/edgebus/edge/discovery/handlers/onvif"

var _ = addProgram(onvif.Program)
