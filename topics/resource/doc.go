// Package resource has the nouns of the bus as Go types: Device, DeviceModel, Node, Fleet, Event and the others. Each noun
// has one type, which is the same JSON on disk, in the API and on the bus, and methods that validate it.
//
// It never does I/O and never looks at a clock. It imports only the standard library and package topics.
package resource
