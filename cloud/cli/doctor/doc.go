// SPDX-License-Identifier: Apache-2.0

// Package doctor is edgebus doctor: it asks hub, core and broker, and says what is wrong with a node and what to do.
//
// It never changes anything. What follows from the answers is said by package diagnosis, which the hub uses as well.
//
// # Files, in reading order
//
//	doctor.go     the command
//	facts.go      the answers of hub, core and broker
package doctor
