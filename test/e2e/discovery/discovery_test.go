// SPDX-License-Identifier: Apache-2.0

// Package discovery has scripts of the programs that discover devices: handlers of all kinds, edgediscovery, core and hub. Those with a number
// show what is required of discovery handlers in programs of their own, one requirement each; the others are whole stories.
// test/e2e/README.md says how to read and write them.
package discovery

import (
	"os"
	"testing"

	"github.com/edgebus/edgebus/test/harness"
)

func TestScripts(t *testing.T) {
	t.Parallel()
	for _, file := range []string{"/usr/lib/python3/dist-packages/grpc", "/usr/lib/python3/dist-packages/google/protobuf", "/usr/bin/protoc", "/usr/bin/grpc_python_plugin"} {
		if _, err := os.Stat(file); err != nil && os.Getenv("CI") != "" {
			t.Fatalf("%v; `make needs` installs it", err)
		} else if err != nil {
			t.Skipf("%v; `make needs` installs it", err)
		}
	}
	harness.Scripts(t, "testdata")
}
