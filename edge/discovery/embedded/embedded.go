// SPDX-License-Identifier: Apache-2.0

package embedded

import (
	"slices"
	"strings"

	"github.com/edgebus/edgebus/edge/discovery/handler"
)

// programs is filled by the other files of this package, each of which adds its handler in the value of a variable.
var programs []handler.Program

// addProgram returns true so that it can be the value of a variable, and is run without an init function.
func addProgram(p handler.Program) bool {
	programs = append(programs, p)
	return true
}

// Programs are all of them, by name.
func Programs() []handler.Program {
	return slices.SortedFunc(slices.Values(programs), func(a, b handler.Program) int { return strings.Compare(a.Name, b.Name) })
}
