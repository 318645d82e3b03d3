// Package printer prints what commands have to say: tables with aligned columns, objects as YAML or JSON, and short texts.
//
// It never writes a control character of a value to a terminal, and asks nobody anything.
//
// # Files, in reading order
//
//	table.go      rows with aligned columns; the hub's Tables
//	document.go   YAML and JSON, and the flag --output
//	twin.go       a device's twin as a table
//	text.go       ages, plurals, names of objects, warnings
//
// # Where to add
//
//   - a form of output: OutputFlag's choices at the command, and a function in document.go.
//   - a column: at the hub (cloud/api), whose Tables are printed as they come.
//   - a state that is coloured: Colours.PaintState in package terminal.
package printer
