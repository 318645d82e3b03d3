// SPDX-License-Identifier: Apache-2.0

// Package exitcode gives errors the code that the program ends with. The codes are part of the interface of edgebus.
package exitcode
