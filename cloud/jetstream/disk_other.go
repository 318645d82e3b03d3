// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package jetstream

func diskBytes(string) (free, size uint64, known bool) { return 0, 0, false }
