// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package jetstream

func freeBytes(string) (free uint64, known bool) { return 0, false }
