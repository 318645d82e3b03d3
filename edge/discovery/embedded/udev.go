// SPDX-License-Identifier: Apache-2.0

//go:build !no_udev

package embedded

import "github.com/edgebus/edgebus/edge/discovery/handlers/udev"

var _ = addProgram(udev.Program)
