// SPDX-License-Identifier: Apache-2.0

// Package terminal is what only a terminal is shown, or can be asked: its size, colours, progress, a password; and text that can't
// steer it.
package terminal
