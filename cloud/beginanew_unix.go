// SPDX-License-Identifier: Apache-2.0

//go:build unix

package cloud

import (
	"os"
	"syscall"
)

// beginAnew has the process begin anew, as the same one to whoever watches over it. All its connections end with that, and nothing more is answered on them.
func beginAnew() {
	path, err := os.Executable()
	if err == nil {
		err = syscall.Exec(path, os.Args, os.Environ()) //nolint:gosec // G204: it is this program
	}
	_, _ = os.Stderr.WriteString("cloudhub can't begin anew: " + err.Error() + "\n")
	os.Exit(1)
}
