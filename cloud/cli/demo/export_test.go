// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"context"
)

// ApplySamples creates the demo's samples at a hub.
func ApplySamples(ctx context.Context, hubHTTP, modbus string) error {
	return (&demo{hubHTTP: hubHTTP, modbus: modbus}).apply(ctx)
}
