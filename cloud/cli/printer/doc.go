// SPDX-License-Identifier: Apache-2.0

// Package printer prints what commands have to say: tables with aligned columns (table.go; the hub decides on columns), objects as YAML or
// JSON, and short texts (document.go), twins (twin.go).
//
// It never writes a control character of a value to a terminal, and asks nobody anything.
package printer
