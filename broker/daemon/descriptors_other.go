// SPDX-License-Identifier: Apache-2.0

//go:build !unix

package daemon

func maxDescriptors() int { return 0 }
