// SPDX-License-Identifier: Apache-2.0

// Package program finds the other programs of Edgebus on this machine.
package program
