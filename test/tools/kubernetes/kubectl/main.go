// SPDX-License-Identifier: Apache-2.0

// Command kubectl is the stock client of Kubernetes, built from its own module for
// the tests of the hub's API. It adds nothing to it.
package main

import (
	"k8s.io/component-base/cli"
	"k8s.io/kubectl/pkg/cmd"
	"k8s.io/kubectl/pkg/cmd/util"
)

func main() {
	if err := cli.RunNoErrOutput(cmd.NewDefaultKubectlCommand()); err != nil {
		util.CheckErr(err) // prints the error the way that kubectl does, and exits
	}
}
