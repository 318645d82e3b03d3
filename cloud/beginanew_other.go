// SPDX-License-Identifier: Apache-2.0

//go:build !unix

package cloud

import "os"

// beginAnew ends the process, for whoever watches over it to start it again.
func beginAnew() { os.Exit(1) }
